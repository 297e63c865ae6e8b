"""The `tls` blocks of client ports, routes and leaf links.

A key that would weaken security if it were silently ignored is refused by name.
"""

from __future__ import annotations

import re

from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import ClusterOptions, LeafOptions, LeafRemoteOptions, Options, WebSocketOptions
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import (
    FieldError,
    Reader,
    Seconds,
    as_bool,
    as_list,
    as_map,
    as_string,
    parse_duration,
    texts_with_places,
    wrong_type,
)
from jetcluster.config.tls_options import CURVES, HYBRID_CURVES, TlsOptions, is_insecure, problem_of_suite

FALLBACK_DELAY_SECONDS = 0.05
"""Wait of `handshake_first: auto` for a TLS ClientHello."""
_PIN = re.compile(r"[0-9a-f]{64}")


def as_tls_timeout(_reader: Reader, name: str, node: ConfigNode) -> Seconds:
    if isinstance(node.value, bool) or not isinstance(node.value, int | float | str):
        raise wrong_type(name, node, "a duration")
    if not isinstance(node.value, str):
        return float(node.value)
    try:
        return parse_duration(node.value)
    except ValueError as error:
        raise FieldError(f"error parsing tls config, 'timeout' {error}") from error


def as_tls_version(reader: Reader, name: str, node: ConfigNode) -> str:
    version = as_string(reader, name, node)
    if version in ("1.0", "1.1"):
        raise FieldError(f"error parsing tls config: unsupported TLS version: TLS {version}")
    if version not in ("1.2", "1.3"):
        raise FieldError(f"error parsing tls config: unknown version: {version}")
    return version


def read_handshake_first(_reader: Reader, node: ConfigNode, tls: TlsOptions) -> None:
    """Reads `true`, or how long the server waits for a TLS ClientHello before it sends INFO unencrypted: `auto` or a
    duration."""
    value = node.value
    if isinstance(value, bool):
        tls.handshake_first = value
        return
    if not isinstance(value, str):
        raise wrong_type("handshake_first", node, "a boolean or a string")
    word = value.lower()
    tls.handshake_first = word not in ("false", "off")
    if word in ("auto", "auto_fallback"):
        tls.fallback_delay = FALLBACK_DELAY_SECONDS
    elif word not in ("true", "on", "false", "off"):
        try:
            tls.fallback_delay = parse_duration(value)
        except ValueError as error:
            raise FieldError(f'field "handshake_first"\'s value "{value}" is invalid') from error


def read_verify_and_map(reader: Reader, node: ConfigNode, tls: TlsOptions) -> None:
    tls.verify_and_map = as_bool(reader, "verify_and_map", node)
    tls.verify = tls.verify or tls.verify_and_map


def read_check_known_urls(reader: Reader, node: ConfigNode, tls: TlsOptions) -> None:
    tls.check_known_urls = as_bool(reader, "verify_cert_and_check_known_urls", node)
    tls.verify = tls.verify or tls.check_known_urls


def read_verify(_reader: Reader, node: ConfigNode, tls: TlsOptions) -> None:
    value = node.value
    if isinstance(value, str) and value.lower() == "optional":
        tls.verify_optional, value = True, False
    if not isinstance(value, bool):
        raise FieldError("error parsing tls config, expected 'verify' to be a boolean or 'optional'")
    tls.verify = value or tls.verify_and_map or tls.check_known_urls


def _strings(name: str, node: ConfigNode) -> list[tuple[str, ConfigNode]]:
    as_list(node, name)
    return texts_with_places(name, node)


def as_pinned_certs(_reader: Reader, name: str, node: ConfigNode) -> list[str]:
    found = [(text.lower(), item) for text, item in _strings(name, node)]
    for pin, item in found:
        if not _PIN.fullmatch(pin):
            wanted = "hex-encoded sha256 of DER encoded SubjectPublicKeyInfo"
            text = f"error parsing tls config, 'pinned_certs' key {pin} does not look like {wanted}"
            raise FieldError(text, item)
    return [pin for pin, _ in found]


def as_cipher_suites(_reader: Reader, name: str, node: ConfigNode) -> list[str]:
    found = _strings(name, node)
    for suite, item in found:
        if problem := problem_of_suite(suite):
            raise FieldError(problem, item)
    if not found:
        raise FieldError("error parsing tls config, 'cipher_suites' cannot be empty")
    return [suite for suite, _ in found]


def as_curve_preferences(_reader: Reader, name: str, node: ConfigNode) -> list[str]:
    """Returns one curve, since Python's `set_ecdh_curve` takes only one; allowing others would weaken security."""
    found: list[str] = []
    for curve, item in _strings(name, node):
        if curve in HYBRID_CURVES:
            raise FieldError(f"curve preference {curve} is not supported: its key exchange cannot be chosen here", item)
        if curve not in CURVES:
            raise FieldError(f"unrecognized curve preference {curve}", item)
        if found:
            raise FieldError("several curve_preferences are not supported, name one", item)
        found.append(curve)
    if not found:
        raise FieldError("error parsing tls config, 'curve_preferences' cannot be empty")
    return found


def read_certs(reader: Reader, node: ConfigNode, tls: TlsOptions) -> None:
    """Reads one pair of `cert_file` and `key_file`; Python's ssl cannot choose among several."""
    items = as_list(node, "certs")
    if len(items) != 1:
        raise FieldError("several certs are not supported, use one pair, or cert_file and key_file")
    (item,) = items
    pair, pairs = TlsOptions(), as_map(item, "certs", element=True)
    if reader.block(pairs, pair, "tls.certs") and not (pair.cert_file and pair.key_file):
        text = "error parsing certificates config: both 'cert_file' and 'cert_key' options are required"
        raise FieldError(text, next(reversed(list(pairs.values())), item))
    tls.cert_file = tls.cert_file or pair.cert_file
    tls.key_file = tls.key_file or pair.key_file


def refuse_ocsp_peer(_reader: Reader, node: ConfigNode, _tls: TlsOptions) -> None:
    if node.value is not False:
        raise FieldError("ocsp_peer is not supported: certificates are not checked with OCSP")


def read_tls(reader: Reader, node: ConfigNode, options: Options) -> None:
    options.tls = _parse(reader, node, "tls")


def read_port_tls(reader: Reader, node: ConfigNode, target: WebSocketOptions) -> None:
    """Reads the `tls` block of an additional port for clients."""
    target.tls = _parse(reader, node, "tls")
    if not target.tls.cert_file:
        raise FieldError("tls of a port needs cert_file and key_file", node)


def read_link_tls(reader: Reader, node: ConfigNode, target: ClusterOptions | LeafOptions | LeafRemoteOptions) -> None:
    """Reads the `tls` block of links between servers; the accepting end must have a certificate."""
    of_routes = isinstance(target, ClusterOptions)
    target.tls = _parse(reader, node, "cluster.tls" if of_routes else "tls")
    if target.tls.insecure:
        reader.notes.append("tls insecure: the other end's certificate is not checked")
    if not target.tls.cert_file and not isinstance(target, LeafRemoteOptions):
        raise FieldError("tls of a port needs cert_file and key_file", node)
    _try_to_load(target.tls, accepting=False)


def _parse(reader: Reader, node: ConfigNode, block: str) -> TlsOptions:
    tls = TlsOptions()
    pairs = as_map(node, "tls")
    if not reader.block(pairs, tls, block, path="tls"):
        return tls
    if tls.verify and tls.verify_optional:
        raise FieldError(
            "error parsing tls config, cannot combine 'verify: optional' with options requiring client certificates"
        )
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
    """Loads the files once, for their errors; `ssl` is imported only where TLS is used."""
    from jetcluster.config.tls import client_context, server_context

    try:
        (server_context if accepting else client_context)(tls)
    except ConfigError as error:
        raise FieldError(str(error)) from error
