"""Configuration reload (SIGHUP, `--signal reload`): all of the new file, or none of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from jetcluster import logs
from jetcluster.auth.authenticator import Authenticator
from jetcluster.config.changes import changed_fields, described
from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import Options
from jetcluster.config.runtime_files import write_pid_file
from jetcluster.node.node import Node
from jetcluster.node.part_options import tls_context

_LOGGING = frozenset(
    [
        "debug",
        "trace",
        "logtime",
        "logtime_utc",
        "log_file",
        "log_format",
        "log_size_limit",
        "log_max_num",
        "syslog",
        "remote_syslog",
    ]
)


def reload(node: Node, read_options: Callable[[], Options], cause: str) -> str:
    """Takes over the configuration that `read_options` reads, which raises ConfigError.

    On any error the old one stays; the log says why, and so does the result, which is "" otherwise. `cause` is for the
    log; "" when that has it already.
    """
    log = node.log
    if cause:
        log.info(cause)
    try:
        lines, new = _take(node, read_options)
    except ConfigError as error:
        log.error(f"Failed to reload server configuration: {str(error).rstrip()}")  # noqa: TRY400 - an operator's error
        return str(error).rstrip()
    node.config_load_ns = node.clock.time_ns()
    for warning in new.warnings:
        log.warning(warning)
    for line in lines:
        log.info(f"Reloaded: {line}")
    log.info(f"Reloaded server configuration ({node.options.config_digest})")
    return ""


def _take(node: Node, read_options: Callable[[], Options]) -> tuple[list[str], Options]:
    """Takes over the new options. Returns the lines of the log that tell the changes, and the options. Raises
    ConfigError before anything has changed."""
    options = node.options
    if not options.config_file:
        raise ConfigError("can only reload config when a file is provided using -c or --config")
    new = read_options()
    known = node.operator.prepare(new) if node.operator is not None else None
    changed = changed_fields(options, new)
    lines = described(changed, options, new)
    if node.jetstream is not None:
        node.jetstream.check_tags(new.server_tags)
    left_ports_dir = options.ports_file_dir if "ports_file_dir" in changed else ""
    tls = tls_context(new.tls)
    # The two that may fail on something outside the file come first.
    try:
        if "pid_file" in changed and new.pid_file:
            write_pid_file(new.pid_file)
        if _LOGGING & set(changed):
            logs.configure(new)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    node.monitoring.renew_certificate(new.tls)
    if node.leafnodes is not None:
        node.leafnodes.renew_certificates()
    ws_port, ws_tls = node.server.ws_port, new.websocket.tls
    if ws_port is not None and ws_tls is not None and (context := tls_context(ws_tls)) is not None:
        ws_port.renew(context, ws_tls.timeout)
    if node.jetstream is not None:
        node.jetstream.renew_tls(new.cluster)
    # In place: the rooms of the node hold this object.
    for field in fields(Options):
        setattr(options, field.name, getattr(new, field.name))
    previous = node.server.authenticator
    if node.operator is not None and known is not None:
        node.operator.take_over(known)
        authenticator: Authenticator = node.operator.authenticator(options)
    else:
        authenticator = Authenticator(new, previous)
    node.share()
    node.server.reconfigure(new, authenticator, tls)
    if node.jetstream is not None:
        node.jetstream.reconfigure(changed)
    if "leafnodes" in changed:
        node.change_leafnodes()
    if "ports_file_dir" in changed:
        node.move_ports_file(left_ports_dir)
    return lines, new
