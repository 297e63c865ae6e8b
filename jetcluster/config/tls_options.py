"""Options of one end of TLS connections: a `tls` block of a configuration file, or the flags that stand for it."""

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
