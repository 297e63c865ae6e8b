"""Users whose JWTs say what they may do, and from whose account they are: a table of them, with what each one hears."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.signer import NO_LIMITS, Key
from tests.sim.cluster.dialogues import PING, PONG, publish, refused

if TYPE_CHECKING:
    from tests.sim.cluster.workloads.tiers import Accounts

FAR: Final = 100_000
"""Seconds by which a time is past or to come, more than any clock is wrong."""
SOON: Final = 3
"""Seconds after which one of the users has to go."""
REVOKED_AT: Final = 1000
"""The time up to which tokens of some user are revoked."""
WRONG: Final = b"-ERR 'Authorization Violation'\r\n"
EXPIRED: Final = b"-ERR 'User Authentication Expired'\r\n"
TEMPLATE: Final = {
    "pub": {"allow": ["t.{{name()}}", "t.{{tag(team)}}.>"]}, "sub": {"allow": ["s.{{name()}}.>"]}, **NO_LIMITS
}  # fmt: skip
"""Rights of users of the scoped signing key."""
Json = dict[str, Any]


@dataclass(slots=True)
class Case:
    """A user who logs in, says something, and hears this."""

    name: str
    heard: bytes = PONG
    said: bytes = PING
    claims: Json = field(default_factory=dict)
    """Claims of its JWT, beside no limits."""
    fields: Json = field(default_factory=dict)
    """Outside of these."""
    signer: str = "app"
    """`Keys`."""
    issuer: bool = False
    """The JWT names the account, as one of a signing key does."""
    signs: str = "well"
    """`well`; `not`; or `wrong`."""
    damage: Callable[[str], str] = lambda token: token
    bare: bool = False
    """Its JWT has no limits, as one of a scoped key."""

    @property
    def ends(self) -> bool:
        """The server closes the connection."""
        return self.heard.endswith(WRONG) or b"Maximum Payload" in self.heard


def account_claims(keys: Callable[[str, str], Key]) -> Json:
    """More claims of the account's JWT. `keys` returns the same key for a kind and a name each time."""
    template = {"kind": "user_scope", "key": keys("account", "scoped").public, "role": "r", "template": TEMPLATE}
    return {
        "signing_keys": [keys("account", "signer").public, template],
        "revocations": {keys("user", "a token of before").public: REVOKED_AT,
                        keys("user", "a token of after").public: REVOKED_AT},
    }  # fmt: skip


def _window(now: float, start: int, end: int) -> Json:
    """A time of the day, from and to so many seconds from now."""

    def text(seconds: int) -> str:
        return time.strftime("%H:%M:%S", time.gmtime(now + seconds))

    return {"times": [{"start": text(start), "end": text(end)}], "times_location": "UTC"}


def cases(now: float) -> Iterator[Case]:
    """`now`: Unix seconds of the server."""
    at = int(now)
    yield Case("a user")
    yield Case("who signs nothing", WRONG, signs="not")
    yield Case("who signs something else", WRONG, signs="wrong")
    yield Case("a bearer", claims={"bearer_token": True}, signs="not")
    yield Case("a token that is over", WRONG, fields={"exp": at - FAR})
    yield Case("a token that is not over", fields={"exp": at + FAR})
    yield Case("a token of tomorrow", WRONG, fields={"nbf": at + FAR})
    yield Case("a token of yesterday", fields={"nbf": at - FAR})
    yield Case("a token of another account", WRONG, signer="other")
    yield Case("a token that a signing key has signed", signer="signer", issuer=True)
    yield Case("a token of a signing key that names no account", WRONG, signer="signer")
    yield Case("a token of a key that is none", WRONG, signer="other", issuer=True)
    yield Case("a token of before", WRONG, fields={"iat": REVOKED_AT})
    yield Case("a token of after", fields={"iat": REVOKED_AT + 1})
    yield Case("who comes from here", claims={"src": ["10.9.0.0/16", "10.0.0.0/8"]})
    yield Case("who comes from elsewhere", WRONG, claims={"src": ["10.9.0.0/16"]})
    yield Case("who comes at this time", claims=_window(now, -7200, 7200))
    yield Case("who comes at another time", WRONG, claims=_window(now, 7200, 10800))
    yield Case("who comes by a proxy", WRONG, claims={"proxy_required": True})
    yield Case("who comes by this kind of port", claims={"allowed_connection_types": ["standard"]})
    yield Case("who comes by another one", WRONG, claims={"allowed_connection_types": ["WEBSOCKET", "MQTT"]})
    yield Case("who comes by one that there is not", WRONG, claims={"allowed_connection_types": ["CARRIER_PIGEON"]})
    # What is no token counts as none: the one who comes is the sentinel, as with nats-server.
    yield Case("a token of the operator", signer="operator", signs="not")
    yield Case("a token that was changed", damage=lambda token: token[:-8] + token[-8:][::-1], signs="not")
    yield Case("a token that was cut", damage=lambda token: token[: len(token) // 2], signs="not")
    yield Case("no token", damage=lambda token: "", signs="not")
    yield from _rights()


def _rights() -> Iterator[Case]:
    """Rights that they have once they are in."""
    many = b"-ERR 'maximum subscriptions exceeded'\r\n"
    yield Case("two subscriptions", many + PONG, b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\n" + PING, claims={"subs": 2})
    yield Case("ten bytes", PONG + b"-ERR 'Maximum Payload Violation'\r\n",
               publish("a", bytes(10)) + PING + publish("a", bytes(11)), claims={"payload": 10})  # fmt: skip
    yield Case(
        "permissions of its own",
        refused("Publish to", "p.no") + refused("Subscription to", "s.no") + PONG,
        publish("p.no") + publish("p.yes") + b"SUB s.no 1\r\nSUB s.yes 2\r\n" + PING,
        claims={"pub": {"deny": ["p.no"]}, "sub": {"allow": ["s.*"], "deny": ["s.no"]}},
    )
    said = publish("t.scoped") + publish("t.red.x") + publish("t.blue.x") + publish("t.a") + b"SUB s.scoped.x 1\r\n"
    yield Case(
        "scoped",
        refused("Publish to", "t.blue.x") + refused("Publish to", "t.a") + refused("Subscription to", "s.a.x") + PONG,
        said + b"SUB s.a.x 2\r\n" + PING, claims={"tags": ["team:red"]}, signer="scoped", issuer=True, bare=True,
    )  # fmt: skip
    yield Case("scoped, with rights of its own", WRONG, signer="scoped", issuer=True)
    yield Case("scoped, and of no account", WRONG, signer="scoped", bare=True)


def connect(case: Case, accounts: Accounts, keys: Callable[[str, str], Key], nonce: str) -> bytes:
    """The CONNECT of this user."""
    user, account = keys("user", case.name), accounts.app
    signer = {"app": account, "operator": accounts.operator, "other": keys("account", "OTHER")}.get(case.signer)
    claims = {"type": "user", **({} if case.bare else NO_LIMITS), **case.claims}
    claims |= {"issuer_account": account.public} if case.issuer else {}
    token = case.damage((signer or keys("account", case.signer)).token(user, case.name, claims, **case.fields))
    signed = {"well": user.signature(nonce), "wrong": user.signature(nonce[::-1])}.get(case.signs, b"").decode()
    fields = {"verbose": False, "pedantic": False, "headers": True, "protocol": 1, "lang": "none", "version": "1",
              "jwt": token, **({"sig": signed} if signed else {})}  # fmt: skip
    return b"CONNECT %s\r\n" % json.dumps(fields).encode()
