"""The `tls` blocks: of the ports for clients, of routes and of leaf links.

What would weaken security if it were silently ignored is refused by name.
"""

from __future__ import annotations

import re
from typing import Any

from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import ClusterOptions, LeafOptions, LeafRemoteOptions, Options, WebSocketOptions
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import (
    Blocks,
    FieldError,
    Fields,
    Reader,
    as_map,
    go_type,
    mismatch,
    parse_duration,
    refuse,
)
from jetcluster.config.tls_options import CURVES, HYBRID_CURVES, TlsOptions, is_insecure, problem_of_suite

FALLBACK_DELAY = 0.05
"""Seconds that `handshake_first: auto` waits for a TLS hello."""
_PIN = re.compile(r"[0-9a-f]{64}")


# --- fields -----------------------------------------------------------------------------------------------------------


def _bool(_reader: Reader, name: str, node: ConfigNode) -> bool:
    if not isinstance(node.value, bool):
        raise FieldError(f"error parsing tls config, expected '{name}' to be a boolean")
    return node.value


def _file(_reader: Reader, name: str, node: ConfigNode) -> str:
    if not isinstance(node.value, str):
        raise FieldError(f"error parsing tls config, expected '{name}' to be filename")
    return node.value


def _timeout(_reader: Reader, _name: str, node: ConfigNode) -> float:
    """Seconds."""
    if isinstance(node.value, bool) or not isinstance(node.value, int | float | str):
        raise FieldError("error parsing tls config, 'timeout' wrong type")
    if not isinstance(node.value, str):
        return float(node.value)
    try:
        return parse_duration(node.value)
    except ValueError as error:
        raise FieldError(f"error parsing tls config, 'timeout' {error}") from error


def _rate(_reader: Reader, _name: str, node: ConfigNode) -> int:
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        raise FieldError("error parsing tls config, 'connection_rate_limit' wrong type")
    return node.value


def _min_version(_reader: Reader, _name: str, node: ConfigNode) -> str:
    version = node.value
    if not isinstance(version, str):
        raise FieldError(f"error parsing tls config: 'min_version' wrong type: {version}")
    if version in ("1.0", "1.1"):
        raise FieldError(f"error parsing tls config: unsupported TLS version: TLS {version}")
    if version not in ("1.2", "1.3"):
        raise FieldError(f"error parsing tls config: unknown version: {version}")
    return version


def _handshake_first(_reader: Reader, node: ConfigNode, tls: TlsOptions) -> None:
    """`true`, or `auto` or a duration: the server waits that long for a TLS hello before it sends INFO in clear."""
    value = node.value
    if isinstance(value, bool):
        tls.handshake_first = value
        return
    if not isinstance(value, str):
        got = go_type(node)
        raise FieldError(f'field "handshake_first" should be a boolean or a string, got {got}')
    word = value.lower()
    tls.handshake_first = word not in ("false", "off")
    if word in ("auto", "auto_fallback"):
        tls.fallback_delay = FALLBACK_DELAY
    elif word not in ("true", "on", "false", "off"):
        try:
            tls.fallback_delay = parse_duration(value)
        except ValueError as error:
            raise FieldError(f'field "handshake_first"\'s value "{value}" is invalid') from error


def _verify_and_map(reader: Reader, node: ConfigNode, tls: TlsOptions) -> None:
    tls.verify_and_map = _bool(reader, "verify_and_map", node)
    tls.verify = tls.verify or tls.verify_and_map


def _check_known_urls(reader: Reader, node: ConfigNode, tls: TlsOptions) -> None:
    tls.check_known_urls = _bool(reader, "verify_cert_and_check_known_urls", node)
    tls.verify = tls.verify or tls.check_known_urls


def _verify(reader: Reader, node: ConfigNode, tls: TlsOptions) -> None:
    wanted = _bool(reader, "verify", node)
    tls.verify = wanted or tls.verify_and_map or tls.check_known_urls


def _strings(node: ConfigNode, name: str, wanted: str) -> list[tuple[str, ConfigNode]]:
    if not isinstance(node.value, list):
        raise FieldError(f"error parsing tls config, expected '{name}' to be a list of {wanted}")
    found: list[tuple[str, ConfigNode]] = []
    for item in node.value:
        if not isinstance(item.value, str):
            raise FieldError(str(mismatch(item, "string")), item)
        found.append((item.value, item))
    return found


def _pinned_certs(_reader: Reader, node: ConfigNode, tls: TlsOptions) -> None:
    wanted = "hex-encoded sha256 of DER encoded SubjectPublicKeyInfo"
    for text, item in _strings(node, "pinned_certs", wanted):
        pin = text.lower()
        if not _PIN.fullmatch(pin):
            text = f"error parsing tls config, 'pinned_certs' key {pin} does not look like {wanted}"
            raise FieldError(text, item)
        tls.pinned_certs.append(pin)


def _cipher_suites(_reader: Reader, node: ConfigNode, tls: TlsOptions) -> None:
    for name, item in _strings(node, "cipher_suites", "names"):
        if problem := problem_of_suite(name):
            raise FieldError(problem, item)
        tls.cipher_suites.append(name)
    if not tls.cipher_suites:
        raise FieldError("error parsing tls config, 'cipher_suites' cannot be empty")


def _curve_preferences(_reader: Reader, node: ConfigNode, tls: TlsOptions) -> None:
    """Python's ssl takes one curve (its `set_ecdh_curve`), and allowing more than was named is no option."""
    for name, item in _strings(node, "curve_preferences", "names"):
        if name in HYBRID_CURVES:
            raise FieldError(f"curve preference {name} is not supported: its key exchange cannot be chosen here", item)
        if name not in CURVES:
            raise FieldError(f"unrecognized curve preference {name}", item)
        if tls.curve_preferences:
            raise FieldError("several curve_preferences are not supported, name one", item)
        tls.curve_preferences.append(name)
    if not tls.curve_preferences:
        raise FieldError("error parsing tls config, 'curve_preferences' cannot be empty")


def _certs(reader: Reader, node: ConfigNode, tls: TlsOptions) -> None:
    """One pair is what `cert_file` and `key_file` are; which of several to show is not to be said to Python's ssl."""
    if not isinstance(node.value, list):
        raise FieldError("error parsing certificates config: unsupported type map[string]interface {}")
    if len(node.value) != 1:
        raise FieldError("several certs are not supported, use one pair, or cert_file and key_file")
    (item,) = node.value
    pair = TlsOptions()
    unknown = 'error parsing tls certs config, unknown field "{key}"'
    names: Fields = {"cert_file": ("cert_file", _file), "key_file": ("key_file", _file)}
    before = len(reader.errors)
    reader.block(as_map(item, "certs"), pair, names, path="tls.certs", unknown=unknown, variables=False)
    if len(reader.errors) == before and not (pair.cert_file and pair.key_file):
        text = "error parsing certificates config: both 'cert_file' and 'cert_key' options are required"
        raise FieldError(text, next(reversed(list(as_map(item, "certs").values())), item))
    tls.cert_file = tls.cert_file or pair.cert_file
    tls.key_file = tls.key_file or pair.key_file


def _off_only(name: str) -> Any:
    def read(_reader: Reader, node: ConfigNode, _target: Any) -> None:
        if node.value is not False:
            raise FieldError(f"{name} is not supported: certificates are not checked with OCSP")

    return read


_FIELDS: Fields = {
    "cert_file": ("cert_file", _file),
    "key_file": ("key_file", _file),
    "ca_file": ("ca_file", _file),
    "timeout": ("timeout", _timeout),
    "min_version": ("min_version", _min_version),
    "insecure": ("insecure", _bool),
    "allow_insecure_cipher_suites": ("allow_insecure_cipher_suites", _bool),
    "connection_rate_limit": ("connection_rate_limit", _rate),
}
_WINDOWS = ("cert_store", "cert_match", "cert_match_by", "cert_match_skip_invalid", "ca_certs_match")
_BLOCKS: Blocks = {
    **dict.fromkeys(("handshake_first", "first", "immediate"), _handshake_first),
    "verify": _verify,
    "verify_and_map": _verify_and_map,
    "pinned_certs": _pinned_certs,
    "cipher_suites": _cipher_suites,
    "curve_preferences": _curve_preferences,
    **dict.fromkeys(("certs", "certificates"), _certs),
    **{name: refuse(f"{name} is not supported: it is of the certificate store of Windows") for name in _WINDOWS},
    "ocsp_peer": _off_only("ocsp_peer"),
}
_OF_CLIENTS: Blocks = {
    **_BLOCKS,
    "verify_cert_and_check_known_urls": refuse("verify_cert_and_check_known_urls not supported in this context"),
}
_OF_ROUTES: Blocks = {**_BLOCKS, "verify_cert_and_check_known_urls": _check_known_urls}


# --- blocks -----------------------------------------------------------------------------------------------------------


def read_tls(reader: Reader, node: ConfigNode, options: Options) -> None:
    options.tls = _parse(reader, node, _OF_CLIENTS)


def read_port_tls(reader: Reader, node: ConfigNode, target: WebSocketOptions) -> None:
    """The `tls` block of a port of its own for clients."""
    target.tls = _parse(reader, node, _OF_CLIENTS)
    if not target.tls.cert_file:
        raise FieldError("tls of a port needs cert_file and key_file", node)


def read_link_tls(reader: Reader, node: ConfigNode, target: ClusterOptions | LeafOptions | LeafRemoteOptions) -> None:
    """The `tls` block of links between servers; who accepts them must have a certificate."""
    of_routes = isinstance(target, ClusterOptions)
    target.tls = _parse(reader, node, _OF_ROUTES if of_routes else _OF_CLIENTS)
    if target.tls.insecure:
        reader.notes.append("tls insecure: the other end's certificate is not checked")
    if not target.tls.cert_file and not isinstance(target, LeafRemoteOptions):
        raise FieldError("tls of a port needs cert_file and key_file", node)
    _try_to_load(target.tls, accepting=False)


def _parse(reader: Reader, node: ConfigNode, blocks: Blocks) -> TlsOptions:
    tls = TlsOptions()
    unknown = 'error parsing tls config, unknown field "{key}"'
    pairs = as_map(node, "tls")
    before = len(reader.errors)
    # The real server knows no variable definitions in this one block.
    reader.block(pairs, tls, _FIELDS, blocks, path="tls", unknown=unknown, variables=False)
    if len(reader.errors) > before:
        return tls
    names = {key.lower() for key in pairs}
    if "cert_file" in names and names & {"certs", "certificates"}:
        raise FieldError("error parsing tls config, cannot combine 'cert_file' option with 'certs' option")
    if tls.cert_file and not tls.key_file:
        raise FieldError("missing 'key_file' in TLS configuration")
    if tls.key_file and not tls.cert_file:
        raise FieldError("missing 'cert_file' in TLS configuration")
    insecure = [name for name in tls.cipher_suites if is_insecure(name)]
    if insecure and not tls.allow_insecure_cipher_suites:
        raise FieldError(
            "insecure cipher suites configured without 'allow_insecure_cipher_suites' option set: "
            f"{', '.join(insecure)}"
        )
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
