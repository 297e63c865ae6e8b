"""The `websocket` block: the port for WebSocket clients (reference sheet core 2.6, 9.1)."""

from __future__ import annotations

from jetcluster.config.options import AuthorizationOptions, Options, WebSocketOptions
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
    as_seconds,
    as_string,
    as_strings,
    mismatch,
)
from jetcluster.config.tls_block import read_port_tls


def _listen(_reader: Reader, node: Node, websocket: WebSocketOptions) -> None:
    host, port = as_address(node)
    websocket.host, websocket.port = host or websocket.host, port


def _headers(_reader: Reader, name: str, node: Node) -> dict[str, str]:
    found = {}
    for key, item in as_map(node, name).items():
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


def _authorization(reader: Reader, node: Node, websocket: WebSocketOptions) -> None:
    """One user or a token; users and permissions are those of the server."""
    websocket.authorization = AuthorizationOptions()
    reader.block(as_map(node, "authorization"), websocket.authorization, _LOGIN, path="websocket.authorization")


_FIELDS: Fields = {
    **dict.fromkeys(("host", "net"), ("host", as_string)),
    "port": ("port", as_int),
    "no_tls": ("no_tls", as_bool),
    "same_origin": ("same_origin", as_bool),
    **dict.fromkeys(
        ("allowed_origins", "allowed_origin", "allow_origins", "allow_origin"), ("allowed_origins", as_strings)
    ),
    "handshake_timeout": ("handshake_timeout", as_duration),
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
_BLOCKS: Blocks = {
    "listen": _listen,
    "tls": read_port_tls,
    **dict.fromkeys(("authorization", "authentication"), _authorization),
}


def read_websocket(reader: Reader, node: Node, options: Options) -> None:
    websocket = options.websocket = WebSocketOptions()
    reader.block(as_map(node, "websocket"), websocket, _FIELDS, _BLOCKS, path="websocket")
