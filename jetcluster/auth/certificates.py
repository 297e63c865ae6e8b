"""The user that a client certificate names, and the check against pinned certificates.

The names of a certificate are tried in this order until one is a user's: e-mail addresses, DNS names and URIs of the
subject alternative names; the distinguished name, its parts in any order (RFC 4514); the subject as Go's pkix writes
it, with the domain components appended; the same without them.

The module is imported only where TLS needs it: `cryptography` costs 50 ms of a cold start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from jetcluster.errors import PeerError

if TYPE_CHECKING:
    import asyncio

_DC = "0.9.2342.19200300.100.1.25"
_DN_TYPES = {
    "2.5.4.3": "CN",
    "2.5.4.5": "SERIALNUMBER",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.17": "POSTALCODE",
    _DC: "DC",
}
_GO_ORDER = ("2.5.4.5", "2.5.4.3", "2.5.4.17", "2.5.4.9", "2.5.4.8", "2.5.4.7", "2.5.4.11", "2.5.4.10", "2.5.4.6")
"""Attributes of a subject that Go's pkix.Name keeps, in the order in which it writes them."""
_SINGLE = frozenset({"2.5.4.5", "2.5.4.3"})
"""Attributes that a pkix.Name has once: the last of several counts."""
_PRINTABLE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 '()+,-./:=?")
"""The characters of ASN.1's PrintableString."""
_ESCAPED = frozenset(',+"\\<>;')

Rdn = frozenset[tuple[str, str]]
"""Attributes of one part of a distinguished name: (type in upper case, value)."""


class CertificateError(PeerError):
    """The other end's certificate is not accepted."""


@dataclass(slots=True, frozen=True)
class PeerCertificate:
    """A certificate of the other end, after the TLS library has verified it."""

    emails: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    dn: tuple[Rdn, ...] | None = None
    """Parts of the subject, the last one first; None when an attribute has no name in RFC 4514."""
    domain_components: str = ""
    """`DC=foo,DC=com`, in the certificate's order."""
    subject: str = ""
    """The subject as Go writes it, with only the attributes that Go names."""
    full_subject: str = ""
    """The subject with all attributes, as monitoring shows it."""
    key_digest: str = ""
    """SHA-256 of the DER SubjectPublicKeyInfo in hex, as in `pinned_certs`."""
    digest: str = ""
    """SHA-256 of the certificate, hex."""

    def names(self) -> Iterator[str]:
        """Yields the names that are looked up literally before the distinguished name."""
        yield from self.emails
        yield from self.dns_names
        yield from self.uris

    def subjects(self) -> Iterator[str]:
        """Yields the names that are looked up literally after the distinguished name."""
        if self.domain_components:
            yield f"{self.subject},{self.domain_components}"
        yield self.subject


def read_certificate(der: bytes) -> PeerCertificate:
    """Reads a DER certificate. Raises CertificateError."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        alternatives = _alternatives(certificate)
        rdns = [[(one.oid.dotted_string, str(one.value)) for one in rdn] for rdn in certificate.subject.rdns]
        key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except ValueError as error:
        raise CertificateError(f"the certificate cannot be read: {error}") from error
    return PeerCertificate(
        emails=tuple(alternatives.get_values_for_type(x509.RFC822Name)) if alternatives else (),
        dns_names=tuple(alternatives.get_values_for_type(x509.DNSName)) if alternatives else (),
        uris=tuple(alternatives.get_values_for_type(x509.UniformResourceIdentifier)) if alternatives else (),
        dn=_distinguished_name(rdns),
        domain_components=",".join(f"DC={value}" for rdn in rdns for oid, value in rdn if oid == _DC),
        subject=_go_subject(rdns),
        full_subject=",".join(filter(None, (_go_subject(rdns), *_go_extras(rdns)))),
        key_digest=hashlib.sha256(key).hexdigest(),
        digest=hashlib.sha256(der).hexdigest(),
    )


def certificate_of(transport: asyncio.BaseTransport) -> PeerCertificate | None:
    """Returns the other end's certificate; None without one or without TLS. Raises CertificateError."""
    session = transport.get_extra_info("ssl_object")
    der = session.getpeercert(binary_form=True) if session is not None else None
    return read_certificate(der) if der else None


def chain_of(transport: asyncio.BaseTransport) -> list[PeerCertificate]:
    """Returns all certificates that the other end has sent, its own first; only its own before Python 3.13. Raises
    CertificateError."""
    session = transport.get_extra_info("ssl_object")
    if session is not None and hasattr(session, "get_unverified_chain"):
        return [read_certificate(der) for der in session.get_unverified_chain() or ()]
    own = certificate_of(transport)
    return [] if own is None else [own]


def user_of(certificate: PeerCertificate, users: Collection[str]) -> str | None:
    """Returns the user whom the certificate names, among the `users` allowed on this type of connection; or None."""
    for name in certificate.names():
        if name and name in users:
            return name
    if certificate.dn is not None:
        user = _user_by_dn(certificate.dn, users)
        if user is not None:
            return user
    return next((name for name in certificate.subjects() if name in users), None)


def check_pin(certificate: PeerCertificate | None, pins: Collection[str]) -> None:
    """Raises CertificateError unless the certificate's key digest is one of `pins`; no pins allow any, or none."""
    if pins and (certificate is None or certificate.key_digest not in pins):
        raise CertificateError("certificate not pinned")


def names_host(certificate: PeerCertificate, hosts: Iterable[str]) -> bool:
    """Returns True when a DNS name of the certificate is one of `hosts`; its first label may be `*` (RFC 6125 6.4)."""
    wanted = [host.lower().split(".") for host in hosts]
    return any(_is_name(name.lower().split("."), host) for name in certificate.dns_names for host in wanted)


def _is_name(name: list[str], host: list[str]) -> bool:
    first = 1 if name[0] == "*" else 0
    return len(name) == len(host) and name[first:] == host[first:]


def _alternatives(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


def _distinguished_name(rdns: list[list[tuple[str, str]]]) -> tuple[Rdn, ...] | None:
    if any(oid not in _DN_TYPES for rdn in rdns for oid, _ in rdn):
        return None
    return tuple(frozenset((_DN_TYPES[oid], value) for oid, value in rdn) for rdn in reversed(rdns) if rdn)


def _user_by_dn(dn: tuple[Rdn, ...], users: Collection[str]) -> str | None:
    reordered = None
    unordered = sorted(dn, key=sorted)
    for user in users:
        parsed = parse_dn(user)
        if parsed is None:
            continue
        if parsed == dn:
            return user
        if reordered is None and sorted(parsed, key=sorted) == unordered:
            reordered = user
    return reordered


@lru_cache(maxsize=4096)
def parse_dn(text: str) -> tuple[Rdn, ...] | None:
    """Parses a distinguished name (RFC 4514) into its parts; returns None when `text` is no such name."""
    parts: list[Rdn] = []
    attributes: list[tuple[str, str]] = []
    for attribute, ends_part in _attributes(text):
        kind, equals, value = attribute
        if not equals or not kind:
            return None
        attributes.append((kind.upper(), value))
        if ends_part:
            parts.append(frozenset(attributes))
            attributes = []
    return tuple(parts) or None


def _attributes(text: str) -> Iterator[tuple[tuple[str, bool, str], bool]]:
    """Yields ((type, True if there was a `=`, value), True at the end of a part)."""
    kind, equals = "", False
    buffer = _Buffer()
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\":
            at = buffer.escaped(text, at)
            if at < 0:
                yield ("", False, ""), True
                return
        elif char == "=" and not equals:
            kind, equals = buffer.take(), True
            if text[at : at + 1] == "#":  # BER in hex, which no user has as its name
                yield ("", False, ""), True
                return
        elif char in ",+":
            yield (kind, equals, buffer.take()), char == ","
            kind, equals = "", False
        else:
            buffer.plain(char)
    yield (kind, equals, buffer.take()), True


class _Buffer:
    """Collects a type or a value, without the unescaped blanks around it."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._kept = 0
        """Bytes without the blanks that are trailing so far."""

    def plain(self, char: str) -> None:
        if char == " ":
            if self._bytes:
                self._bytes += b" "
            return
        self._bytes += char.encode("utf-8", "surrogateescape")
        self._kept = len(self._bytes)

    def escaped(self, text: str, at: int) -> int:
        """Takes the escape after a backslash and returns the position after it; -1 when it is malformed."""
        if text[at : at + 1] and text[at] in ' "#+,;<=>\\':
            self._bytes += text[at].encode()
            at += 1
        else:
            try:
                octet = bytes.fromhex(text[at : at + 2])
            except ValueError:
                return -1
            if len(octet) != 1:
                return -1
            self._bytes += octet
            at += 2
        self._kept = len(self._bytes)
        return at

    def take(self) -> str:
        found = bytes(self._bytes[: self._kept]).decode("utf-8", "surrogateescape")
        self._bytes.clear()
        self._kept = 0
        return found


def _go_subject(rdns: list[list[tuple[str, str]]]) -> str:
    """Returns the attributes that Go's pkix.Name keeps, in its order; several of one kind are one part."""
    found: dict[str, list[str]] = {}
    for rdn in rdns:
        for oid, value in rdn:
            if oid in _SINGLE:
                found[oid] = [value]
            elif oid in _GO_ORDER:
                found.setdefault(oid, []).append(value)
    parts = [(oid, found[oid]) for oid in _GO_ORDER if any(found.get(oid, ()))]
    return ",".join("+".join(f"{_DN_TYPES[oid]}={_escape(value)}" for value in values) for oid, values in parts)


def _go_extras(rdns: list[list[tuple[str, str]]]) -> Iterator[str]:
    """Yields the other attributes as Go writes them: by OID, with the value's DER in hex."""
    for rdn in reversed(rdns):
        for oid, value in reversed(rdn):
            if oid not in _GO_ORDER:
                text = value.encode()
                printable = all(char in _PRINTABLE for char in value)
                tag = b"\x13" if printable else b"\x0c"
                yield f"{oid}=#{(tag + _length(len(text)) + text).hex()}"


def _length(size: int) -> bytes:
    if size < 0x80:
        return bytes([size])
    octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([0x80 | len(octets)]) + octets


def _escape(value: str) -> str:
    last = len(value) - 1
    return "".join(
        "\\" + char if char in _ESCAPED or (at == 0 and char in " #") or (at == last and char == " ") else char
        for at, char in enumerate(value)
    )


def route_check(
    pins: Collection[str], known_urls: Iterable[str] | None, user: str | None
) -> Callable[[PeerCertificate | None, bool], None]:
    """Returns a check of routes' (certificate, True if this end accepts), which raises CertificateError. The connecting
    end must name a host of `known_urls` (`verify_cert_and_check_known_urls`) or the `user` (`verify_and_map`); one of
    the two is enough, as in nats-server."""
    hosts = None if known_urls is None else [urlsplit(url).hostname or "" for url in known_urls]

    def check(certificate: PeerCertificate | None, accepting: bool) -> None:
        check_pin(certificate, pins)
        if not accepting or (hosts is None and user is None):
            return
        if certificate is not None and hosts is not None and names_host(certificate, hosts):
            return
        if certificate is not None and user and user_of(certificate, (user,)) is not None:
            return
        raise CertificateError("the certificate names nobody who may be a route")

    return check
