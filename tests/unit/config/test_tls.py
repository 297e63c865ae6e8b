"""TLS contexts of links between servers, and TLS errors in words for the log."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from jetcluster.config.lexer import ConfigError
from jetcluster.config.tls import client_context, handshake_failure, load_certificate, name_to_check, server_context
from jetcluster.config.tls_options import TlsOptions
from testkit.certificates import Authority


def test_who_is_asked_for_a_certificate(tmp_path: Path) -> None:
    cert, key = map(str, Authority(tmp_path).issue("a"))
    plain = TlsOptions(cert_file=cert, key_file=key)
    assert server_context(plain).verify_mode == ssl.CERT_NONE
    assert server_context(plain, mutual=True).verify_mode == ssl.CERT_REQUIRED
    assert server_context(TlsOptions(cert_file=cert, key_file=key, verify=True)).verify_mode == ssl.CERT_REQUIRED
    connecting = client_context(TlsOptions())
    assert connecting.verify_mode == ssl.CERT_REQUIRED
    assert connecting.check_hostname
    assert client_context(TlsOptions(insecure=True)).verify_mode == ssl.CERT_NONE
    assert client_context(TlsOptions(min_version="1.3")).minimum_version == ssl.TLSVersion.TLSv1_3


def test_files_that_are_not_there(tmp_path: Path) -> None:
    cert, key = map(str, Authority(tmp_path).issue("a"))
    with pytest.raises(ConfigError, match="open x: no such file or directory"):
        server_context(TlsOptions(cert_file="x", key_file="y"))
    with pytest.raises(ConfigError, match="error loading CA file: open x"):
        client_context(TlsOptions(ca_file="x"))
    context = server_context(TlsOptions(cert_file=cert, key_file=key))
    with pytest.raises(ConfigError, match="X509 certificate/key pair"):
        load_certificate(context, TlsOptions(cert_file=key, key_file=cert))


def test_whose_name_a_certificate_must_have() -> None:
    assert name_to_check("hub-0", ["10.0.0.1", "hub"]) == "hub-0"
    assert name_to_check("10.0.0.7", ["10.0.0.1", "hub"]) == "hub"
    assert name_to_check("[::1]", ["hub"]) == "hub"
    assert name_to_check("10.0.0.7", ["10.0.0.1"]) == "10.0.0.7"


def test_words_for_the_log() -> None:
    assert handshake_failure(ConnectionResetError()) == "the other end closed the connection"
    assert handshake_failure(TimeoutError()) == "not completed in time"
    error = ssl.SSLCertVerificationError()
    error.verify_message = "certificate has expired"
    assert handshake_failure(error) == "the other end's certificate is refused: certificate has expired"
    for library in ("SSLV3", "SSL/TLS"):  # OpenSSL before 3.2, and since
        error = ssl.SSLError(1, "an alert")
        error.reason = f"{library}_ALERT_BAD_CERTIFICATE"
        assert handshake_failure(error) == "the other end does not accept this one's certificate; is it over?"
