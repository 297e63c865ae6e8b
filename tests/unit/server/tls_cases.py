"""Logins over TLS, and the user that each of them becomes: one table for our server
(tests/unit/server/test_tls_port.py) and for nats-server (tests/interop/test_tls.py)."""

from __future__ import annotations

import asyncio
import json
import ssl
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509

from testkit.certificates import Authority, pin_of, subject
from tests.unit.server.wire import Wire, errors

IN = "in"
"""With nobody configured: let in."""
VIOLATION = "Authorization Violation"
NO_TLS = "closed"
"""Closed without a word: the handshake came to nothing."""

_USERS = {
    "mail": "ann@example.com",
    "dns": "bob.example.com",
    "uri": "spiffe://example.com/carol",
    "dn": "CN=dan,OU=it,O=Example",
    "dn-reordered": "O=Example,CN=eve,OU=it",
    "dn-spaced": "CN=fay, OU=it, O=Example",
    "dc": "CN=gus,OU=it,DC=com,DC=example",
    "dc-certificate-order": "CN=hal,OU=it,DC=org,DC=example",
    "rdn": "CN=ivy,O=Example",
    "escaped": "CN=Jay\\, Jr.,O=Example",
    "sealed": "CN=kim,O=Example",
    "two-units": "CN=lea,OU=b+OU=a,O=Example",
    "web-only": "CN=max,O=Example",
}


@dataclass(frozen=True)
class Case:
    name: str
    tls: str = ""
    """Added to the server's `tls` block."""
    top: str = ""
    """Added to the server's file; `users` takes the table above."""
    certificate: str = ""
    """Which one the client shows."""
    connect: dict[str, Any] = field(default_factory=dict)
    outcome: str = IN
    """IN, an account's name, the text of an -ERR, or NO_TLS."""
    first: bool = False
    """The client begins with the handshake."""
    plain: bool = False
    """The client does not use TLS."""
    newest: ssl.TLSVersion | None = None
    ciphers: str = ""
    curve: str = ""


def _name(common: str, *more: tuple[str, str]) -> x509.Name:
    return subject(("O", "Example"), *more, ("CN", common))


def _joined(*parts: tuple[str, str]) -> x509.Name:
    """All of them in one part of the name."""
    return x509.Name([x509.RelativeDistinguishedName([one for rdn in subject(*parts).rdns for one in rdn])])


class Certificates:
    """All that the table needs, in `folder`."""

    def __init__(self, folder: Path) -> None:
        (folder / "other").mkdir(parents=True)
        self.authority, other = Authority(folder), Authority(folder / "other")
        issue, unit = self.authority.issue_to, ("OU", "it")
        self.server = self.authority.issue("server")
        self.files = {
            "plain": issue("plain", _name("nobody")),
            "other": other.issue_to("other", _name("dan", unit)),
            "expired": issue("expired", _name("dan", unit), days=-1),
            "mail": issue("mail", _name("dan", unit), [x509.RFC822Name("ann@example.com")]),
            "dns": issue("dns", _name("dan", unit), [x509.DNSName("bob.example.com")]),
            "dns-first": issue(
                "dns-first", _name("x"), [x509.DNSName("bob.example.com"), x509.RFC822Name("ann@example.com")]
            ),
            "uri": issue("uri", _name("x"), [x509.UniformResourceIdentifier("spiffe://example.com/carol")]),
            "unknown-names": issue(
                "unknown-names", _name("dan", unit), [x509.DNSName("z.example.com"), x509.RFC822Name("z@example.com")]
            ),
            "dn": issue("dn", _name("dan", unit)),
            "dn-reordered": issue("dn-reordered", _name("eve", unit)),
            "dn-spaced": issue("dn-spaced", _name("fay", unit)),
            "dc": issue("dc", subject(("DC", "example"), ("DC", "com"), unit, ("CN", "gus"))),
            "dc-certificate-order": issue(
                "dc-certificate-order", subject(("DC", "org"), ("DC", "example"), unit, ("CN", "hal"))
            ),
            "rdn": issue("rdn", subject(("O", "Example"), ("CN", "ivy"), ("emailAddress", "ivy@example.com"))),
            "escaped": issue("escaped", _name("Jay, Jr.")),
            "sealed": issue("sealed", _name("kim")),
            "two-units": issue("two-units", subject(("O", "Example"), ("OU", "b"), ("OU", "a"), ("CN", "lea"))),
            "web-only": issue("web-only", _name("max")),
            "lower": issue("lower", _name("DAN", unit)),
            # Names that are nearly somebody's.
            "comma": issue("comma", _name("dan,OU=it")),
            "comma-more": issue("comma-more", _name("dan,OU=it,O=Example")),
            "nul": issue("nul", _name("dan\0", unit)),
            "blank": issue("blank", _name("dan ", unit)),
            "mail-as-cn": issue("mail-as-cn", _name("ann@example.com")),
            "mail-in-dn": issue("mail-in-dn", subject(("emailAddress", "ann@example.com"))),
            "dns-case": issue("dns-case", _name("x"), [x509.DNSName("BOB.example.com")]),
            "hosts": issue("hosts", _name("x"), [x509.DNSName("example.com"), x509.RFC822Name("ANN@example.com")]),
            "nobody": issue("nobody", subject()),
            "joined": issue("joined", _joined(("O", "Example"), ("OU", "it"), ("CN", "dan"))),
            "longer": issue("longer", subject(("O", "Example"), unit, ("OU", "more"), ("CN", "dan"))),
        }  # fmt: skip

    def context(self, case: Case) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.authority.file)
        if case.certificate:
            context.load_cert_chain(*self.files[case.certificate])
        if case.newest is not None:
            with warnings.catch_warnings(
                action="ignore", category=DeprecationWarning
            ):  # of TLS 1.1, which is the point
                context.minimum_version = ssl.TLSVersion.TLSv1
                context.maximum_version = case.newest
            context.set_ciphers("ALL:@SECLEVEL=0" if case.newest < ssl.TLSVersion.TLSv1_2 else "DEFAULT")
        if case.ciphers:
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            context.set_ciphers(case.ciphers)
        if case.curve:
            context.set_ecdh_curve(case.curve)
        return context

    def config(self, case: Case) -> str:
        cert, key = self.server
        accounts = {f"A-{key}": {"users": [{"user": user, **_EXTRA.get(key, {})}]} for key, user in _USERS.items()}
        tls = f'cert_file: "{cert}", key_file: "{key}", ca_file: "{self.authority.file}", timeout: 1'
        return (
            f"tls {{ {tls}{self._filled(case.tls)} }}\n"
            + case.top.replace("users", f"accounts {json.dumps(accounts)}")
            + "\n"
        )

    def _filled(self, text: str) -> str:
        """`<name>` is the pin of a certificate, `<NAME>` the same in large letters."""
        for name, (cert, _) in {**self.files, "authority": (self.authority.file, None)}.items():
            text = text.replace(f"<{name}>", f'"{pin_of(cert)}"')
            text = text.replace(f"<{name.upper()}>", f'"{pin_of(cert).upper()}"')
        return f", {text}" if text else ""


_EXTRA: dict[str, dict[str, Any]] = {
    "sealed": {"password": "open"},
    "web-only": {"allowed_connection_types": ["WEBSOCKET"]},
}

VERIFY = "verify: true"
MAP = "verify_and_map: true"
_OLD = "ECDHE-ECDSA-AES128-GCM-SHA256"


def mapped(certificate: str, outcome: str = "", name: str = "", **connect: Any) -> Case:
    return Case(
        name or f"map {certificate}", MAP, "users", certificate=certificate, connect=connect,
        outcome=outcome or f"A-{certificate}",
    )  # fmt: skip


CASES: Sequence[Case] = (
    # --- the handshake
    Case("TLS after INFO"),
    Case("a plain client at a TLS port", plain=True, outcome=NO_TLS),
    Case("TLS 1.2", newest=ssl.TLSVersion.TLSv1_2),
    Case("TLS 1.1", newest=ssl.TLSVersion.TLSv1_1, outcome=NO_TLS),
    Case("TLS 1.2 where 1.3 is asked for", 'min_version: "1.3"', newest=ssl.TLSVersion.TLSv1_2, outcome=NO_TLS),
    Case("TLS 1.3 where 1.3 is asked for", 'min_version: "1.3"'),
    Case("a named suite", "cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]", ciphers=_OLD),
    Case(
        "another suite than the named one", "cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]",
        ciphers=_OLD, outcome=NO_TLS,
    ),
    Case("suites of 1.3 alone rule 1.2 out", "cipher_suites: [TLS_AES_128_GCM_SHA256]", ciphers=_OLD, outcome=NO_TLS),
    Case("a named curve", "curve_preferences: [CurveP384]", curve="secp384r1"),
    Case("another curve than the named one", "curve_preferences: [CurveP384]", curve="prime256v1", outcome=NO_TLS),
    # --- certificates
    Case("verify, no certificate", VERIFY, outcome=NO_TLS),
    Case("verify", VERIFY, certificate="plain"),
    Case("verify, another authority", VERIFY, certificate="other", outcome=NO_TLS),
    Case("verify, expired", VERIFY, certificate="expired", outcome=NO_TLS),
    Case("no verify, expired: nobody looks", certificate="expired"),
    Case("pinned", f"{VERIFY}, pinned_certs: [<plain>, <dn>]", certificate="plain"),
    Case("not pinned", f"{VERIFY}, pinned_certs: [<dn>]", certificate="plain", outcome=NO_TLS),
    Case("the authority pinned", f"{VERIFY}, pinned_certs: [<authority>]", certificate="plain", outcome=NO_TLS),
    Case("pinned in large letters", f"{VERIFY}, pinned_certs: [<PLAIN>]", certificate="plain"),
    Case("pinned, another authority", f"{VERIFY}, pinned_certs: [<other>]", certificate="other", outcome=NO_TLS),
    Case("pinned, expired", f"{VERIFY}, pinned_certs: [<expired>]", certificate="expired", outcome=NO_TLS),
    Case("pins without verify, no certificate", "pinned_certs: [<plain>]", outcome=NO_TLS),
    # --- verify_and_map: the first name that is known decides
    mapped("mail"),
    mapped("dns"),
    mapped("dns-first", "A-mail", "map: e-mail addresses before DNS names"),
    mapped("uri"),
    mapped("unknown-names", "A-dn", "map: names that nobody has leave it to the DN"),
    mapped("dn"),
    mapped("dn-reordered"),
    mapped("dn-spaced"),
    mapped("dc"),
    mapped("dc-certificate-order"),
    mapped("rdn"),
    mapped("escaped"),
    mapped("two-units"),
    mapped("lower", VIOLATION, "map: values differ in case"),
    mapped("longer", VIOLATION, "map: one more part"),
    mapped("comma", VIOLATION, "map: a comma in a value ends no part"),
    mapped("comma-more", VIOLATION, "map: a whole name in a value"),
    mapped("nul", VIOLATION, "map: a NUL at the end"),
    mapped("blank", VIOLATION, "map: a blank at the end"),
    mapped("mail-as-cn", VIOLATION, "map: an address as a common name"),
    mapped("mail-in-dn", VIOLATION, "map: an address in the subject"),
    mapped("dns-case", VIOLATION, "map: a DNS name in large letters"),
    mapped("hosts", VIOLATION, "map: an address in large letters, a host's domain"),
    mapped("nobody", VIOLATION, "map: no name at all"),
    mapped("joined", "A-dn", "map: all parts in one, as Go writes them"),
    mapped("plain", VIOLATION, "map: nobody of that name"),
    mapped("plain", VIOLATION, "map: a user in CONNECT does not help", user="CN=dan,OU=it,O=Example"),
    mapped("dn", "A-dn", "map: a user in CONNECT does not count", user="CN=kim,O=Example"),
    mapped("sealed", VIOLATION, "map: a user with a password, without it"),
    mapped("sealed", "A-sealed", "map: a user with a password", **{"pass": "open"}),
    mapped("web-only", VIOLATION, "map: a user of another type of connection"),
    Case("map: no certificate", MAP, "users", outcome=NO_TLS),
    # --- handshake first
    Case("first", "handshake_first: true", first=True),
    Case("first, a client that waits for INFO", "handshake_first: true", outcome=NO_TLS),
    Case("auto, first", "handshake_first: auto", first=True),
    Case("auto, after INFO", "handshake_first: auto"),
    Case("delay, first", 'handshake_first: "80ms"', first=True),
    Case("delay, after INFO", 'handshake_first: "80ms"'),
    Case("delay, plain", 'handshake_first: "80ms"', plain=True, outcome=NO_TLS),
    # --- TLS as one likes
    Case("allow_non_tls, TLS", top="allow_non_tls: true"),
    Case("allow_non_tls, plain", top="allow_non_tls: true", plain=True),
    Case("allow_non_tls, verify, plain", VERIFY, "allow_non_tls: true", plain=True),
    Case("allow_non_tls, auto, first", "handshake_first: auto", "allow_non_tls: true", first=True),
    Case("allow_non_tls, auto, plain", "handshake_first: auto", "allow_non_tls: true", plain=True),
    Case("allow_non_tls, map, plain", MAP, "allow_non_tls: true\nusers", plain=True, outcome=VIOLATION),
)  # fmt: skip


def by_config(certificates: Certificates) -> dict[str, list[Case]]:
    """The table by configuration file: one server for all that share it."""
    found: dict[str, list[Case]] = {}
    for case in CASES:
        found.setdefault(certificates.config(case), []).append(case)
    return found


async def outcome(port: int, case: Case, certificates: Certificates) -> str:
    """The account that `case` comes into (IN: the default one), or the reason why it does not."""
    context = None if case.plain else certificates.context(case)
    try:
        async with asyncio.timeout(5):
            wire = await Wire.open(port, tls=context, first=case.first)
            told = {"tls_required": not case.plain, "protocol": 1, **case.connect}
            frames = await wire.log_in(**told)
            if not wire.over:
                frames += await wire.settle()
    except (OSError, asyncio.IncompleteReadError):  # ssl.SSLError is an OSError
        return NO_TLS
    if found := errors(frames):
        return found[0]
    infos = [json.loads(frame.text) for frame in frames if frame.verb == "INFO"]
    if wire.over or not infos:
        return NO_TLS
    account = infos[-1]["remote_account"]
    return IN if account == "$G" else str(account)
