"""Options of one end of TLS connections, of a `tls` block or of flags, and the names that they may use.

Cipher suites and curves have Go's names in configurations and monitoring, and OpenSSL's in the library:
`TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` is `ECDHE-RSA-AES128-GCM-SHA256` there. Suites of TLS 1.3 have one name. They
cannot be chosen, neither by nats-server nor here: naming them only rules out all of TLS 1.2.
"""

from __future__ import annotations

from dataclasses import field

from jetcluster.records import dataclass


@dataclass(slots=True)
class TlsOptions:
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    verify: bool = False
    verify_and_map: bool = False
    """The certificate says which user comes; `verify` is on then."""
    check_known_urls: bool = False
    """Routes only: the other end's certificate must name a host of the configured routes; `verify` is on then."""
    pinned_certs: list[str] = field(default_factory=list)
    """SHA-256 of public keys (DER SubjectPublicKeyInfo), lower case hex; one of them must come. Empty: any may."""
    timeout: float = 2.0
    handshake_first: bool = False
    fallback_delay: float = 0.0
    """With `handshake_first`: seconds without a TLS hello after which INFO goes out in clear; 0: never."""
    insecure: bool = False
    """The connecting end does not verify the other one. For links between servers only."""
    min_version: str = ""
    """"1.2" or "1.3"; empty: 1.2."""
    cipher_suites: list[str] = field(default_factory=list)
    """Go's names; empty: the library's default."""
    allow_insecure_cipher_suites: bool = False
    curve_preferences: list[str] = field(default_factory=list)
    """Go's name, one; empty: the library's default."""
    connection_rate_limit: int = 0
    """TLS connections of clients per second; 0: any number."""


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
"""Names of suites that OpenSSL 3 has no longer."""
_OPENSSL = {**_SECURE, **_INSECURE}
_GO = {openssl: go for go, openssl in _OPENSSL.items()}

CURVES = {"X25519": "X25519", "CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1"}
HYBRID_CURVES = frozenset({"SecP384r1MLKEM1024", "SecP256r1MLKEM768", "X25519MLKEM768"})
"""Post-quantum exchanges that nats-server knows."""


def problem_of_suite(name: str) -> str:
    """Why `name` cannot be had, "" when it can."""
    if name in _GONE:
        return f"cipher {name} is not in this machine's TLS library any more"
    return "" if name in SUITES_1_3 or name in _OPENSSL else f"unrecognized cipher {name}"


def is_insecure(name: str) -> bool:
    return name in _INSECURE or name in _GONE


def openssl_suites(names: list[str]) -> str:
    """For `SSLContext.set_ciphers`; "" when all of them are of TLS 1.3."""
    return ":".join(_OPENSSL[name] for name in names if name in _OPENSSL)


def go_suite(openssl: str) -> str:
    """As /connz shows it."""
    return _GO.get(openssl, openssl)
