"""Operator mode: whom to believe about accounts, and where their JWTs come from.

Rules and texts are nats-server's.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from jetcluster.config.nkeys import is_key
from jetcluster.records import dataclass

if TYPE_CHECKING:
    from jetcluster.config.claims.operator import OperatorClaims
    from jetcluster.config.options import Options, TlsOptions

MEMORY, FULL, CACHE, URL = "memory", "full", "cache", "url"


@dataclass(slots=True)
class ResolverOptions:
    """`full` keeps the JWTs of all accounts in a directory, `cache` those that were asked for, `url` asks a web
    server."""

    kind: str = MEMORY
    directory: str = ""
    url: str = ""
    allow_delete: bool = False
    hard_delete: bool = False
    """A deleted account's file is removed, not renamed."""
    limit: int = 0
    """JWTs in the directory; 0: no limit of `full`, 1000 of `cache`."""
    interval: float = 60.0
    """Seconds between two comparisons with the other servers."""
    ttl: float = 0.0
    """Seconds that `cache` keeps a JWT; 0: as long as it is valid."""
    timeout: float = 1.9
    """Seconds that others have to answer a question for an account."""


@dataclass(slots=True)
class OperatorOptions:
    operators: list[OperatorClaims] = field(default_factory=list)
    trusted_keys: list[str] = field(default_factory=list)
    """In place of operators' JWTs."""
    resolver: ResolverOptions | None = None
    resolver_tls: TlsOptions | None = None
    """Of a web server's; None: https is checked with the system's authorities."""
    preload: dict[str, str] = field(default_factory=dict)
    """Account -> its JWT."""
    pinned_accounts: list[str] | None = None
    """Only users of these may log in; None: of all."""
    default_sentinel: str = field(default="", repr=False)
    """The JWT of a bearer: who a client without a JWT is."""

    @property
    def is_on(self) -> bool:
        return bool(self.operators or self.trusted_keys)

    @property
    def keys(self) -> list[str]:
        """All that may sign accounts."""
        return [*self.trusted_keys, *(key for operator in self.operators for key in operator.keys)]

    @property
    def strict_keys(self) -> list[str]:
        """The keys of operators with strict signing: accounts signed by one have users by signing keys only."""
        return [key for operator in self.operators if operator.strict_signing_keys for key in operator.signing_keys]

    def settle(self, options: Options) -> None:
        """Takes the operator's word where the configuration says nothing. Once both are read."""
        if not self.is_on:
            return
        if len(self.operators) == 1:
            operator = self.operators[0]
            options.system_account = options.system_account or operator.system_account
            if self.resolver is None and operator.account_server_url.startswith(("http://", "https://")):
                self.resolver = ResolverOptions(URL, url=operator.account_server_url.rstrip("/") + "/accounts/")
        if options.accounts is None:
            options.accounts = {}

    def problem(self, options: Options) -> str | None:
        """Why a server cannot run with it."""
        if not self.operators:
            return "default sentinel requires operators and accounts" if self.default_sentinel else None
        return (
            self._problem_of_sentinel()
            or self._problem_of_others(options)
            or self._problem_of_system_account(options)
            or next(filter(None, map(_problem_of_version, self.operators)), None)
            or self._problem_of_keys()
        )

    def _problem_of_sentinel(self) -> str | None:
        if not self.default_sentinel:
            return None
        from jetcluster.config.claims.token import ClaimsError
        from jetcluster.config.claims.user import decode_user

        try:
            user = decode_user(self.default_sentinel)
        except ClaimsError:
            return "default sentinel JWT not valid"
        if not user.rights.bearer and not (user.issuer_account and user.rights.is_blank):
            return "default sentinel must be a bearer token"
        return None

    def _problem_of_others(self, options: Options) -> str | None:
        """Of the blocks that operator mode takes the place of."""
        if self.resolver is None:
            return "operators require an account resolver to be configured"
        if any(not is_key("A", name) for name in options.accounts or ()):
            return "operators do not allow Accounts to be configured directly"
        if options.authorization.users:
            return "operators do not allow users to be configured directly"
        if self.trusted_keys:
            return "conflicting options for 'TrustedKeys' and 'TrustedOperators'"
        if options.no_auth_user or options.websocket.no_auth_user:
            return "no_auth_user not compatible with Trusted Operator"
        if len(options.leafnodes.users) > 1:
            return "operator mode does not allow specifying users in leafnode config"
        for remote in options.leafnodes.remotes:
            if not is_key("A", remote.account):
                return (
                    "operator mode requires account nkeys in remotes. Please add an `account` key to each remote in "
                    "your `leafnodes` section, to assign it to an account. Each account value should be a 56 character "
                    "public key, starting with the letter 'A'"
                )
        return None

    def _problem_of_system_account(self, options: Options) -> str | None:
        system = options.system_account
        told = [operator.system_account for operator in self.operators if operator.system_account]
        if system and told and system not in told:
            return "system_account in config and operator JWT must be identical"
        assert self.resolver is not None
        if not system and self.resolver.kind in (FULL, CACHE):
            return (
                "using nats based account resolver - the system account needs to be specified in configuration or the "
                "operator jwt"
            )
        if system and not is_key("A", system):
            return "error resolving system account: will only fetch valid account keys"
        return self._problem_of_known_system_account(system) if system and self.resolver.kind == MEMORY else None

    def _problem_of_known_system_account(self, name: str) -> str | None:
        from jetcluster.clock import SystemClock
        from jetcluster.config.claims.account import verified_account
        from jetcluster.config.claims.token import ClaimsError

        if name not in self.preload:
            return "error resolving system account: account missing"
        try:
            verified_account(name, self.preload[name], self.keys, SystemClock().time_ns() / 1e9)
        except ClaimsError as error:
            return f"error resolving system account: {error}"
        return None

    def _problem_of_keys(self) -> str | None:
        for key in self.keys:
            if not is_key("O", key):
                return f'trusted Keys "{key}" are required to be a valid public operator nkey'
        for key in self.pinned_accounts or ():
            if not is_key("A", key):
                return f'pinned account key "{key}" is not a valid public account nkey'
        if self.resolver is not None and self.resolver.kind == URL and self.preload:
            return "resolver preloads only available for writeable resolver types MEM/DIR/CACHE_DIR"
        return None


def _problem_of_version(operator: OperatorClaims) -> str | None:
    from jetcluster import REPORTED_VERSION

    wanted, name = operator.server_version, operator.token.subject
    if not wanted:
        return None
    parts = wanted.split(".")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 10 for part in parts):
        why = "asserted server version must be of the form <major>.<minor>.<update>"
        return f"operator {name} expects version {wanted} got error instead: {why}"
    for label, text, own in zip(("major", "minor", "update"), parts, REPORTED_VERSION.split("."), strict=False):
        if int(text) > int(own):
            return f"operator {name} expected {label} version {int(text)} > server {label} version {int(own)}"
        if int(text) < int(own):
            break
    return None
