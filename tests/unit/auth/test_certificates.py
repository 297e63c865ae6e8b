"""Names of certificates (auth/certificates.py); the order of the look-up is in tests/unit/server/tls_cases.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate

from jetcluster.auth.certificates import (
    CertificateError,
    PeerCertificate,
    check_pin,
    names_host,
    parse_dn,
    read_certificate,
    route_check,
)
from testkit.certificates import Authority, pin_of, subject


def parts(*rdns: dict[str, str]) -> tuple[frozenset[tuple[str, str]], ...]:
    return tuple(frozenset(rdn.items()) for rdn in rdns)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CN=a", parts({"CN": "a"})),
        ("cn = a , O= b c ", parts({"CN": "a"}, {"O": "b c"})),
        ("CN=a+OU=b,O=c", parts({"CN": "a", "OU": "b"}, {"O": "c"})),
        (r"CN=a\, b\ ,O=\#x", parts({"CN": "a, b "}, {"O": "#x"})),
        (r"CN=\c3\a9", parts({"CN": "é"})),
        ("CN=a=b", parts({"CN": "a=b"})),
        ("", None),
        ("ann", None),
        ("=a", None),
        ("CN=a,b", None),
        ("CN=#0403", None),
        ("CN=a\\", None),
        ("CN=a\\zz", None),
        ("CN=a\\1", None),
    ],
)
def test_distinguished_names(text: str, expected: object) -> None:
    assert parse_dn(text) == expected


def test_a_subject_as_go_writes_it(tmp_path: Path) -> None:
    file, _ = Authority(tmp_path).issue_to(
        "x",
        subject(
            ("C", "DE"), ("O", "A"), ("O", "B"), ("OU", 'say "x"'), ("CN", "first"), ("CN", " #last "),
            ("DC", "com"), ("emailAddress", "ä@b"), ("SERIALNUMBER", "7"),
        ),
    )  # fmt: skip
    der = load_pem_x509_certificate(file.read_bytes()).public_bytes(Encoding.DER)
    found = read_certificate(der)
    assert found.subject == 'SERIALNUMBER=7,CN=\\ #last\\ ,OU=say \\"x\\",O=A+O=B,C=DE'
    assert found.domain_components == "DC=com"
    assert found.dn is None  # an e-mail address has no name there
    assert found.full_subject == found.subject + (
        ",1.2.840.113549.1.9.1=#0c04c3a44062,0.9.2342.19200300.100.1.25=#1303636f6d"
    )
    assert found.key_digest == pin_of(file)
    with pytest.raises(CertificateError, match="cannot be read"):
        read_certificate(b"rotten")


def test_pins() -> None:
    one = PeerCertificate(key_digest="aa")
    check_pin(one, ["bb", "aa"])
    check_pin(None, [])
    for certificate in (one, None):
        with pytest.raises(CertificateError, match="not pinned"):
            check_pin(certificate, ["bb"])


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("n1.example.com", True),
        ("N1.Example.com", True),
        ("*.example.com", True),
        ("*.n1.example.com", False),
        ("*.com", False),
        ("n2.example.com", False),
        ("n*.example.com", False),
    ],
)
def test_hosts_that_are_known(name: str, known: bool) -> None:
    assert names_host(PeerCertificate(dns_names=("z", name)), ["n1.example.com"]) is known


def test_who_may_be_a_route() -> None:
    urls = ["nats-route://n1.example.com:6222", "nats://u:p@n2.example.com:6222"]
    check = route_check(["aa"], urls, "CN=route")
    check(PeerCertificate(key_digest="aa", dns_names=("n2.example.com",)), True)
    check(PeerCertificate(key_digest="aa", subject="CN=route"), True)
    check(PeerCertificate(key_digest="aa"), False)  # this end has chosen whom to call
    for certificate in (None, PeerCertificate(key_digest="bb", dns_names=("n2.example.com",))):
        with pytest.raises(CertificateError, match="not pinned"):
            check(certificate, False)
    for certificate in (PeerCertificate(key_digest="aa"), PeerCertificate(key_digest="aa", dns_names=("n3",))):
        with pytest.raises(CertificateError, match="nobody"):
            check(certificate, True)
    route_check([], None, None)(None, True)
