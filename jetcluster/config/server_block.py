"""The top level of a configuration file (shared/reference/core-and-consumers.md section 2.6)."""

from __future__ import annotations

from typing import Any

from jetcluster.config.cluster_block import read_cluster
from jetcluster.config.jetstream_block import read_jetstream
from jetcluster.config.leafnodes_block import read_leafnodes
from jetcluster.config.options import ALLOW_NON_TLS, MIN_LAME_DUCK_DURATION, Options
from jetcluster.config.parser import Node
from jetcluster.config.reader import (
    Blocks,
    FieldError,
    Fields,
    Reader,
    as_address,
    as_bool,
    as_duration,
    as_int,
    as_map,
    as_name,
    as_string,
    as_strings,
)
from jetcluster.config.security_block import check_users, read_accounts, read_authorization, refuse
from jetcluster.config.tls_block import read_tls
from jetcluster.config.units import format_duration
from jetcluster.config.websocket_block import read_websocket


def _listen(_reader: Reader, node: Node, options: Options) -> None:
    host, port = as_address(node)
    options.host, options.port = host or options.host, port


def _http(_reader: Reader, node: Node, options: Options) -> None:
    options.http_host, options.http_port = as_address(node)


def _https(_reader: Reader, node: Node, options: Options) -> None:
    options.http_host, options.https_port = as_address(node)


def _lame_duck_duration(reader: Reader, name: str, node: Node) -> float:
    as_string(reader, name, node)
    seconds = as_duration(reader, name, node)
    if seconds < MIN_LAME_DUCK_DURATION:
        given = format_duration(int(seconds * 1e9))
        raise FieldError(f"invalid lame_duck_duration of {given}, minimum is {MIN_LAME_DUCK_DURATION:.0f} seconds")
    return seconds


def _lame_duck_grace_period(reader: Reader, name: str, node: Node) -> float:
    as_string(reader, name, node)
    seconds = as_duration(reader, name, node)
    if seconds < 0:
        raise FieldError("invalid lame_duck_grace_period, needs to be positive")
    return seconds


def _int32(reader: Reader, name: str, node: Node) -> int:
    number = as_int(reader, name, node)
    if not -(2**31) <= number < 2**31:
        raise FieldError(f"{name} value is too big")
    return number


def _metadata(reader: Reader, name: str, node: Node) -> dict[str, str]:
    return {key: as_string(reader, name, item) for key, item in as_map(node, name).items()}


def _log_format(reader: Reader, name: str, node: Node) -> str:
    text = as_string(reader, name, node)
    if text not in ("text", "json"):
        raise FieldError(f'log_format must be "text" or "json", got "{text}"')
    return text


_FIELDS: Fields = {
    "host": ("host", as_string),
    "net": ("host", as_string),
    "port": ("port", as_int),
    "server_name": ("server_name", as_name),
    "client_advertise": ("client_advertise", as_string),
    "http_port": ("http_port", as_int),
    "monitor_port": ("http_port", as_int),
    "http_base_path": ("http_base_path", as_string),
    **dict.fromkeys(("pidfile", "pid_file"), ("pid_file", as_string)),
    "ports_file_dir": ("ports_file_dir", as_string),
    "server_tags": ("server_tags", as_strings),
    "server_metadata": ("server_metadata", _metadata),
    "no_header_support": ("no_header_support", as_bool),
    # log
    "debug": ("debug", as_bool),
    "trace": ("trace", as_bool),
    "trace_verbose": ("trace", as_bool),
    "logtime": ("logtime", as_bool),
    "logtime_utc": ("logtime_utc", as_bool),
    **dict.fromkeys(("logfile", "log_file"), ("log_file", as_string)),
    "log_format": ("log_format", _log_format),
    # limits
    **dict.fromkeys(("max_connections", "max_conn"), ("max_connections", as_int)),
    **dict.fromkeys(("max_subscriptions", "max_subs"), ("max_subscriptions", as_int)),
    **dict.fromkeys(("max_sub_tokens", "max_subscription_tokens"), ("max_sub_tokens", as_int)),
    "max_control_line": ("max_control_line", _int32),
    "max_payload": ("max_payload", _int32),
    "max_pending": ("max_pending", as_int),
    "max_closed_clients": ("max_closed_clients", as_int),
    "ping_interval": ("ping_interval", as_duration),
    "ping_max": ("ping_max", as_int),
    "write_deadline": ("write_deadline", as_duration),
    "lame_duck_duration": ("lame_duck_duration", _lame_duck_duration),
    "lame_duck_grace_period": ("lame_duck_grace_period", _lame_duck_grace_period),
    # security
    "no_auth_user": ("no_auth_user", as_string),
    **dict.fromkeys(("system_account", "system"), ("system_account", as_string)),
    "allow_non_tls": ("allow_non_tls", as_bool),
}


def _nested(name: str, known: str, refusal: str = "") -> Any:
    """A listener we do not have: its keys are checked against the real server's, and the block warns at start, or is
    refused with the text given."""
    keys = frozenset(known.split())

    def read(reader: Reader, node: Node, _options: Options) -> None:
        unknown = [(key, item) for key, item in as_map(node, name).items() if key.lower() not in keys]
        for key, item in unknown:
            if not item.used_as_variable:
                reader.error(item, f'unknown field "{key}"')
        if refusal and not unknown:
            raise FieldError(refusal)
        reader.inert.append(name)

    return read


_GATEWAY = _nested(
    "gateway",
    "name listen host net port authorization tls advertise connect_retries connect_backoff reject_unknown_cluster "
    "reject_unknown gateways write_deadline write_timeout",
)
_MQTT = _nested(
    "mqtt",
    "listen host net port tls authorization authentication no_auth_user ack_wait ackwait js_api_timeout "
    "max_ack_pending max_pending max_inflight js_domain stream_replicas consumer_replicas consumer_memory_storage "
    "consumer_inactive_threshold consumer_auto_cleanup reject_qos2_publish downgrade_qos2_subscribe",
    "mqtt is not supported",
)
_OPERATOR = refuse("operator mode (JWT) is not supported: configure accounts and users instead")
_BLOCKS: Blocks = {
    "listen": _listen,
    "http": _http,
    "https": _https,
    "https_port": _https,
    "authorization": read_authorization,
    "authentication": read_authorization,
    "accounts": read_accounts,
    "tls": read_tls,
    "cluster": read_cluster,
    "jetstream": read_jetstream,
    "leafnodes": read_leafnodes,
    "leaf": read_leafnodes,
    "websocket": read_websocket,
    "ws": read_websocket,
    "gateway": _GATEWAY,
    "mqtt": _MQTT,
    **dict.fromkeys(("operator", "operators", "roots", "root", "trusted", "trusted_keys"), _OPERATOR),
}
_INERT_KEYS = (
    "trace prof_port feature_flags default_js_domain proxy_protocol default_sentinel disable_sublist_cache "
    "trace_verbose trace_headers log_size_limit log_max_num syslog remote_syslog max_traced_msg_len write_timeout "
    "no_fast_producer_stall connect_error_reports reconnect_error_reports no_system_account no_system "
    "resolver resolvers resolver_preload resolver_tls resolver_pinned_accounts ocsp ocsp_cache mappings maps "
    "proxies account_resolver prof_block_rate max_traced_msg_len strict account_resolver_tls"
)
_INERT = frozenset(_INERT_KEYS.split())


def read_server(reader: Reader, pairs: dict[str, Node], options: Options) -> None:
    """Reads a whole configuration into `options`; errors and warnings stay in `reader`."""
    reader.block(pairs, options, _FIELDS, _BLOCKS, _INERT)
    check_users(reader, options)
    if options.tls is not None and options.allow_non_tls:
        # Ignored, it would lock out the clients that the operator means to let in.
        node = next(node for key, node in pairs.items() if key.lower() == "allow_non_tls")
        reader.error(node, ALLOW_NON_TLS)
