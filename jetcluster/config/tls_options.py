"""Options of one end of TLS connections, from a `tls` block or flags, and the names of cipher suites and curves.

Configurations and monitoring use Go's names, the library uses OpenSSL's: `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` is
`ECDHE-RSA-AES128-GCM-SHA256`. Suites of TLS 1.3 have one name. They cannot be chosen, neither in nats-server nor here:
a list that names only them rules out TLS 1.2.
"""

from __future__ import annotations

from dataclasses import field

from jetcluster.records import dataclass


@dataclass(slots=True)
class TlsOptions:
    """One `tls` block."""

    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    verify: bool = False
    verify_optional: bool = False
    """`verify: optional`: the other end may connect without a certificate; one that it shows must be valid."""
    verify_and_map: bool = False
    """The certificate names the user; `verify` is then on."""
    check_known_urls: bool = False
    """Routes only: the other end's certificate must name a host of the configured routes; `verify` is then on."""
    pinned_certs: list[str] = field(default_factory=list)
    """SHA-256 of the public keys (DER SubjectPublicKeyInfo) that are accepted, lower case hex; empty: all."""
    timeout: float = 2.0
    """Seconds that the handshake may take."""
    handshake_first: bool = False
    fallback_delay: float = 0.0
    """With `handshake_first`: seconds without a TLS ClientHello after which INFO is sent unencrypted; 0: never."""
    insecure: bool = False
    """The connecting end does not verify the other one; only for links between servers."""
    min_version: str = ""
    """"1.2" or "1.3"; empty: 1.2."""
    cipher_suites: list[str] = field(default_factory=list)
    """Go's names; empty: the library's default."""
    allow_insecure_cipher_suites: bool = False
    curve_preferences: list[str] = field(default_factory=list)
    """At most one of Go's names; empty: the library's default."""
    connection_rate_limit: int = 0
    """TLS connections of clients per second; 0: unlimited."""


SUITES_1_3 = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})

_SECURE = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
}
_INSECURE = {
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
}
_GONE = frozenset(
    {
        "TLS_RSA_WITH_RC4_128_SHA",
        "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
        "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
        "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
        "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    }
)
"""Suites that OpenSSL 3 no longer has."""
_OPENSSL = {**_SECURE, **_INSECURE}
_GO = {openssl: go for go, openssl in _OPENSSL.items()}

CURVES = {"X25519": "X25519", "CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1"}
HYBRID_CURVES = frozenset({"SecP384r1MLKEM1024", "SecP256r1MLKEM768", "X25519MLKEM768"})
"""Post-quantum key exchanges that nats-server accepts."""


def problem_of_suite(name: str) -> str:
    """Returns the error text for a suite that cannot be used; "" for one that can."""
    if name in _GONE:
        return f"cipher {name} is not in this machine's TLS library any more"
    return "" if name in SUITES_1_3 or name in _OPENSSL else f"unrecognized cipher {name}"


def is_insecure(name: str) -> bool:
    return name in _INSECURE or name in _GONE


def openssl_suites(names: list[str]) -> str:
    """Returns the text for `SSLContext.set_ciphers`; "" when all suites are TLS 1.3's."""
    return ":".join(_OPENSSL[name] for name in names if name in _OPENSSL)


def go_suite(openssl: str) -> str:
    """Returns Go's name, which /connz shows."""
    return _GO.get(openssl, openssl)
