"""Dialogues of one client and a server, to the byte: what the client says, and what it hears. The answers are those of
nats-server 2.15.3 (`tests/cluster/test_dialogues.py` asks it, under `make oracle`)."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

ACCOUNTS: Final = """
  LINES { users: [
    {user: lines, password: lines}
    {user: only, password: only, permissions: {
      publish: ["p.ok", "p.*.x", "_INBOX.>"], subscribe: ["s.ok", "s.w.*", "_INBOX.>"] } }
    {user: but, password: but, permissions: {
      publish: { deny: ["p.no", "p.n.>"] }, subscribe: { deny: ["s.no", "s.n.*"] } } }
    {user: both, password: both, permissions: {
      publish: { allow: "p.>", deny: "p.no" }, subscribe: { allow: "s.>", deny: ["s.no"] } } }
    {user: queues, password: queues, permissions: {
      subscribe: { allow: ["q.one g", "q.two *.dev", "q.any"], deny: ["q.any no"] } } }
    {user: twice, password: twice, permissions: {
      publish: ["r.>", "p.ok"], subscribe: ["r.>"], allow_responses: { max: 2, expires: "1s" } } }
    {user: always, password: always, permissions: {
      publish: ["r.>"], subscribe: ["r.>"], allow_responses: { max: -1, expires: "1m" } } }
    {user: web, password: web, allowed_connection_types: ["WEBSOCKET"]}
    {user: both_ways, password: both_ways, allowed_connection_types: ["STANDARD", "WEBSOCKET"]}
    {user: leaf, password: leaf, allowed_connection_types: ["LEAFNODE"]}
  ] }
  FEW { users: [ {user: few, password: few} ], limits { max_connections: 2, max_subscriptions: 3, max_payload: 100 } }
"""
"""More lines of `accounts`."""
MAX_PAYLOAD: Final = 1 << 20
MAX_LINE: Final = 4096
_OWN = re.compile(rb"INFO \{[^\r]*\r\n|PING\r\n")
UNKNOWN: Final = b"-ERR 'Unknown Protocol Operation'\r\n"
INVALID: Final = b"-ERR 'Invalid Subject'\r\n"
INVALID_PUBLISH: Final = b"-ERR 'Invalid Publish Subject'\r\n"
TOO_MANY: Final = b"-ERR 'maximum account active connections exceeded'\r\n"
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"


def connect(user: str = "lines", **options: Any) -> bytes:
    fields = {
        "verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "none", "version": "1",
        "protocol": 1, "user": user, "pass": user,
    }  # fmt: skip
    return b"CONNECT %s\r\n" % json.dumps(fields | options).encode()


def publish(subject: str, body: bytes = b"x", reply: str = "") -> bytes:
    words = " ".join(filter(None, ("PUB", subject, reply, str(len(body)))))
    return b"%s\r\n%s\r\n" % (words.encode(), body)


def message(subject: str, sid: int, body: bytes = b"x", reply: str = "") -> bytes:
    words = " ".join(filter(None, ("MSG", subject, str(sid), reply, str(len(body)))))
    return b"%s\r\n%s\r\n" % (words.encode(), body)


def answers(heard: bytes) -> bytes:
    """All but what a server says by itself: INFO, again after CONNECT, and PING."""
    return _OWN.sub(b"", heard)


class Dialogue(NamedTuple):
    name: str
    turns: tuple[tuple[bytes, bytes], ...]
    """(said, `answers` to it), one after the other."""
    ends: bool = False
    """The server closes the connection then."""


def _one(name: str, said: bytes, heard: bytes, *, ends: bool = False, **options: Any) -> Dialogue:
    return Dialogue(name, ((connect(**options) + said, heard),), ends)


_HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"
DIALOGUES: Final = (
    Dialogue(
        "a verbose client",
        (
            (connect(verbose=True), b"+OK\r\n"),
            (PING, PONG),
            (b"SUB v 1\r\n", b"+OK\r\n"),
            (publish("v", b"hi"), b"+OK\r\n" + message("v", 1, b"hi")),
            (b"UNSUB 1\r\n", b"+OK\r\n"),
            (publish("v"), b"+OK\r\n"),
        ),
    ),
    Dialogue("CONNECT twice", ((connect() + connect(verbose=True) + PING, b"+OK\r\n" + PONG),)),
    _one("no echo", b"SUB e 1\r\n" + publish("e") + PING, PONG, echo=False),
    _one("two, counted", b"SUB c 1\r\nUNSUB 1 2\r\n" + publish("c") * 3 + PING, message("c", 1) * 2 + PONG),
    _one(
        "two that have come",
        b"SUB c 1\r\n" + publish("c") * 2 + b"UNSUB 1 2\r\n" + publish("c") + PING,
        message("c", 1) * 2 + PONG,
    ),
    _one(
        "three, one of which has come",
        b"SUB c 1\r\n" + publish("c") + b"UNSUB 1 3\r\n" + publish("c") * 4 + PING,
        message("c", 1) * 3 + PONG,
    ),
    _one(
        "five, and then none",
        b"SUB c 1\r\nUNSUB 1 5\r\n" + publish("c") + b"UNSUB 1\r\n" + publish("c") + PING,
        message("c", 1) + PONG,
    ),
    _one(
        "one, and a new subscription",
        b"SUB c 1\r\nUNSUB 1 1\r\n" + publish("c") + b"SUB c 1\r\n" + publish("c") * 2 + PING,
        message("c", 1) * 3 + PONG,
    ),
    _one("a subscription that is not there", b"UNSUB 99\r\n" + PING, PONG),
    _one(
        "an id that is taken",
        b"SUB a 1\r\nSUB b 1\r\n" + publish("a") + publish("b") + b"UNSUB 1\r\n" + publish("a") + publish("b") + PING,
        message("a", 1) + PONG,
    ),
    _one("a queue of one", b"SUB q g 1\r\n" + publish("q") + b"UNSUB 1\r\n" + publish("q") + PING,
         message("q", 1) + PONG),
    _one(
        "headers",
        b"SUB h 1\r\nHPUB h 18 20\r\n" + _HEADER + b"hi\r\nHPUB h r 18 18\r\n" + _HEADER + b"\r\n" + PING,
        b"HMSG h 1 18 20\r\n" + _HEADER + b"hi\r\nHMSG h 1 r 18 18\r\n" + _HEADER + b"\r\n" + PONG,
    ),
    _one("headers of one who has none", b"HPUB h 18 18\r\n" + _HEADER + b"\r\n" + PING, b"", ends=True, headers=False,
         no_responders=False),
    _one("headers longer than all", b"HPUB a 20 18\r\n" + PING, b"", ends=True),
    _one(
        "nobody answers",
        b"SUB i.* 7\r\n" + publish("nobody", reply="i.1") + PING,
        b"HMSG i.1 7 38 38\r\nNATS/1.0 503\r\nNats-Subject: nobody\r\n\r\n\r\n" + PONG,
    ),
    _one("nobody answers, and need not", b"SUB i.* 7\r\n" + publish("nobody", reply="i.1") + PING, PONG,
         no_responders=False),
    _one("errors of requests without headers", PING, b"-ERR 'no responders requires headers support'\r\n", ends=True,
         headers=False),
    _one("the longest message", b"SUB a 1\r\n" + publish("a", bytes(MAX_PAYLOAD)) + PING,
         message("a", 1, bytes(MAX_PAYLOAD)) + PONG),
    _one("a longer message", b"PUB a %d\r\n" % (MAX_PAYLOAD + 1), b"-ERR 'Maximum Payload Violation'\r\n", ends=True),
    _one("as much as an account may send, and more", publish("a", bytes(100)) + PING + publish("a", bytes(101)),
         PONG + b"-ERR 'Maximum Payload Violation'\r\n", ends=True, user="few"),
    _one("a long line", b"SUB " + b"a" * MAX_LINE + b" 1\r\n" + PING, b"-ERR 'maximum control line exceeded'\r\n",
         ends=True),
    _one("more than was said", b"SUB a 1\r\nPUB a 1\r\nxy\r\n" + PING, UNKNOWN, ends=True),
    _one("less than nothing", b"PUB a -1\r\n\r\n" + PING, b"", ends=True),
    _one("no size", b"PUB a\r\n\r\n" + PING, b"", ends=True),
    _one("a size that is none", b"PUB a b\r\n\r\n" + PING, b"", ends=True),
    _one("a subscription without a number", b"SUB a\r\n" + PING, b"", ends=True),
    _one("a subscription with too much", b"SUB a b c d\r\n" + PING, b"", ends=True),
    _one("UNSUB of nothing", b"UNSUB\r\n" + PING, UNKNOWN, ends=True),
    _one("no command", b"FOO\r\n" + PING, UNKNOWN, ends=True),
    _one("an empty line", b"\r\n" + PING, UNKNOWN, ends=True),
    _one("a server's commands", b"+OK\r\nPONG\r\nINFO {}\r\n" + PING, PONG),
    _one("an error of the client", b"-ERR 'x'\r\n" + PING, b"", ends=True),
    Dialogue("options that are none", ((b"CONNECT {\r\n", b""),), ends=True),
    Dialogue(
        "a wrong password",
        ((connect(**{"pass": "no"}) + PING, b"-ERR 'Authorization Violation'\r\n"),),
        ends=True,
    ),
    _one("invalid subjects", publish("a..b") + publish("a.*") + PING, INVALID_PUBLISH * 2 + PONG, pedantic=True),
    _one("invalid subjects that nobody looks at", b"SUB > 1\r\n" + publish("a..b") + publish(".a") + PING, PONG),
    _one("a published wildcard", b"SUB a.> 1\r\n" + publish("a.*") + PING, message("a.*", 1) + PONG),
    _one("invalid patterns", b"SUB a..b 1\r\nSUB .a 2\r\nSUB a. 3\r\nSUB a.>.b 4\r\n" + PING, INVALID * 4 + PONG),
    _one("small letters", b"sub a 1\r\npub a 1\r\nx\r\nunsub 1\r\nPub a 1\r\nx\r\nPiNg\r\n", message("a", 1) + PONG),
    _one("lines that end with LF", b"SUB a 1\nPUB a 1\nx\r\nPING\n", message("a", 1) + PONG),
    _one("spaces and tabs", b"SUB \t a   1 \r\nPUB   a  1\r\nx\r\nPUB\ta\tr\t1\r\nx\r\n" + PING,
         message("a", 1) + message("a", 1, reply="r") + PONG),
    _one(
        "as many subscriptions as an account may have",
        b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\nSUB d 4\r\nUNSUB 1\r\nSUB d 4\r\n" + publish("d") + PING,
        b"-ERR 'maximum subscriptions exceeded'\r\n" + message("d", 4) + PONG,
        user="few",
    ),
)  # fmt: skip


def refused(what: str, subject: str, queue: str = "") -> bytes:
    """The error of a permission."""
    named = f' using queue "{queue}"' if queue else ""
    return f"-ERR 'Permissions Violation for {what} \"{subject}\"{named}'\r\n".encode()


def _publishes(user: str, *cases: tuple[str, bool]) -> Dialogue:
    """Subjects, and whether the user may publish on them."""
    said = b"".join(publish(subject) for subject, _ in cases)
    heard = b"".join(refused("Publish to", subject) for subject, may in cases if not may)
    return _one(f"what {user} may publish", said + PING, heard + PONG, user=user)


def _subscribes(user: str, *cases: tuple[str, bool]) -> Dialogue:
    """Subjects, some with a queue, and whether the user may subscribe to them."""
    said = b"".join(b"SUB %s %d\r\n" % (subject.encode(), sid) for sid, (subject, _) in enumerate(cases, 1))
    heard = b"".join(refused("Subscription to", *subject.split()) for subject, may in cases if not may)
    return _one(f"what {user} may subscribe to", said + PING, heard + PONG, user=user)


def _answers(user: str, count: int, most: int) -> Dialogue:
    """A request to itself, whose reply it may not publish to otherwise; of so many answers it may `most`."""
    ask = publish("r.ask", reply="private")
    errors = refused("Publish to", "private") * (count - most)
    return Dialogue(
        f"{count} answers of {user}",
        (
            (connect(user) + publish("private") + PING, refused("Publish to", "private") + PONG),
            (b"SUB r.ask 1\r\n" + ask + PING, message("r.ask", 1, reply="private") + PONG),
            (publish("private") * count + publish("other") + PING, errors + refused("Publish to", "other") + PONG),
        ),
    )


_REFUSED: Final = b"-ERR 'Authorization Violation'\r\n"
RIGHTS: Final = (
    _publishes("only", ("p.ok", True), ("p.a.x", True), ("p.a.b.x", False), ("p", False), ("p.ok.x", True),
               ("q", False), ("P.ok", False), ("p.a.xx", False)),
    _publishes("but", ("p.no", False), ("p.n.x", False), ("p.n.x.y", False), ("p.n", True), ("p.no.x", True),
               ("anything", True)),
    _publishes("both", ("p.yes", True), ("p.no", False), ("p.no.x", True), ("p", False), ("q.x", False)),
    _publishes("twice", ("p.ok", True), ("r.a.b", True), ("private", False), ("r", False)),
    _subscribes("only", ("s.ok", True), ("s.w.x", True), ("s.w.x.y", False), ("s.w", False), ("s.*", False),
                (">", False), ("s.w.*", True), ("s.ok g", True), ("s.no g", False)),
    _subscribes("but", ("s.no", False), ("s.yes", True), ("s.*", True), ("s.n.x", False), ("s.n.x.y", True),
                ("s.no g", False), (">", True)),
    _subscribes("both", ("s.yes", True), ("s.no", False), ("s.a.b", True), ("t", False), ("s", False)),
    _subscribes("queues", ("q.one g", True), ("q.one h", False), ("q.two a.dev", True), ("q.two dev", False),
                ("q.any", True), ("q.any yes", True), ("q.any no", False)),
    _one("what is denied is not delivered to a wider subscription",
         b"SUB s.* 1\r\n" + publish("s.no") + publish("s.yes") + PING, message("s.yes", 1) + PONG, user="but"),
    _one("a denied publish is not delivered", b"SUB > 1\r\n" + publish("p.no") + publish("p.yes") + PING,
         refused("Publish to", "p.no") + message("p.yes", 1) + PONG, user="but"),
    _one("who may only come by WebSocket", PING, _REFUSED, ends=True, user="web"),
    _one("who may only come as a leaf", PING, _REFUSED, ends=True, user="leaf"),
    _one("who may come in both ways", PING, PONG, user="both_ways"),
    _one("nobody that is known", PING, _REFUSED, ends=True, user="nobody"),
    _answers("twice", 1, 1),
    _answers("twice", 2, 2),
    _answers("twice", 4, 2),
    _answers("always", 9, 9),
    _one("a permission's error of a verbose client", publish("p.no") + b"SUB s.no 1\r\n" + PING,
         b"+OK\r\n" + refused("Publish to", "p.no") + refused("Subscription to", "s.no") + PONG,
         user="but", verbose=True),
)  # fmt: skip
"""Dialogues of users that may not do everything."""
