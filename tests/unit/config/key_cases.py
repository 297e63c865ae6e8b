"""The outcome of a pair of a key and a value, in each block of a configuration file.

key_outcomes.json has, by block, key and value, what comes of the pair; test_keys.py compares.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from jetcluster.config.changes import changed_fields, described
from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_text
from jetcluster.config.options import Options
from tests.signer import Operator, preload

BLOCKS = {
    "": "%s",
    "cluster": "cluster { name: c, port: 1, %s }",
    "cluster.compression": "cluster { name: c, port: 1, compression { %s } }",
    "cluster.authorization": "cluster { name: c, port: 1, authorization { user: u, password: p, %s } }",
    "cluster.tls": "cluster { name: c, port: 1, tls { cert_file: cert.pem, key_file: key.pem, %s } }",
    "jetstream": "jetstream { %s }",
    "jetstream.balance": "jetstream { balance { %s } }",
    "jetstream.limits": "jetstream { limits { %s } }",
    "jetstream.limits.batch": "jetstream { limits { batch { %s } } }",
    "jetstream.limits.objects": "jetstream { limits { objects { %s } } }",
    "compat": "compat { %s }",
    "leafnodes": "leafnodes { port: 1, %s }",
    "leafnodes.authorization": "leafnodes { port: 1, authorization { %s } }",
    "leafnodes.authorization.users": "leafnodes { port: 1, authorization { users: [ { user: u, %s } ] } }",
    "leafnodes.remotes": "leafnodes { remotes: [ { url: 'nats://h:1', %s } ] }",
    "websocket": "websocket { port: 1, %s }",
    "websocket.authorization": "websocket { port: 1, authorization { %s } }",
    "gateway": "gateway { %s }",
    "gateway.gateways": "gateway { gateways: [ { %s } ] }",
    "mqtt": "mqtt { %s }",
    "proxies": "proxies { %s }",
    "ocsp": "ocsp { %s }",
    "tls": "tls { cert_file: cert.pem, key_file: key.pem, %s }",
    "tls.certs": "tls { certs: [ { cert_file: cert.pem, key_file: key.pem, %s } ] }",
    "authorization": "authorization { %s }",
    "users": "authorization { users: [ { user: u, password: p, %s } ] }",
    "permissions": "authorization { users: [ { user: u, password: p, permissions { %s } } ] }",
    "permissions.publish": "authorization { users: [ { user: u, password: p, permissions { publish { %s } } } ] }",
    "allow_responses": "authorization { default_permissions { allow_responses { %s } } }",
    "accounts": "accounts { A { %s } }",
    "accounts.jetstream": "accounts { A { jetstream { %s } } }",
    "accounts.limits": "accounts { A { limits { %s } } }",
    "accounts.exports": "accounts { A { exports: [ { service: s, %s } ] } }",
    "accounts.exports of streams": "accounts { A { exports: [ { stream: s, %s } ] } }",
    "accounts.exports.latency": "accounts { A { exports: [ { service: s, latency { subject: l, %s } } ] } }",
    "accounts.imports": (
        "accounts { A { imports: [ { stream: { account: B, subject: s }, %s } ] }, B { exports: [ { stream: s } ] } }"
    ),
    "accounts.imports of services": (
        "accounts { A { imports: [ { service: { account: B, subject: s }, %s } ] }, B { exports: [ { service: s } ] } }"
    ),
    "accounts.imports.source": (
        "accounts { A { imports: [ { stream: { account: B, subject: s, %s } } ] }, B { exports: [ { stream: s } ] } }"
    ),
    "mappings": "mappings { a: [ { dest: b, weight: 1%%, %s } ] }",
    "resolver": "resolver { type: full, dir: '.', %s }",
}
"""Text around a pair of each block, by the block's path."""
_PAIR = "tls {{ cert_file: {0}.pem, key_file: {1}.pem }}"
_CERTS = "tls {{ certs: [ {{ cert_file: {0}.pem, key_file: {1}.pem }} ] }}"
_CLUSTER = "cluster {{ name: c, port: 1, {} }}"
_NKEY = "authorization { users: [ { nkey: UD466L6EBCM3YY5HEGHJANNTN4LSKTSUXTH7RILHCKEQMQHTBNLHJJXT } ] }"
_EXPORT = "accounts {{ A {{ exports: [ {{ {}: 's.*', account_token_position: {} }} ] }} }}"
_IMPORT = "accounts {{ A {{ imports: [ {{ {0}: {{ account: {1}, subject: {2} }} }} ] }}, {3} }}"
_EXPORTERS = "B {{ exports: [ {{ {0}: s }}, {{ {0}: t }} ] }}, C {{ exports: [ {{ {0}: s }} ] }}"


def _imported(kind: str, account: str = "B", subject: str = "s") -> str:
    return _IMPORT.format(kind, account, subject, _EXPORTERS.format(kind))


_FILES = {
    "tls.cert_file": (_PAIR.format("cert", "key"), _PAIR.format("cert2", "key")),
    "tls.key_file": (_PAIR.format("cert", "key"), _PAIR.format("cert", "key2")),
    "tls.certs": (_CERTS.format("cert", "key"), _CERTS.format("cert2", "key2")),
}
CHANGED: dict[str, tuple[str, str]] = {
    "resolver_preload": (preload(), preload(Operator().account("A"))),
    **_FILES,
    **{f"cluster.{path}": (_CLUSTER.format(old), _CLUSTER.format(new)) for path, (old, new) in _FILES.items()},
    "tls.certs.cert_file": (_CERTS.format("cert", "key"), _CERTS.format("cert2", "key")),
    "tls.certs.key_file": (_CERTS.format("cert", "key"), _CERTS.format("cert", "key2")),
    "users.nkey": ("", _NKEY),
    "accounts.imports": (f"accounts {{ A {{}}, {_EXPORTERS.format('stream')} }}", _imported("stream")),
    "accounts.exports.account_token_position": (_EXPORT.format("service", 0), _EXPORT.format("service", 2)),
    "accounts.exports of streams.account_token_position": (_EXPORT.format("stream", 0), _EXPORT.format("stream", 2)),
    "accounts.imports.stream": (_imported("stream"), _imported("stream", subject="t")),
    "accounts.imports of services.stream": (_imported("service"), _imported("service", subject="t")),
    "accounts.imports.source.account": (_imported("stream"), _imported("stream", "C")),
    "accounts.imports.source.subject": (_imported("stream"), _imported("stream", subject="t")),
}
"""By path, two texts between which a reload changes the key: of keys whose pair in key_outcomes.json is refused, or
says what is there without it. Files: see `test_keys.files`."""
WITHOUT_BASE = ("", "ocsp", "gateway.gateways")
"""Blocks that are refused when they are empty, or that have no text around them."""


def differences(old: object, new: object, path: str = "") -> list[str]:
    """`path=value` of each leaf of `new` that is another one in `old`."""
    if is_dataclass(new) and type(old) is type(new):
        found = []
        for field in fields(new):
            inner = f"{path}.{field.name}" if path else field.name
            found += differences(getattr(old, field.name), getattr(new, field.name), inner)
        return found
    return [] if old == new else [f"{path}={new!r}"]


def load(text: str) -> tuple[Options, list[str]]:
    options, warnings = load_text(text, "c.conf", {})
    options.config_digest = ""
    return options, warnings


def outcome(block: str, pair: str) -> dict[str, str | list[str]]:
    """Effect of the pair: `set`, `inert`, `warned`, `noted` or `refused`; and `reload` or `fixed`, of taking it
    into a running server."""
    try:
        new, warnings = load(BLOCKS[block] % pair)
    except ConfigError as error:
        return {"refused": str(error).rstrip("\n")}
    base = load("" if block in WITHOUT_BASE else BLOCKS[block] % "")[0]
    found: dict[str, str | list[str]] = {
        "set": [line for line in differences(base, new) if not line.startswith(("inert=", "warnings="))],
        "inert": new.inert,
        "warned": warnings,
        "noted": new.warnings,
    }
    try:
        found["reload"] = described(changed_fields(base, new), base, new)
    except ConfigError as error:
        found["fixed"] = str(error)
    return {name: value for name, value in found.items() if value}
