"""Attempts that must fail, with the exact answer; beside each a twin that succeeds, so that none fails for another
reason. TLS has its own table (tls_cases.py), Direct Get too (tests/unit/node), and other accounts (test_isolation)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.signer import USER, Key
from tests.unit.server.serving import configured
from tests.unit.server.wire import Wire, close_all, errors, messages

pytestmark = pytest.mark.usefixtures("closed_wires")

VIOLATION = "Authorization Violation"
OK = ""
KEY, STRANGER = Key(USER), Key(USER)
BCRYPT = "$2a$04$ldytrnQn5lcUDBLMFg8yueK95lJ2mJzJceW4O3h0BGLvhJKbiPoge"
"""Hash of the password "right"."""


@dataclass(frozen=True)
class Try:
    """CONNECT with `connect`, then `lines`; None sends no CONNECT. `sign`: the nkey that signs the nonce."""

    connect: dict[str, Any] | None = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    sign: Key | None = None
    nonce: str = ""
    """Signed in place of the server's."""


async def attempt(port: int, attempted: Try) -> str:
    """The first -ERR, "closed" for an end without one, or OK."""
    wire = await Wire.open(port)
    frames = []
    if attempted.connect is not None:
        connect = dict(attempted.connect)
        if attempted.sign is not None:
            connect["sig"] = attempted.sign.signature(attempted.nonce or wire.info["nonce"]).decode()
        frames = await wire.log_in(**connect)
    if not wire.over and attempted.lines:
        frames += await wire.ask(*attempted.lines)
    found = errors(frames)
    return found[0] if found else "closed" if wire.over else OK


def login(user: str, password: str, *lines: str) -> Try:
    return Try({"user": user, "pass": password}, lines)


def pub(subject: str, size: int = 0, reply: str = "") -> tuple[str, str]:
    return f"PUB {subject} {reply + ' ' if reply else ''}{size}", "x" * size


def denied(what: str, subject: str, more: str = "") -> str:
    return f'Permissions Violation for {what} "{subject}"{more}'


PLAIN = "max_payload: 1000"
USERS = "authorization { users: [ {user: ann, password: right}, {user: bob, password: other} ] }"
NKEY = f"authorization {{ users: [ {{nkey: {KEY.public}}}, {{user: ann, password: right}} ] }}"
ALLOWED = """authorization { users: [ { user: ann, password: right, permissions {
  publish: { allow: ["a.>", "_INBOX.>"], deny: "a.secret" }
  subscribe: { allow: ["a.>", "q.* work"], deny: "a.secret" } } } ] }"""
TYPES = """authorization { users: [ {user: web, password: p, allowed_connection_types: [WEBSOCKET]}
  {user: any, password: p, allowed_connection_types: [WEBSOCKET, STANDARD]} ] }"""
DEFAULT = "no_auth_user: guest\n" + USERS.replace("users: [", "users: [ {user: guest, password: g}, ")
LIMITS = "max_payload: 100\nmax_subscriptions: 2\nmax_control_line: 256\nmax_subscription_tokens: 3"
ACCOUNT = """max_payload: 1000
accounts { A { users: [ {user: ann, password: right} ], limits { max_payload: 10, max_subscriptions: 1 } }
  B { users: [ {user: bob, password: other} ] } }"""

OURS = "an answer at the server's own subjects"
SCHEDULED = "a schedule for somebody else's subject"
COPIED = "a schedule that copies what one may not read"
ENDED = "the end of somebody else's schedule"
STRICTER = {OURS, SCHEDULED, COPIED, ENDED}
"""nats-server lets them pass."""


def scheduled(subject: str, target: str, source: str = "a.source") -> tuple[str, str]:
    """An HPUB; a second target does not hide the first."""
    block = f"NATS/1.0\r\nNats-Schedule-Target: {target}\r\nNats-Schedule-Target: a.last\r\n"
    block += f"Nats-Schedule-Source: {source}\r\n\r\n"
    return f"HPUB {subject} {len(block)} {len(block)}", block


def ending(subject: str, scheduler: str) -> tuple[str, str]:
    block = f"NATS/1.0\r\nNats-Scheduler: {scheduler}\r\nNats-Schedule-Next: purge\r\n\r\n"
    return f"HPUB {subject} {len(block)} {len(block)}", block


ROWS: list[tuple[str, str, Try, str, Try]] = [
    # what, configuration, attempt, its answer, the twin
    ("a wrong password", USERS, login("ann", "wrong"), VIOLATION, login("ann", "right")),
    ("no password", USERS, login("ann", ""), VIOLATION, login("ann", "right")),
    ("another user's password", USERS, login("ann", "other"), VIOLATION, login("bob", "other")),
    ("a password with something behind it", USERS, login("ann", "right "), VIOLATION, login("ann", "right")),
    ("an unknown user", USERS, login("eve", "right"), VIOLATION, login("ann", "right")),
    ("no credentials", USERS, Try(), VIOLATION, login("ann", "right")),
    ("a token where there are users", USERS, Try({"auth_token": "right"}), VIOLATION, login("ann", "right")),
    ("a JWT where there are users", USERS, Try({"jwt": "a.b.c", "sig": "x"}), VIOLATION, login("ann", "right")),
    ("a verb before CONNECT", USERS, Try(None, pub("a")), VIOLATION, login("ann", "right", *pub("a"))),
    ("a second CONNECT that is worse", USERS, login("ann", "right", 'CONNECT {"user":"ann","pass":"wrong"}'), VIOLATION,
     login("ann", "right", 'CONNECT {"verbose":false,"user":"bob","pass":"other"}')),
    ("a wrong token", "authorization { token: right }", Try({"auth_token": "wrong"}), VIOLATION,
     Try({"auth_token": "right"})),
    ("a token as a password", "authorization { token: right }", login("right", "right"), VIOLATION,
     Try({"auth_token": "right"})),
    ("a single user's wrong password", "authorization { user: u, password: right }", login("u", "wrong"), VIOLATION,
     login("u", "right")),
    ("a wrong password of bcrypt", f'authorization {{ user: u, password: "{BCRYPT}" }}', login("u", "wrong"), VIOLATION,
     login("u", "right")),
    ("the bcrypt hash itself", f'authorization {{ user: u, password: "{BCRYPT}" }}', login("u", BCRYPT), VIOLATION,
     login("u", "right")),
    ("a wrong token of bcrypt", f'authorization {{ token: "{BCRYPT}" }}', Try({"auth_token": BCRYPT}), VIOLATION,
     Try({"auth_token": "right"})),
    ("an nkey without a signature", NKEY, Try({"nkey": KEY.public}), VIOLATION, Try({"nkey": KEY.public}, sign=KEY)),
    ("an nkey signed by another", NKEY, Try({"nkey": KEY.public}, sign=STRANGER), VIOLATION,
     Try({"nkey": KEY.public}, sign=KEY)),
    ("an unknown nkey", NKEY, Try({"nkey": STRANGER.public}, sign=STRANGER), VIOLATION,
     Try({"nkey": KEY.public}, sign=KEY)),
    ("a signature of an older nonce", NKEY, Try({"nkey": KEY.public}, sign=KEY, nonce="AAAAAAAAAAAAAAA"), VIOLATION,
     Try({"nkey": KEY.public}, sign=KEY)),
    ("an nkey as a user", NKEY, login(KEY.public, ""), VIOLATION, login("ann", "right")),
    ("wrong credentials beside a no_auth_user", DEFAULT, login("guest", ""), VIOLATION, Try()),
    ("a token beside a no_auth_user", DEFAULT, Try({"auth_token": "x"}), VIOLATION, Try()),
    ("a type of connection", TYPES, login("web", "p"), VIOLATION, login("any", "p")),
    # permissions
    ("publish", ALLOWED, login("ann", "right", *pub("b")), denied("Publish to", "b"),
     login("ann", "right", *pub("a.b"))),
    ("publish to what is denied", ALLOWED, login("ann", "right", *pub("a.secret")), denied("Publish to", "a.secret"),
     login("ann", "right", *pub("a.public"))),
    ("subscribe", ALLOWED, login("ann", "right", "SUB > 1"), denied("Subscription to", ">"),
     login("ann", "right", "SUB a.> 1")),
    ("subscribe to what is denied", ALLOWED, login("ann", "right", "SUB a.secret 1"),
     denied("Subscription to", "a.secret"), login("ann", "right", "SUB a.public 1")),
    ("another queue", ALLOWED, login("ann", "right", "SUB q.x play 1"),
     denied("Subscription to", "q.x", ' using queue "play"'), login("ann", "right", "SUB q.x work 1")),
    ("no queue where one must be", ALLOWED, login("ann", "right", "SUB q.x 1"), denied("Subscription to", "q.x"),
     login("ann", "right", "SUB q.x work 1")),
    ("the server's own queue", PLAIN, Try(lines=("SUB a _sys_ 1",)),
     denied("Subscription to", "a", ' using queue "_sys_"'), Try(lines=("SUB a sys 1",))),
    (OURS, ALLOWED, login("ann", "right", *pub("a.b", 0, "$JS.API.STREAM.DELETE.S")),
     denied("Publish with Reply of", "$JS.API.STREAM.DELETE.S"), login("ann", "right", *pub("a.b", 0, "_INBOX.1"))),
    (SCHEDULED, ALLOWED, login("ann", "right", *scheduled("a.b", "b")), denied("Publish to", "b"),
     login("ann", "right", *scheduled("a.b", "a.c"))),
    (COPIED, ALLOWED, login("ann", "right", *scheduled("a.b", "a.c", "a.secret")),
     denied("Subscription to", "a.secret"), login("ann", "right", *scheduled("a.b", "a.c", "a.public"))),
    (ENDED, ALLOWED, login("ann", "right", *ending("a.b", "b")), denied("Publish to", "b"),
     login("ann", "right", *ending("a.b", "a.c"))),
    ("an answer as an acknowledgement", PLAIN, Try(lines=pub("a", 0, "$JS.ACK.S.C.1.1.1.1.0")),
     denied("Publish with Reply of", "$JS.ACK.S.C.1.1.1.1.0"), Try(lines=pub("a", 0, "JS.ACK.S"))),
    ("a reply of a service import", PLAIN, Try(lines=pub("a", 0, "_R_.x.y")),
     denied("Publish with Reply of", "_R_.x.y"), Try(lines=pub("a", 0, "_R.x.y"))),
    ("Raft", PLAIN, Try(lines=pub("$NRG.V.x")), denied("Publish to", "$NRG.V.x"), Try(lines=pub("NRG.V.x"))),
    ("gateway replies", PLAIN, Try(lines=pub("_GR_.x.y")), denied("Publish to", "_GR_.x.y"), Try(lines=pub("GR_.x.y"))),
    # limits
    ("max_payload", LIMITS, Try(lines=pub("a", 101)), "Maximum Payload Violation", Try(lines=pub("a", 100))),
    ("max_subscriptions", LIMITS, Try(lines=("SUB a 1", "SUB b 2", "SUB c 3")), "maximum subscriptions exceeded",
     Try(lines=("SUB a 1", "SUB b 2", "UNSUB 1", "SUB c 3"))),
    ("max_control_line", LIMITS, Try(lines=(f"SUB {'a' * 300} 1",)), "maximum control line exceeded",
     Try(lines=(f"SUB {'a' * 200} 1",))),
    ("max_subscription_tokens", LIMITS, Try(lines=("SUB a.b.c.d 1",)),
     denied("Subscription to", "a.b.c.d", ", too many tokens"), Try(lines=("SUB a.b.c 1",))),
    ("an account's max_payload", ACCOUNT, login("ann", "right", *pub("a", 11)), "Maximum Payload Violation",
     login("bob", "other", *pub("a", 11))),
    ("an account's max_subscriptions", ACCOUNT, login("ann", "right", "SUB a 1", "SUB b 2"),
     "maximum subscriptions exceeded", login("bob", "other", "SUB a 1", "SUB b 2")),
    # verbs of other kinds of connections
    ("a route's verb", PLAIN, Try(lines=("RS+ $G a",)), "Unknown Protocol Operation", Try(lines=("SUB a 1",))),
    ("a leaf's verb", PLAIN, Try(lines=("LS+ a",)), "Unknown Protocol Operation", Try(lines=("SUB a 1",))),
    ("an account's verb", PLAIN, Try(lines=("A+ B",)), "Unknown Protocol Operation", Try(lines=("SUB a 1",))),
]  # fmt: skip


Start = Callable[[Path], AbstractAsyncContextManager[tuple[int, object]]]


async def outcomes(file: Path, start: Start, tries: int = 1) -> dict[str, tuple[str, str]]:
    """Outcomes of the whole table, at servers that `start` makes of a configuration file: (attempt, twin). `tries`: how
    often an end without a word is tried again; nats-server's resets can overtake its last words."""
    found: dict[str, tuple[str, str]] = {}
    for text in dict.fromkeys(row[1] for row in ROWS):
        file.write_text(text)
        async with start(file) as (port, _):
            for what, of, attempted, _, twin in ROWS:
                if of == text:
                    answer = await attempt(port, attempted)
                    for _ in range(tries - 1):
                        answer = await attempt(port, attempted) if answer == "closed" else answer
                    found[what] = answer, await attempt(port, twin)
        await close_all()
    return found


@asynccontextmanager
async def _here(file: Path) -> AsyncIterator[tuple[int, object]]:
    async with configured(file) as (server, reload):
        yield server.port, reload


async def test_attempts_that_must_fail_and_their_twins(tmp_path: Path) -> None:
    found = await outcomes(tmp_path / "server.conf", _here)
    assert found == {what: (expected, OK) for what, _, _, expected, _ in ROWS}
    assert len(found) == len(ROWS)


async def test_nothing_is_done_for_who_is_refused(tmp_path: Path) -> None:
    """Commands that come in one piece with a refused CONNECT do not count; with a good one they do."""
    (tmp_path / "server.conf").write_text(USERS)
    async with configured(tmp_path / "server.conf") as (server, _):
        ann = await Wire.open(server.port)
        await ann.log_in(user="ann", **{"pass": "right"})
        await ann.ask("SUB > 1")
        for password, heard in (("wrong", []), ("other", [b"x"])):
            bob = await Wire.open(server.port)
            bob.send(f'CONNECT {{"verbose":false,"user":"bob","pass":"{password}"}}', "SUB > 1", "PUB a 1", "x")
            await bob.settle()
            assert [frame.payload for frame in messages(await ann.settle())] == heard
        assert [len(client.subscriptions) for client in server.clients] == [1, 1]


async def test_connections_beyond_a_limit(tmp_path: Path) -> None:
    text = "max_connections: 3\n" + ACCOUNT.replace("max_subscriptions: 1", "max_connections: 1")
    (tmp_path / "server.conf").write_text(text)
    async with configured(tmp_path / "server.conf") as (server, _):
        assert await attempt(server.port, login("ann", "right")) == OK
        assert await attempt(server.port, login("ann", "right")) == "maximum account active connections exceeded"
        assert await attempt(server.port, login("bob", "other")) == OK
        assert await attempt(server.port, login("bob", "other")) == OK
        full = await Wire.open(server.port)
        assert errors(await full.to_the_end()) == ["maximum connections exceeded"]
        await close_all()  # and there is room again
        while server.clients:
            await asyncio.sleep(0.01)
        assert await attempt(server.port, login("ann", "right")) == OK


@pytest.mark.parametrize("drip", [b"", b"C", b"\r", b'CONNECT {"user":'], ids=["silent", "drips", "blanks", "begins"])
async def test_who_does_not_come_to_the_point_is_sent_away(tmp_path: Path, drip: bytes) -> None:
    """Bytes that keep coming do not keep a connection open that has not logged in."""
    (tmp_path / "server.conf").write_text(USERS.replace("users:", "timeout: 0.3, users:"))
    async with configured(tmp_path / "server.conf") as (server, _):
        wire = await Wire.open(server.port)
        ann = await Wire.open(server.port)
        await ann.log_in(user="ann", **{"pass": "right"})
        loop = asyncio.get_running_loop()
        begun = loop.time()
        ending = asyncio.ensure_future(wire.to_the_end())
        wire.writer.write(drip)
        while not ending.done() and loop.time() - begun < 5:
            await asyncio.sleep(0.02)
            if drip == b"C" and loop.time() - begun < 0.25:
                wire.writer.write(b" ")
        assert errors(await ending) in (["Authentication Timeout"], [VIOLATION], ["Unknown Protocol Operation"])
        assert loop.time() - begun < 3
        assert errors(await ann.ask("PUB a 0", "")) == []  # who is in stays


def test_every_row_has_a_name_of_its_own() -> None:
    assert len({what for what, *_ in ROWS}) == len(ROWS)
    assert all(json.dumps(one.connect) for _, _, attempted, _, twin in ROWS for one in (attempted, twin))
