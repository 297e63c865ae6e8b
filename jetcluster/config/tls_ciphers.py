"""Cipher suites and curves: Go's names, which configurations and monitoring use, and OpenSSL's.

`TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` is `ECDHE-RSA-AES128-GCM-SHA256` there. Suites of TLS 1.3 have one name. They
cannot be chosen, neither by nats-server nor here: naming them only rules out all of TLS 1.2.
"""

from __future__ import annotations

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
