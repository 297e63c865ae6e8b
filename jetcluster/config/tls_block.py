"""The `tls` blocks: of the client port, of routes and of leaf links (shared/reference/core-and-consumers.md 2.2)."""

from __future__ import annotations

from typing import Any

from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import (
    ClusterOptions,
    LeafOptions,
    LeafRemoteOptions,
    Options,
    TlsOptions,
    WebSocketOptions,
)
from jetcluster.config.parser import Node
from jetcluster.config.reader import (
    Blocks,
    FieldError,
    Fields,
    Reader,
    as_bool,
    as_duration,
    as_map,
    as_seconds,
    as_string,
)
from jetcluster.config.security_block import refuse


def _handshake_first(reader: Reader, name: str, node: Node) -> bool:
    """`true`, or `auto` / a duration: the server waits that long for a TLS hello before it sends INFO in clear."""
    if isinstance(node.value, bool):
        return node.value
    text = as_string(reader, name, node)
    if text.lower() in ("true", "on", "false", "off"):
        return text.lower() in ("true", "on")
    if text.lower() != "auto":
        as_duration(reader, name, node)
    reader.notes.append("tls handshake_first with a delay is treated as off: INFO is sent in clear first")
    return False


_TLS_FIELDS: Fields = {
    "cert_file": ("cert_file", as_string),
    "key_file": ("key_file", as_string),
    "ca_file": ("ca_file", as_string),
    "verify": ("verify", as_bool),
    "timeout": ("timeout", as_seconds),
    **dict.fromkeys(("handshake_first", "first", "immediate"), ("handshake_first", _handshake_first)),
    "min_version": ("min_version", as_string),
}
_TLS_INERT = frozenset(
    {"cipher_suites", "curve_preferences", "insecure", "connection_rate_limit", "verify_cert_and_check_known_urls"}
)


def _verify_and_map(reader: Reader, node: Node, _target: Any) -> None:
    if as_bool(reader, "verify_and_map", node):
        raise FieldError("verify_and_map is not supported")


_TLS_BLOCKS: Blocks = {
    "verify_and_map": _verify_and_map,
    "pinned_certs": refuse("pinned_certs is not supported"),
    "certs": refuse("certs is not supported, use cert_file and key_file"),
}


def read_tls(reader: Reader, node: Node, options: Options) -> None:
    options.tls = _parse(reader, node, _TLS_FIELDS, _TLS_INERT)


def read_port_tls(reader: Reader, node: Node, target: WebSocketOptions) -> None:
    """The `tls` block of a port of its own for clients."""
    target.tls = _parse(reader, node, _TLS_FIELDS, _TLS_INERT)
    if not target.tls.cert_file:
        raise FieldError("tls of a port needs cert_file and key_file", node)


def read_link_tls(reader: Reader, node: Node, target: ClusterOptions | LeafOptions | LeafRemoteOptions) -> None:
    """The `tls` block of links between servers; who accepts them must have a certificate."""
    target.tls = _parse(reader, node, {**_TLS_FIELDS, "insecure": ("insecure", as_bool)}, _TLS_INERT - {"insecure"})
    if target.tls.insecure:
        reader.notes.append("tls insecure: the other end's certificate is not checked")
    if not target.tls.cert_file and not isinstance(target, LeafRemoteOptions):
        raise FieldError("tls of a port needs cert_file and key_file", node)
    _try_to_load(target.tls, accepting=False)


def _parse(reader: Reader, node: Node, fields: Fields, inert: frozenset[str]) -> TlsOptions:
    tls = TlsOptions()
    unknown = 'error parsing tls config, unknown field "{key}"'
    pairs = as_map(node, "tls")
    # The real server knows no variable definitions in this one block.
    reader.block(pairs, tls, fields, _TLS_BLOCKS, inert, path="tls", unknown=unknown, variables=False)
    if tls.cert_file and not tls.key_file:
        raise FieldError("missing 'key_file' in TLS configuration")
    if tls.key_file and not tls.cert_file:
        raise FieldError("missing 'cert_file' in TLS configuration")
    if tls.min_version not in ("", "1.2", "1.3"):
        raise FieldError(f"unsupported TLS version: {tls.min_version}")
    if tls.cert_file:
        _try_to_load(tls, accepting=True)
    return tls


def _try_to_load(tls: TlsOptions, *, accepting: bool) -> None:
    """To know that it can be; `ssl` is imported only for those who use it."""
    from jetcluster.config.tls import client_context, server_context

    try:
        (server_context if accepting else client_context)(tls)
    except ConfigError as error:
        raise FieldError(str(error)) from error
