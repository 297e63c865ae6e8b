"""Loads that want to keep a server from everybody else: what a stranger, a client or a leaf can send that is costly.

    python -m testkit.attacks KIND SECONDS '{"client": 4222, "leaf": 7422, "websocket": 8080, "http": 8222}'

runs one of them (`KINDS`) against a server on this machine that has the users of `CONFIG`, from a process of its own.
`bench/scenarios/attack.py` measures what another client notices of it.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import random
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jetcluster.budget import at_once
from jetcluster.protocol import s2, stream_archive

SLOW_USERS = 5
"""Users `slow-0` and so on, whose passwords are bcrypt hashes of "right"."""
CONFIG = """
host: 127.0.0.1, port: %(client)d, http: "127.0.0.1:%(http)d", server_name: attacked
jetstream { store_dir: "%(store)s", max_mem: 1GB, max_file: 4GB }
leafnodes { host: 127.0.0.1, port: %(leaf)d }
websocket { host: 127.0.0.1, port: %(websocket)d, no_tls: true, compression: true }
authorization { users: [ {user: u, password: p}%(slow)s ] }
"""
READ = 250_000
STREAM = "SEARCHED"
SUBJECTS = 20_000


def config(ports: dict[str, int], store: str) -> str:
    """The configuration of a server that is to be attacked."""
    import bcrypt

    hashes = [bcrypt.hashpw(b"right", bcrypt.gensalt(11)).decode() for _ in range(SLOW_USERS)]
    slow = "".join(f', {{user: slow-{number}, password: "{stored}"}}' for number, stored in enumerate(hashes))
    return CONFIG % {**ports, "store": store, "slow": slow}


@dataclass
class Target:
    client: int
    leaf: int
    websocket: int
    http: int
    seconds: float

    def until(self) -> Iterator[int]:
        """0, 1, ... until time is up."""
        end = time.monotonic() + self.seconds
        return itertools.takewhile(lambda _: time.monotonic() < end, itertools.count())


class Wire:
    """A client of few words, on a blocking socket."""

    def __init__(self, port: int, user: str = "u", password: str = "p", timeout: float = 30.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._read = b""
        self._asked = 0
        self.info = self.line()
        connect = {"verbose": False, "user": user, "pass": password, "headers": True, "no_responders": True}
        self.send(b"CONNECT " + json.dumps(connect).encode() + b"\r\nPING\r\n")
        self.answer = self.line()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def line(self) -> bytes:
        while b"\r\n" not in self._read:
            self._more()
        found, _, self._read = self._read.partition(b"\r\n")
        return found

    def _more(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise EOFError(self._read[-200:])
        self._read += data

    def message(self) -> tuple[bytes, bytes]:
        """(subject, headers and payload) of the next message; raises EOFError."""
        while True:
            words = self.line().split(b" ")
            if words[0] in (b"MSG", b"HMSG"):
                size = int(words[-1])
                while len(self._read) < size + 2:
                    self._more()
                body, self._read = self._read[:size], self._read[size + 2 :]
                return words[1], body
            if words[0] == b"PING":
                self.send(b"PONG\r\n")

    def request(self, subject: str, payload: Any = b"") -> bytes:
        """Headers and payload of the first message that answers."""
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self._asked += 1
        inbox = b"_INBOX.w.%d" % self._asked
        self.send(b"SUB %b %d\r\nUNSUB %d 1\r\n" % (inbox, self._asked, self._asked))
        self.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox, len(data), data))
        while True:
            found, body = self.message()
            if found == inbox:
                return body

    def flush(self) -> None:
        self.send(b"PING\r\n")
        while self.line() != b"PONG":
            pass


def _sent(port: int, *pieces: bytes, linger: float = 0.0) -> None:
    """All of it, on a connection that may be closed meanwhile."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as one:
        one.settimeout(5)
        for piece in pieces:
            one.sendall(piece)
        if linger:
            one.settimeout(linger)
            while one.recv(1 << 16):
                pass


# ---- requests of the API


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("STREAM.CREATE.X", {"name": "X", "subjects": ["x.>"], "max_msgs": 5, "storage": "memory"}),
    ("STREAM.UPDATE.X", {"name": "X", "subjects": ["x.>"], "republish": {"src": "x.>", "dest": "rx.>"}}),
    ("STREAM.INFO.X", {"subjects_filter": ">", "offset": 0, "deleted_details": True}),
    ("STREAM.PURGE.X", {"filter": "x.*", "keep": 1}),
    ("STREAM.MSG.GET.X", {"seq": 1, "next_by_subj": "x.*"}),
    ("DIRECT.GET.X", {"multi_last": ["x.*", "x.>"], "batch": 5}),
    ("CONSUMER.CREATE.X.c", {"stream_name": "X", "config": {"name": "c", "filter_subjects": ["x.1", "x.*.2"]}}),
    ("CONSUMER.MSG.NEXT.X.c", {"batch": 3, "expires": 1000000, "no_wait": True}),
    ("STREAM.NAMES", {"offset": 0, "subject": "x.>"}),
    ("CONSUMER.LIST.X", {"offset": 0}),
    ("STREAM.DELETE.X", {}),
]
ODD: list[Any] = [None, -1, 0, 2**63, 2**64 - 1, 1e308, "", ">", "*.>", "a" * 3000, "a." * 900 + "a", [], {}, True]


def mutated(value: Any, rng: random.Random) -> Any:
    """The request with something in it that nobody expects."""
    if rng.random() < 0.15:
        return rng.choice(ODD)
    if isinstance(value, dict):
        return {key: mutated(item, rng) for key, item in value.items()}
    if isinstance(value, list):
        return [mutated(item, rng) for item in value] * rng.choice((1, 1, 1, 30))
    return value


def api_garbage(target: Target) -> None:
    rng, wire = random.Random(1), Wire(target.client)
    for _ in target.until():
        subject, request = rng.choice(REQUESTS)
        data = b"PUB $JS.API.%b _INBOX.g %d\r\n%b\r\n"
        body = json.dumps(mutated(request, rng)).encode()
        wire.send(data % (subject.encode(), len(body), body))
        wire.flush()


def pipelined_garbage(target: Target) -> None:
    rng, wire = random.Random(2), Wire(target.client)
    for _ in target.until():
        batch = []
        for _ in range(100):
            subject, request = rng.choice(REQUESTS)
            body = json.dumps(mutated(request, rng)).encode()
            batch.append(b"PUB $JS.API.%b _INBOX.g %d\r\n%b\r\n" % (subject.encode(), len(body), body))
        wire.send(b"".join(batch))
        wire.flush()


# ---- protocol


CONNECT = b'CONNECT {"user":"u","pass":"p","verbose":false}\r\n'
LINES = [
    CONNECT,
    CONNECT[:-3] + b',"x":' + b"[" * 400 + b"]" * 400 + b"}\r\n",
    b"PING\r\n",
    b"PONG\r\n",
    b"+OK\r\n",
    b"INFO {}\r\n",
    b"SUB a.b 1\r\nUNSUB 1\r\n",
    b"SUB a..b 1\r\n",
    b"PUB $NRG.x 0\r\n\r\n",
    b"PUB q.1 0\r\n\r\n",
    b"SUB " + b"*." * 1900 + b"a 1\r\nUNSUB 1\r\n",
]


def protocol_garbage(target: Target) -> None:
    """Reads full of one command each, from a client that is logged in; and what is no protocol, on every port."""
    rng = random.Random(3)
    wires = [Wire(target.client) for _ in range(4)]
    for number in target.until():
        line = LINES[number % len(LINES)]
        for wire in wires:
            wire.send(line * (READ // len(line)))
        for wire in wires:
            wire.flush()
        noise = rng.randbytes(3000)
        for port in (target.client, target.leaf, target.websocket, target.http):
            _sent(port, noise)
        _sent(target.leaf, b"PING\r\n" * 40_000)
        _sent(target.leaf, b"\n" * READ)


def subscriptions(target: Target) -> None:
    """Many, and those that branch at every token."""
    branching = b"".join(
        b"SUB %b %d\r\n" % (b".".join(tokens), number)
        for number, tokens in enumerate(itertools.product((b"a", b"*"), repeat=12))
    )
    deep = b"PUB " + b"a." * 11 + b"%d 0\r\n\r\n"
    for _ in target.until():
        wire = Wire(target.client)
        wire.send(branching + b"".join(deep % number for number in range(30)))
        wire.send(b"".join(b"SUB s.%d x%d\r\n" % (number, number) for number in range(20_000)))
        wire.flush()
        wire.socket.close()


def near_matches(target: Target) -> None:
    """Publishes that nearly match many wildcards, each with a subject that no cache knows."""
    wire = Wire(target.client)
    for number, tokens in enumerate(itertools.product((b"a", b"*"), repeat=14)):
        wire.send(b"SUB %b.z %d\r\n" % (b".".join(tokens), number))
    wire.flush()
    nearly = b"PUB " + b"a." * 14 + b"y%d 0\r\n\r\n"
    for number in target.until():
        wire.send(b"".join(nearly % (number * 20 + index) for index in range(20)))
        wire.flush()
    wire.socket.close()


def leaf_interest(target: Target) -> None:
    """A leaf link whose other end wants very much, and goes; again and again."""
    wanted = b"".join(b"LS+ s.%d.>\r\n" % number for number in range(30_000))
    login = b"CONNECT " + json.dumps({"user": "u", "pass": "p", "server_id": "L", "name": "L"}).encode() + b"\r\n"
    for _ in target.until():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", target.leaf), 5) as one:
            one.settimeout(5)
            one.recv(1 << 16)
            one.sendall(login + wanted + b"PING\r\n")
            seen = b""
            while b"PONG" not in seen and (data := one.recv(1 << 16)):
                seen = seen[-8:] + data


# ---- archives


def uvarint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out += bytes((value & 127 | 128,))
        value >>= 7
    return out + bytes((value,))


def chunk(block: bytes, data: bytes | None = None) -> bytes:
    checksum = s2.masked(at_once(s2.decode_block(block)) if data is None else data).to_bytes(4, "little")
    return b"\x00" + (len(block) + 4).to_bytes(3, "little") + checksum + block


def compressed(pattern: bytes, size: int) -> bytes:
    """A chunk that holds `pattern` again and again: `size` bytes of it in some twenty."""
    block = uvarint(size) + bytes((60 << 2, len(pattern) - 1)) + pattern
    block += bytes((2 | 3 << 2,)) + len(pattern).to_bytes(2, "little")
    return chunk(block + bytes((1 | 7 << 2, 0)) + (size - len(pattern) - 4 - 65_540).to_bytes(3, "little"))


def bombs() -> dict[str, bytes]:
    """Archives by what is wrong with them."""
    entry = stream_archive.encode(b"N", 0, 0, b"", b"p" * 58)
    state = stream_archive.encode(stream_archive.STATE_NAME, 0, 0, b"", b"{}")
    head = s2.STREAM_ID + b"".join(s2.encode(stream_archive.MAGIC + state))
    literals = uvarint(400_000) + b"\x00A" * 400_000
    small = b"".join(stream_archive.encode(b"r.%d" % (seq % 9), seq * 2, seq * 2, b"", b"") for seq in range(1, 40_000))
    return {
        "ignored": head + compressed(entry, 4 << 20) * 40,
        "literals": head + chunk(literals, b"A" * 400_000),
        "small": head + b"".join(s2.encode(small)),
        "skipped": head + b"\x80\x00\x00\x00" * 100_000,
    }


def restore_bombs(target: Target) -> None:
    found = bombs()
    wires = [Wire(target.client) for _ in found]
    for number in target.until():
        for wire, (kind, data) in zip(wires, found.items(), strict=True):
            name = f"R{kind}{number}"
            state = {"messages": 1, "first_seq": 1, "last_seq": 1, "bytes": 2**63}
            answer = wire.request(
                f"$JS.API.STREAM.RESTORE.{name}", {"config": {"name": name, "subjects": [f"r{name}.>"]}, "state": state}
            )
            subject = json.loads(answer).get("deliver_subject")
            if subject:
                for at in range(0, len(data), 500_000):
                    piece = data[at : at + 500_000]
                    wire.send(b"PUB %b _INBOX.g %d\r\n%b\r\n" % (subject.encode(), len(piece), piece))
        for wire in wires:
            wire.flush()
        time.sleep(0.2)


# ---- WebSocket


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: "
    + base64.b64encode(b"0" * 16)
    + b"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Extensions: permessage-deflate; "
    b"server_no_context_takeover; client_no_context_takeover\r\n\r\n"
)


def frame(payload: bytes, opcode: int = 2, *, packed: bool = False, final: bool = True) -> bytes:
    size = len(payload)
    if size < 126:
        length = bytes((0x80 | size,))
    elif size < 65_536:
        length = bytes((0x80 | 126,)) + struct.pack(">H", size)
    else:
        length = bytes((0x80 | 127,)) + struct.pack(">Q", size)
    return bytes((0x80 * final | 0x40 * packed | opcode,)) + length + bytes(4) + payload


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


def _websocket(target: Target, frames: bytes) -> None:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", target.websocket), 5) as one:
        one.settimeout(5)
        one.sendall(UPGRADE)
        one.recv(4096)
        one.sendall(frames)
        one.settimeout(0.5)
        while one.recv(1 << 16):
            pass


def websocket_pings(target: Target) -> None:
    """Before the login: pings, pongs, continuations, frames of nothing."""
    floods = [
        frame(b"", 9) * 80_000,
        frame(b"x" * 125, 9) * 8_000,
        frame(b"", 10) * 80_000,
        frame(b"", final=False) + frame(b"", 0, final=False) * 80_000,
        frame(b"") * 80_000,
    ]
    for number in target.until():
        _websocket(target, floods[number % len(floods)])


def websocket_compressed(target: Target) -> None:
    """Sends compressed frames that hold nothing, or very much."""
    floods = [
        frame(b"\x03\x00" * 500_000, packed=True),
        frame(b"", packed=True) * 80_000,
        frame(deflated(b""), packed=True) * 40_000,
        frame(b"\x00\x00\x00\xff\xff" * 100_000, packed=True),
        frame(deflated(CONNECT + b"+OK\r\n" * 1_000_000), packed=True),
        frame(deflated(bytes(100_000_000)), packed=True),
    ]
    for number in target.until():
        _websocket(target, floods[number % len(floods)])


# ---- subjects and configurations


def prepare(port: int) -> None:
    """The stream that is searched."""
    wire = Wire(port)
    wire.request(f"$JS.API.STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": ["m.>"], "allow_direct": True})
    for start in range(0, SUBJECTS, 1000):
        wire.send(b"".join(b"PUB m.b%d.c 0\r\n\r\n" % number for number in range(start, start + 1000)))
    while json.loads(wire.request(f"$JS.API.STREAM.INFO.{STREAM}"))["state"]["messages"] < SUBJECTS:
        time.sleep(0.05)
    wire.socket.close()


SHAPES = [b"m." + b".".join(tokens) for size in range(2, 9) for tokens in itertools.product((b"*", b"c"), repeat=size)][
    :400
]
"""Wildcards, most of them, of which no two can be looked for together."""


def subject_searches(target: Target) -> None:
    wire = Wire(target.client)
    for number in target.until():
        wildcards = [f"m.*.x{index}" for index in range(500)]
        wire.request(f"$JS.API.DIRECT.GET.{STREAM}", {"multi_last": wildcards})
        wire.request(f"$JS.API.STREAM.INFO.{STREAM}", {"subjects_filter": "m.*.x"})
        headers = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 5\r\n"
        headers += b"Nats-Expected-Last-Subject-Sequence-Subject: %b\r\n\r\n"
        for expected in (*(b"m.*.x%d" % index for index in range(100)), *SHAPES):
            block = headers % expected
            wire.send(b"HPUB m.z %d %d\r\n%b\r\n" % (len(block), len(block), block))
        filters = {"name": f"c{number}", "filter_subjects": [f"m.*.*.*.{index}" for index in range(500)]}
        lasts = {"name": f"l{number}", "deliver_policy": "last_per_subject", "filter_subject": "m.>"}
        for config in (filters, lasts):
            name = config["name"]
            wire.request(f"$JS.API.CONSUMER.CREATE.{STREAM}.{name}", {"stream_name": STREAM, "config": config})
            wire.request(f"$JS.API.CONSUMER.DELETE.{STREAM}.{name}")
        wire.request(f"$JS.API.STREAM.INFO.{STREAM}", {"subjects_filter": ">"})


def configurations(target: Target) -> None:
    """Sends configurations whose parts are all compared with each other, and very long subjects."""
    wire = Wire(target.client)
    wishes: list[dict[str, Any]] = [
        {"subjects": [f"t.{index}" for index in range(2500)]},
        {"sources": [{"name": f"x{index}", "filter_subject": f"y.{index}"} for index in range(6000)]},
        {
            "sources": [
                {
                    "name": "S",
                    "subject_transforms": [{"src": f"s.{index}", "dest": f"q.{index}"} for index in range(1500)],
                }
            ]
        },
        {"subjects": ["a." * 400_000 + "a"]},
        {"subjects": [f"*.*.*.t{index}.*" for index in range(2000)]},
    ]
    for number in target.until():
        wish = wishes[number % len(wishes)]
        wire.request(f"$JS.API.STREAM.CREATE.T{number}", {"name": f"T{number}", **wish})
        wire.request(f"$JS.API.STREAM.DELETE.T{number}")


# ---- HTTP and logins


def slow_http(target: Target) -> None:
    """Requests that are never finished, and what is none."""
    held: list[socket.socket] = []
    garbage = [
        b"GET /varz HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 5000,
        b"\x16\x03\x01" + b"\xff" * 500,
        b"FOO\r\n\r\n",
    ]
    for number in target.until():
        with contextlib.suppress(OSError):
            one = socket.create_connection(("127.0.0.1", target.http), 3)
            one.sendall(b"GET /varz HTTP/1.1\r\nHost: x\r\nX-A: ")
            held.append(one)
        _sent(target.http, garbage[number % len(garbage)])
        if len(held) > 300:
            held.pop(0).close()


def wrong_logins(target: Target) -> None:
    """A hundred at a time, of a user whose password is a bcrypt hash; a genuine one in between has to be answered."""
    for number in target.until():
        guesses = []
        user = f"slow-{number % SLOW_USERS}"
        for guess in range(100):
            with contextlib.suppress(OSError):
                one = socket.create_connection(("127.0.0.1", target.client), 5)
                connect = {"verbose": False, "user": user, "pass": f"wrong-{number}-{guess}"}
                one.sendall(b"CONNECT " + json.dumps(connect).encode() + b"\r\nPING\r\n")
                guesses.append(one)
        begun = time.monotonic()
        answer = Wire(target.client, user, "right").answer
        print(f"genuine login: {answer.decode()} after {time.monotonic() - begun:.2f} s", flush=True)
        for one in guesses:
            one.close()


# ---- what costs later, or each time that something else comes


def _made(wire: Wire, name: str, **config: Any) -> None:
    """Asks until it is there: other attackers may have filled the API."""
    wish = {"name": name, "storage": "memory", **config}
    while not (answer := wire.request(f"$JS.API.STREAM.CREATE.{name}", wish)).startswith(b"{"):
        time.sleep(0.05)
    assert b'"error"' not in answer, answer


def schedules(target: Target) -> None:
    """Messages that come again each second with 64 KB of headers, and patterns that never fire, in odd time zones."""
    wire = Wire(target.client)
    _made(wire, "TIMED", subjects=["at.>", "out"], allow_msg_schedules=True, max_msgs_per_subject=1)
    lines = b"a:\r\n" * 16_000
    never = b"Nats-Schedule: 0 0 0 31 2,4,6,9,11 *\r\nNats-Schedule-Time-Zone: Australia/Lord_Howe\r\n"
    often = b"Nats-Schedule: @every 1s\r\n"
    for number in target.until():
        for pattern, more in ((often, lines), *[(never, b"")] * 20):
            block = b"NATS/1.0\r\n" + pattern + b"Nats-Schedule-Target: out\r\n" + more + b"\r\n"
            wire.send(b"HPUB at.%d %d %d\r\n%b\r\n" % (number % 60, len(block), len(block), block))
        wire.flush()
    wire.request("$JS.API.STREAM.DELETE.TIMED")


def traces(target: Target) -> None:
    """Reports about messages with very many header lines."""
    wire = Wire(target.client)
    wire.send(b"SUB report 9999\r\n")
    lines = b"".join(b"%x:\r\n" % number for number in range(140_000))[:1_000_000]
    block = b"NATS/1.0\r\nNats-Trace-Dest: report\r\nNats-Trace-Only: 1\r\n" + lines
    block = block[: block.rindex(b"\r\n")] + b"\r\n\r\n"
    for _ in target.until():
        wire.send(b"HPUB q %d %d\r\n%b\r\n" % (len(block), len(block), block) * 3)
        for _ in range(3):
            wire.message()


def waiting_pulls(target: Target) -> None:
    """Requests that wait for different things while messages come; then their consumer is deleted."""
    wire = Wire(target.client)
    _made(wire, "PULLED", subjects=["p"], max_msgs=100)
    group = {"priority_policy": "overflow", "priority_groups": ["g"]}
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit", "max_waiting": 1_000_000, **group}
    pull = b"PUB $JS.API.CONSUMER.MSG.NEXT.PULLED.c _INBOX.late.%d %d\r\n%b\r\n"
    wire.send(b"SUB _INBOX.late.> 9999\r\n")
    for _ in target.until():
        wire.request("$JS.API.CONSUMER.CREATE.PULLED.c", {"stream_name": "PULLED", "config": config})
        for start in range(0, 20_000, 1000):
            bodies = [b'{"batch":9,"group":"g","min_pending":%d}' % (10**6 + n) for n in range(start, start + 1000)]
            pulls = [pull % (start + n, len(body), body) for n, body in enumerate(bodies)]
            wire.send(b"".join(pulls) + b"PUB p 0\r\n\r\n" * 50)
        wire.request("$JS.API.CONSUMER.DELETE.PULLED.c")


def long_counters(target: Target) -> None:
    """Sums of thousands of digits."""
    wire = Wire(target.client)
    _made(wire, "SUMS", subjects=["sum.*"], allow_msg_counter=True, max_msgs=1000)
    block = b"NATS/1.0\r\nNats-Incr: +%b\r\n\r\n" % (b"9" * 2000)
    for number in target.until():
        wire.send(b"HPUB sum.%d %d %d\r\n%b\r\n" % (number % 7, len(block), len(block), block) * 100)
        wire.flush()


KINDS: dict[str, Callable[[Target], None]] = {
    "api-garbage": api_garbage,
    "pipelined-garbage": pipelined_garbage,
    "protocol-garbage": protocol_garbage,
    "subscriptions": subscriptions,
    "near-matches": near_matches,
    "leaf-interest": leaf_interest,
    "restore-bombs": restore_bombs,
    "websocket-pings": websocket_pings,
    "websocket-compressed": websocket_compressed,
    "subject-searches": subject_searches,
    "configurations": configurations,
    "slow-http": slow_http,
    "wrong-logins": wrong_logins,
    "schedules": schedules,
    "traces": traces,
    "waiting-pulls": waiting_pulls,
    "long-counters": long_counters,
}


if __name__ == "__main__":
    KINDS[sys.argv[1]](Target(**json.loads(sys.argv[3]), seconds=float(sys.argv[2])))
