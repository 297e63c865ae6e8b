"""From the configuration to what the client-facing server reads."""

from __future__ import annotations

from dataclasses import fields

from jetcluster.config.options import AccountOptions, Options
from jetcluster.server.options import AccountLimits, ServerOptions

_OTHERWISE = frozenset({"tls", "version", "api_level", "jetstream", "account_limits"})


def account_limits(account: AccountOptions) -> AccountLimits:
    limits = account.limits
    return AccountLimits(limits.max_connections, limits.max_subscriptions, limits.max_payload)


def server_options(options: Options) -> ServerOptions:
    """Fields that both have carry the same names. Raises ConfigError when TLS files are unusable."""
    names = {field.name for field in fields(ServerOptions)} - _OTHERWISE
    built = ServerOptions(**{name: getattr(options, name) for name in names if hasattr(options, name)})
    built.jetstream = options.jetstream.enabled
    for account in (options.accounts or {}).values():
        built.account_limits[account.name] = account_limits(account)
    if options.tls is not None:
        from jetcluster.config.tls import server_context

        built.tls = server_context(options.tls)
        built.tls_verify = options.tls.verify
        built.tls_timeout = options.tls.timeout
        built.tls_handshake_first = options.tls.handshake_first
        built.tls_fallback_delay = options.tls.fallback_delay
        built.tls_map = options.tls.verify_and_map
        built.tls_pinned = frozenset(options.tls.pinned_certs)
        built.tls_rate_limit = options.tls.connection_rate_limit
    return built
