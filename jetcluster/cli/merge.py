"""Merges command line flags into the options of a configuration file: flags win, as in nats-server."""

from __future__ import annotations

import os
from collections.abc import Mapping

from jetcluster.cli.flags import INERT, OPTIONAL, Flag
from jetcluster.config.lexer import ConfigError
from jetcluster.config.option_checks import problem_of
from jetcluster.config.options import DEFAULT_PORT, ClusterOptions, Options
from jetcluster.config.tls_options import TlsOptions

_DIRECT = (
    "host",
    "port",
    "server_name",
    "pid_file",
    "http_port",
    "https_port",
    "client_advertise",
    "ports_file_dir",
    "log_file",
    "log_format",
    "logtime",
    "logtime_utc",
    "debug",
    "trace",
    "syslog",
    "remote_syslog",
    "log_size_limit",
    "max_traced_msg_len",
)


def options_from(flags: Mapping[str, Flag]) -> Options:
    """Returns the final `Options` of a start. `warnings` begins with those of the file on which `-t` would fail.
    Raises `ConfigError` with the text that follows `nats-server: `."""
    options = Options()
    if flags.get("config"):
        # A start without a file does not import the parser.
        from jetcluster.config.load import load_file

        options, pedantic = load_file(str(flags["config"]))
        options.warnings[:0] = pedantic
    apply_flags(options, flags)
    problem = problem_of(options)
    if problem is not None:
        raise ConfigError(problem)
    if options.tls is not None:
        from jetcluster.config.tls import server_context

        server_context(options.tls)
    options.add_start_warnings()
    if "worker" in flags:
        from jetcluster.config.workers import become, place_of

        become(options, place_of(os.environ, int(flags["worker"])))
    return options


def apply_flags(options: Options, flags: Mapping[str, Flag]) -> None:
    """Sets the options of `flags`. Raises `ConfigError` for an invalid value."""
    for name in _DIRECT:
        if name in flags:
            setattr(options, name, flags[name])
    if "tags" in flags:
        tags = (tag.strip() for tag in str(flags["tags"]).split(","))
        options.server_tags = [*options.server_tags, *(tag for tag in tags if tag and tag not in options.server_tags)]
    if "workers" in flags:
        options.workers = _workers(str(flags["workers"]))
    options.host = options.host or Options().host
    options.port = options.port or DEFAULT_PORT
    for name in ("trace_verbose", "debug_trace", "debug_trace_verbose"):
        if name in flags:
            options.trace = bool(flags[name])
            options.debug = options.trace if name.startswith("debug") else options.debug
            options.trace_verbose = options.trace if name.endswith("verbose") else options.trace_verbose
    if options.log_format not in ("text", "json"):
        raise ConfigError(f'log_format must be "text" or "json", got "{options.log_format}"')
    if " " in options.server_name:
        raise ConfigError("server name cannot contain spaces")
    if "jetstream" in flags:
        options.jetstream.enabled = bool(flags["jetstream"])
    if "store_dir" in flags:
        options.jetstream.store_dir = str(flags["store_dir"])
    _apply_authorization(options, flags)
    _apply_cluster(options, flags)
    _apply_tls(options, flags)
    options.add_inert(f"--{name}" for name in INERT if flags.get(name))


def _workers(text: str) -> int:
    from jetcluster.config.workers import workers_of

    try:
        return workers_of(text)
    except ValueError as error:
        raise ConfigError(f'workers {error}, got "{text}"') from error


def _apply_authorization(options: Options, flags: Mapping[str, Flag]) -> None:
    auth = options.authorization
    if "user" in flags:
        auth.user = str(flags["user"])
    if "password" in flags:
        auth.password = str(flags["password"])
    if "token" in flags:
        auth.token = str(flags["token"])


def _apply_cluster(options: Options, flags: Mapping[str, Flag]) -> None:
    cluster = options.cluster
    if "cluster" in flags:
        _listen_for_cluster(cluster, str(flags["cluster"]))
    if "cluster_name" in flags:
        cluster.name = str(flags["cluster_name"])
        if " " in cluster.name:
            raise ConfigError("cluster name cannot contain spaces")
    if "routes" in flags:
        cluster.routes = _routes(str(flags["routes"]))
    if "no_advertise" in flags:
        cluster.no_advertise = bool(flags["no_advertise"])
    if "cluster_advertise" in flags:
        cluster.cluster_advertise = str(flags["cluster_advertise"])


def _listen_for_cluster(cluster: ClusterOptions, url: str) -> None:
    """Sets address and login from a URL; an empty one disables the cluster. Raises `ConfigError`."""
    from urllib.parse import unquote

    from jetcluster.config.links_block import split_url
    from jetcluster.config.reader import FieldError

    if not url:
        cluster.port = 0
        return
    try:
        user, password, host, port = split_url(url)
    except FieldError as error:
        raise ConfigError(str(error)) from error
    if user and not password:
        raise ConfigError("expected cluster password to be set")
    cluster.host, cluster.port = host or cluster.host, port
    cluster.authorization.user, cluster.authorization.password = unquote(user), unquote(password)


def _routes(text: str) -> list[str]:
    from jetcluster.config.links_block import split_url
    from jetcluster.config.reader import FieldError, without_secret

    routes = [url for url in (part.strip() for part in text.split(",")) if url]
    for url in routes:
        try:
            split_url(url)
        except FieldError as error:
            raise ConfigError(f'error parsing route url ["{without_secret(url)}"]: {error}') from error
    return routes


def _apply_tls(options: Options, flags: Mapping[str, Flag]) -> None:
    if not any(name in flags for name in ("tls", "tls_cert", "tls_key", "tls_ca", "tls_verify")):
        return
    if flags.get("tls") is False and not flags.get("tls_verify"):
        options.tls = None
        return
    tls = options.tls = options.tls or TlsOptions()
    tls.cert_file = str(flags.get("tls_cert", tls.cert_file))
    tls.key_file = str(flags.get("tls_key", tls.key_file))
    tls.ca_file = str(flags.get("tls_ca", tls.ca_file))
    if "tls_verify" in flags:
        tls.verify_optional = flags["tls_verify"] == OPTIONAL
        tls.verify = bool(flags["tls_verify"]) and not tls.verify_optional
    if not tls.cert_file:
        raise ConfigError("TLS Server certificate must be present and valid")
    if not tls.key_file:
        raise ConfigError("TLS Server private key must be present and valid")
