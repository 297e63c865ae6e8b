"""Errors of `tls` blocks: nats-server's texts and places, and what is refused by name. Those of `SAME` are compared
with nats-server's own (tests/interop/test_tls_block.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from jetcluster.config.tls_options import TlsOptions
from testkit.certificates import Authority, subject
from tests.unit.config.oracle_differences import without_types

PIN = "hex-encoded sha256 of DER encoded SubjectPublicKeyInfo"
SAME: list[tuple[str, int, str]] = [
    # added to `tls { cert_file: "c.pem", key_file: "k.pem", `, column, text: nats-server's, too
    ('pinned_certs: "x"', 45, f"error parsing tls config, expected 'pinned_certs' to be a list of {PIN}"),
    ('pinned_certs: [ "abc" ]', 62, f"error parsing tls config, 'pinned_certs' key abc does not look like {PIN}"),
    ("pinned_certs: [ 1 ]", 61, "interface conversion: interface {} is int64, not string"),
    ("cipher_suites: []", 45, "error parsing tls config, 'cipher_suites' cannot be empty"),
    ("cipher_suites: [X]", 61, "unrecognized cipher X"),
    (
        "cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]", 0,
        "insecure cipher suites configured without 'allow_insecure_cipher_suites' option set: "
        "TLS_RSA_WITH_AES_128_CBC_SHA",
    ),
    ("curve_preferences: []", 45, "error parsing tls config, 'curve_preferences' cannot be empty"),
    ("curve_preferences: [X]", 65, "unrecognized curve preference X"),
    ('min_version: "1.1"', 45, "error parsing tls config: unsupported TLS version: TLS 1.1"),
    ('min_version: "1"', 45, "error parsing tls config: unknown version: 1"),
    ("min_version: 1.2", 45, "error parsing tls config: 'min_version' wrong type: 1.2"),
    ('handshake_first: "zzz"', 45, 'field "handshake_first"\'s value "zzz" is invalid'),
    ("handshake_first: 1", 45, 'field "handshake_first" should be a boolean or a string, got int64'),
    ("verify_cert_and_check_known_urls: true", 45, "verify_cert_and_check_known_urls not supported in this context"),
    ('connection_rate_limit: "x"', 45, "error parsing tls config, 'connection_rate_limit' wrong type"),
    ("certs: [ {cert_file: a} ]", 55,
     "error parsing certificates config: both 'cert_file' and 'cert_key' options are required"),
    ("certs: [ {cert_file: a, key_file: b, x: y} ]", 82, 'error parsing tls certs config, unknown field "x"'),
    ("certs: 1", 45, "error parsing certificates config: unsupported type map[string]interface {}"),
    ("timeout: true", 45, "error parsing tls config, 'timeout' wrong type"),
    ("verify_and_map: 1", 45, "error parsing tls config, expected 'verify_and_map' to be a boolean"),
    ("insecure: 1", 45, "error parsing tls config, expected 'insecure' to be a boolean"),
    ("ca_file: 1", 45, "error parsing tls config, expected 'ca_file' to be filename"),
    ("zip: 1", 45, 'error parsing tls config, unknown field "zip"'),
]  # fmt: skip
OURS: list[tuple[str, int, str]] = [
    # of nats-server 2.15.3; the one of these tests is older
    ("verify: 1", 45, "error parsing tls config, expected 'verify' to be a boolean or 'optional'"),
    ("verify: maybe", 45, "error parsing tls config, expected 'verify' to be a boolean or 'optional'"),
    ("cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]", 61,
     "cipher TLS_RSA_WITH_RC4_128_SHA is not in this machine's TLS library any more"),
    ("curve_preferences: [X25519, CurveP256]", 73, "several curve_preferences are not supported, name one"),
    ("curve_preferences: [X25519MLKEM768]", 65,
     "curve preference X25519MLKEM768 is not supported: its key exchange cannot be chosen here"),
    ("ocsp_peer: true", 45, "ocsp_peer is not supported: certificates are not checked with OCSP"),
    ("ocsp_peer: { verify: true }", 45, "ocsp_peer is not supported: certificates are not checked with OCSP"),
    *(
        (f"{name}: x", 45, f"{name} is not supported: it is of the certificate store of Windows")
        for name in ("cert_store", "cert_match", "cert_match_by", "cert_match_skip_invalid", "ca_certs_match")
    ),
]  # fmt: skip


def block(text: str) -> str:
    return f'tls {{ cert_file: "c.pem", key_file: "k.pem", {text} }}\n'


def write(folder: Path, text: str) -> Path:
    cert, key = Authority(folder).issue("x")
    (folder / "c.pem").write_bytes(cert.read_bytes())
    (folder / "k.pem").write_bytes(key.read_bytes())
    (folder / "c.conf").write_text(block(text))
    return folder / "c.conf"


def load(folder: Path, text: str) -> TlsOptions:
    write(folder, text)
    options, _ = load_file("c.conf", {})
    assert options.tls is not None
    return options.tls


@pytest.mark.parametrize(("text", "column", "error"), [*SAME, *OURS], ids=lambda value: str(value)[:40])
def test_errors(tmp_path: Path, text: str, column: int, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert without_types(str(caught.value)) == without_types(f"c.conf:1:{column}: {error}\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"verify": False, "handshake_first": False, "timeout": 2.0}),
        ("verify_and_map: true", {"verify": True, "verify_and_map": True}),
        ("verify_and_map: true, verify: false", {"verify": True}),
        ("verify: Optional", {"verify": False, "verify_optional": True}),
        ("verify: false, verify_and_map: true", {"verify": True}),
        ("handshake_first: auto", {"handshake_first": True, "fallback_delay": 0.05}),
        ('first: "300ms"', {"handshake_first": True, "fallback_delay": 0.3}),
        ("immediate: on", {"handshake_first": True, "fallback_delay": 0.0}),
        ("handshake_first: off", {"handshake_first": False}),
        ('timeout: "1.5s"', {"timeout": 1.5}),
        ("connection_rate_limit: 7", {"connection_rate_limit": 7}),
        (f'pinned_certs: ["{"AB" * 32}"]', {"pinned_certs": ["ab" * 32]}),
        ("cipher_suites: [TLS_AES_128_GCM_SHA256]", {"cipher_suites": ["TLS_AES_128_GCM_SHA256"]}),
        ("ocsp_peer: false", {}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_values(tmp_path: Path, text: str, expected: dict[str, object]) -> None:
    tls = load(tmp_path, text)
    assert {name: getattr(tls, name) for name in expected} == expected


def test_one_pair_in_certs_is_as_without(tmp_path: Path) -> None:
    write(tmp_path, "")
    (tmp_path / "c.conf").write_text("tls { certs: [ { cert_file: c.pem, key_file: k.pem } ] }\n")
    options, _ = load_file("c.conf", {})
    assert options.tls is not None
    assert (options.tls.cert_file, options.tls.key_file) == ("c.pem", "k.pem")


def test_an_encrypted_key_is_an_error_and_no_question(tmp_path: Path) -> None:
    cert, key = Authority(tmp_path).issue_to("x", subject(("CN", "x")), password=b"secret")
    (tmp_path / "c.conf").write_text(f'tls {{ cert_file: "{cert.name}", key_file: "{key.name}" }}\n')
    with pytest.raises(ConfigError, match=r"c\.conf:1:0: .*: the key in x-key\.pem is encrypted"):
        load_file("c.conf", {})
