"""The `websocket` block: the port for WebSocket clients."""

from __future__ import annotations

from jetcluster.config.account_options import AuthorizationOptions
from jetcluster.config.options import Options, WebSocketOptions
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import (
    Blocks,
    FieldError,
    Fields,
    Reader,
    as_bool,
    as_duration,
    as_int,
    as_map,
    as_seconds,
    as_string,
    as_strings,
    go_type,
    mismatch,
    parse_duration,
    read_listen,
)
from jetcluster.config.tls_block import read_port_tls


def _origins(reader: Reader, name: str, node: ConfigNode) -> list[str]:
    if not isinstance(node.value, str | list):
        raise FieldError(f"error parsing allowed origins: unsupported type {go_type(node)}")
    return as_strings(reader, name, node)


def _handshake_timeout(_reader: Reader, name: str, node: ConfigNode) -> float:
    """Seconds; a plain number without the warning that other durations have."""
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        return float(node.value)
    if not isinstance(node.value, str):
        raise FieldError(f"error parsing handshake timeout: unsupported type {go_type(node)}")
    try:
        return parse_duration(node.value)
    except ValueError as error:
        raise FieldError(str(error)) from error


def _headers(_reader: Reader, name: str, node: ConfigNode) -> dict[str, str]:
    if not isinstance(node.value, dict):
        raise FieldError(f"error parsing {name}: unsupported type {go_type(node)}")
    found = {}
    for key, item in node.value.items():
        if not isinstance(item.value, str):
            kind = str(mismatch(item, "")).partition(" is ")[2].partition(",")[0]
            raise FieldError(f"error parsing header key {key}: unsupported type {kind}", item)
        if any(char in key + item.value for char in "\r\n\0") or ":" in key or not key.strip():
            raise FieldError(f"error parsing header key {key}: not a header", item)
        found[key] = item.value
    return found


_LOGIN: Fields = {
    **dict.fromkeys(("user", "username"), ("user", as_string)),
    **dict.fromkeys(("pass", "password"), ("password", as_string)),
    "token": ("token", as_string),
    "timeout": ("timeout", as_seconds),
}


def _authorization(reader: Reader, node: ConfigNode, websocket: WebSocketOptions) -> None:
    """One user or a token; users and permissions are those of the server."""
    websocket.authorization = AuthorizationOptions()
    reader.block(as_map(node, "authorization"), websocket.authorization, _LOGIN, path="websocket.authorization")


FIELDS: Fields = {
    **dict.fromkeys(("host", "net"), ("host", as_string)),
    "port": ("port", as_int),
    "no_tls": ("no_tls", as_bool),
    "same_origin": ("same_origin", as_bool),
    **dict.fromkeys(
        ("allowed_origins", "allowed_origin", "allow_origins", "allow_origin", "origins", "origin"),
        ("allowed_origins", _origins),
    ),
    "handshake_timeout": ("handshake_timeout", _handshake_timeout),
    **dict.fromkeys(("compression", "compress"), ("compression", as_bool)),
    "no_auth_user": ("no_auth_user", as_string),
    "jwt_cookie": ("jwt_cookie", as_string),
    "user_cookie": ("user_cookie", as_string),
    "pass_cookie": ("pass_cookie", as_string),
    "token_cookie": ("token_cookie", as_string),
    "headers": ("headers", _headers),
    "advertise": ("advertise", as_string),
    "ping_interval": ("ping_interval", as_duration),
}
BLOCKS: Blocks = {
    "listen": read_listen,
    "tls": read_port_tls,
    **dict.fromkeys(("authorization", "authentication"), _authorization),
}


def read_websocket(reader: Reader, node: ConfigNode, options: Options) -> None:
    websocket = options.websocket = WebSocketOptions()
    if not isinstance(node.value, dict):
        raise FieldError(f"Expected websocket to be a map, got {go_type(node)}")
    reader.block(node.value, websocket, FIELDS, BLOCKS, path="websocket")
