"""Dialogues of one client and a server, to the byte: what the client says, and what it hears. The answers are those of
nats-server 2.15.3 (`tests/cluster/test_dialogues.py` asks it, under `make oracle`)."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

ACCOUNTS: Final = """
  LINES { users: [ {user: lines, password: lines} ] }
  FEW { users: [ {user: few, password: few} ], limits { max_connections: 2, max_subscriptions: 3 } }
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
