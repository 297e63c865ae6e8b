"""The top level of a configuration file."""

from __future__ import annotations

from typing import Any

from jetcluster.config.cluster_block import read_cluster
from jetcluster.config.compat_block import read_compat
from jetcluster.config.exports_block import check_imports, read_mappings
from jetcluster.config.jetstream_block import as_store_dir, read_jetstream
from jetcluster.config.leafnodes_block import read_leafnodes
from jetcluster.config.operator_block import OPERATOR_BLOCKS, settle_operator
from jetcluster.config.options import MIN_LAME_DUCK_DURATION, Options
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import (
    INERT,
    Blocks,
    FieldError,
    Fields,
    Reader,
    as_address,
    as_bool,
    as_duration,
    as_int,
    as_name,
    as_string,
    as_strings,
    as_write_timeout,
    go_quoted,
    go_type,
    mismatch,
    read_listen,
    refuse_when_true,
)
from jetcluster.config.security_block import check_users, read_accounts, read_authorization
from jetcluster.config.tls_block import read_tls
from jetcluster.config.unsupported_blocks import read_gateway, read_mqtt, read_ocsp, read_proxies
from jetcluster.config.websocket_block import read_websocket
from jetcluster.model import durations


def _http(_reader: Reader, node: ConfigNode, options: Options) -> None:
    options.http_host, options.http_port = as_address(node)


def _https(_reader: Reader, node: ConfigNode, options: Options) -> None:
    options.http_host, options.https_port = as_address(node)


def _lame_duck_duration(reader: Reader, name: str, node: ConfigNode) -> float:
    as_string(reader, name, node)
    seconds = as_duration(reader, name, node)
    if seconds < MIN_LAME_DUCK_DURATION:
        given = durations.render(int(seconds * 1e9))
        raise FieldError(f"invalid lame_duck_duration of {given}, minimum is {MIN_LAME_DUCK_DURATION:.0f} seconds")
    return seconds


def _lame_duck_grace_period(reader: Reader, name: str, node: ConfigNode) -> float:
    as_string(reader, name, node)
    seconds = as_duration(reader, name, node)
    if seconds < 0:
        raise FieldError("invalid lame_duck_grace_period, needs to be positive")
    return seconds


def _int32(reader: Reader, name: str, node: ConfigNode) -> int:
    number = as_int(reader, name, node)
    if not -(2**31) <= number < 2**31:
        raise FieldError(f"{name} value is too big")
    return number


def _max_sub_tokens(reader: Reader, name: str, node: ConfigNode) -> int:
    number = as_int(reader, name, node)
    if number > 255:
        raise FieldError("max_sub_tokens value is too big")
    if number < 0:
        raise FieldError("max_sub_tokens value can not be negative")
    return number


def _tags(reader: Reader, name: str, node: ConfigNode) -> list[str]:
    """One tag, several with commas between them, or an array; without those said before, in lower case."""
    if isinstance(node.value, list):
        for item in node.value:
            if not isinstance(item.value, str):
                raise FieldError("error parsing tags: unsupported type *conf.token where string is expected")
    elif not isinstance(node.value, str):
        raise FieldError(f"error parsing tags: unsupported type {go_type(node)}")
    words = [part.strip().lower() for text in as_strings(reader, name, node) for part in text.split(",")]
    return list(dict.fromkeys(word for word in words if word))


def _metadata(_reader: Reader, _name: str, node: ConfigNode) -> dict[str, str]:
    if not isinstance(node.value, dict):
        raise FieldError(f"error parsing metadata: unsupported type {go_type(node)}")
    for item in node.value.values():
        if not isinstance(item.value, str):
            raise FieldError(str(mismatch(item, "string")), item)
    return {key: str(item.value) for key, item in node.value.items()}


def _feature_flags(_reader: Reader, _name: str, node: ConfigNode) -> dict[str, bool]:
    if not isinstance(node.value, dict):
        raise FieldError(f"error parsing feature flags: unsupported type {go_type(node)}")
    for key, item in node.value.items():
        if not isinstance(item.value, bool):
            text = f'error parsing feature flag "{go_quoted(key)}": expected bool, got {go_type(item)}'
            raise FieldError(text, item)
    return {key: bool(item.value) for key, item in node.value.items()}


def _trace(attribute: str) -> Any:
    """`trace_verbose` and `trace_headers` say `trace` as well, on or off."""

    def read(reader: Reader, node: ConfigNode, options: Options) -> None:
        options.trace = as_bool(reader, attribute, node)
        setattr(options, attribute, options.trace)

    return read


def _system_account(_reader: Reader, _name: str, node: ConfigNode) -> str:
    if not isinstance(node.value, str):
        raise FieldError("system account name must be a string")
    return node.value


def refuse_default_domain(_reader: Reader, node: ConfigNode, _options: Options) -> None:
    if not isinstance(node.value, dict):
        raise FieldError(f"error default_js_domain config: unsupported type {go_type(node)}")
    if node.value:
        raise FieldError("default_js_domain is not supported: clients name the domain they mean")


def _log_format(reader: Reader, name: str, node: ConfigNode) -> str:
    text = as_string(reader, name, node)
    if text not in ("text", "json"):
        raise FieldError(f'log_format must be "text" or "json", got "{text}"')
    return text


FIELDS: Fields = {
    "host": ("host", as_string),
    "net": ("host", as_string),
    "port": ("port", as_int),
    "server_name": ("server_name", as_name),
    "client_advertise": ("client_advertise", as_string),
    "http_port": ("http_port", as_int),
    "monitor_port": ("http_port", as_int),
    "https_port": ("https_port", as_int),
    "http_base_path": ("http_base_path", as_string),
    **dict.fromkeys(("pidfile", "pid_file"), ("pid_file", as_string)),
    "ports_file_dir": ("ports_file_dir", as_string),
    "server_tags": ("server_tags", _tags),
    "server_metadata": ("server_metadata", _metadata),
    "no_header_support": ("no_header_support", as_bool),
    "prof_port": (INERT, as_int),
    "prof_block_rate": (INERT, as_int),
    "feature_flags": (INERT, _feature_flags),
    **dict.fromkeys(("disable_sublist_cache", "no_sublist_cache"), (INERT, as_bool)),
    # log
    "debug": ("debug", as_bool),
    "trace": ("trace", as_bool),
    "max_traced_msg_len": ("max_traced_msg_len", as_int),
    "logtime": ("logtime", as_bool),
    "logtime_utc": ("logtime_utc", as_bool),
    **dict.fromkeys(("logfile", "log_file"), ("log_file", as_string)),
    **dict.fromkeys(("logfile_size_limit", "log_size_limit"), ("log_size_limit", as_int)),
    **dict.fromkeys(("logfile_max_num", "log_max_num"), ("log_max_num", as_int)),
    "syslog": ("syslog", as_bool),
    "remote_syslog": ("remote_syslog", as_string),
    # There is a system account all the same: nobody is its user unless the configuration says so.
    **dict.fromkeys(("no_system_account", "no_system", "no_sys_acc"), ("", as_bool)),
    "connect_error_reports": (INERT, as_int),
    "reconnect_error_reports": (INERT, as_int),
    "log_format": ("log_format", _log_format),
    # limits
    **dict.fromkeys(("max_connections", "max_conn"), ("max_connections", as_int)),
    **dict.fromkeys(("max_subscriptions", "max_subs"), ("max_subscriptions", as_int)),
    **dict.fromkeys(("max_sub_tokens", "max_subscription_tokens"), ("max_sub_tokens", _max_sub_tokens)),
    "max_control_line": ("max_control_line", _int32),
    "max_payload": ("max_payload", _int32),
    "max_pending": ("max_pending", as_int),
    "max_closed_clients": ("max_closed_clients", as_int),
    "ping_interval": ("ping_interval", as_duration),
    "ping_max": ("ping_max", as_int),
    "write_deadline": ("write_deadline", as_duration),
    "write_timeout": ("write_timeout", as_write_timeout),
    "no_fast_producer_stall": ("no_fast_producer_stall", as_bool),
    "lame_duck_duration": ("lame_duck_duration", _lame_duck_duration),
    "lame_duck_grace_period": ("lame_duck_grace_period", _lame_duck_grace_period),
    # security
    "no_auth_user": ("no_auth_user", as_string),
    **dict.fromkeys(("system_account", "system"), ("system_account", _system_account)),
    "allow_non_tls": ("allow_non_tls", as_bool),
    "https_verify": ("https_verify", as_bool),
}
"""Plain fields, by their names in a file. This table and those below are what docs/configuration.md lists."""


BLOCKS: Blocks = {
    "listen": read_listen,
    "http": _http,
    "https": _https,
    "authorization": read_authorization,
    "accounts": read_accounts,
    "tls": read_tls,
    "cluster": read_cluster,
    "jetstream": read_jetstream,
    "compat": read_compat,
    "leafnodes": read_leafnodes,
    "leaf": read_leafnodes,
    "websocket": read_websocket,
    "ws": read_websocket,
    "gateway": read_gateway,
    "mqtt": read_mqtt,
    **dict.fromkeys(("store_dir", "storedir"), as_store_dir(lambda options: options.jetstream)),
    "trace_verbose": _trace("trace_verbose"),
    "trace_headers": _trace("trace_headers"),
    "default_js_domain": refuse_default_domain,
    "proxy_protocol": refuse_when_true("proxy_protocol is not supported: connections begin with NATS or TLS"),
    "proxies": read_proxies,
    "ocsp": read_ocsp,
    **dict.fromkeys(("mappings", "maps"), read_mappings),
    **OPERATOR_BLOCKS,
}
INERT_NAMES = frozenset({"ocsp_cache"})


def read_server(reader: Reader, pairs: dict[str, ConfigNode], options: Options) -> None:
    """Reads a whole configuration into `options`; errors and warnings stay in `reader`."""
    reader.block(pairs, options, FIELDS, BLOCKS, INERT_NAMES)
    settle_operator(options)
    check_users(reader, options)
    check_imports(reader, pairs, options)
