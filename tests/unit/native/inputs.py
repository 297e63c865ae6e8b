"""Random input for compiled loops and their twins, and what they make of it: of a seed both get the same.

`Inputs` is what a client sends, `Rig` a server with its takers, that gets it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jetcluster.auth.permissions import UserPermissions
from jetcluster.config.account_options import PermissionOptions, ResponseOptions, SubjectLists
from jetcluster.protocol.bus import Origin, Outgoing, Subscription, Valve
from jetcluster.server.client import commands
from jetcluster.server.permissions import ConnectionPermissions
from testkit.native import python_alone
from testkit.server_rig import FakePeer, Peer, ServerRig
from testkit.twins.time import ManualTime

SUBJECTS = [
    b"a",
    b"a.b",
    b"a.b.c",
    b"orders.1",
    b"orders.2",
    b"deep.one.two.three",
    b"svc",
    b"_GR_.x",
    b"$JS.ACK.x.1",
    b"$JS.ACK.S.C.1.2.3.4.5",
    b"$JS.ACK.S.C.1.3.4.5.6",
    b"$JS.ACK.S.C.1..4.5.6",
]
FILTERS = [b"a", b"a.*", b"a.>", b"orders.*", b"orders.1", b">", b"deep.>", b"*.b", b"svc", b"$JS.ACK.S.C.*.*.*.*.*"]
REPLIES = [b"_INBOX.r.1", b"_INBOX.r.2", b"_INBOX.", b"reply", b"$JS.ACK.x", b"_R_.x"]
BLANKS = [b" "] * 12 + [b"  ", b"\t", b" \t "]
ENDS = [b"\r\n"] * 12 + [b"\n", b"\r\r\n", b" \r\n"]


class Inputs:
    """One seed's commands, as a client might send them, and some that none should."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.subjects = self.rng.sample(SUBJECTS, self.rng.choice([1, 2, 12]))
        self.subject = self.rng.choice(self.subjects)
        self.count = 0
        """The commands in `pieces`."""

    def message(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.4:
            self.subject = rng.choice(self.subjects)
        reply = [rng.choice(REPLIES)] if rng.random() < 0.3 else []
        large = rng.choice([70_000, 5000, 5000, 5000]) if rng.random() < 0.03 else 900
        payload = rng.randbytes(rng.choice([0, 1, 5, 16, 16, 128, 600, 40, large]))
        headers = rng.choice(
            [
                b"NATS/1.0\r\nA: b\r\n\r\n",
                b"NATS/1.0\r\n\r\n",
                b"NATS/1.0\r\nNats-Trace-Dest: t\r\n\r\n",
                b"",
                b"NATS/1.0\r\nNats-Schedule: @every 1s\r\nNats-Schedule-Target: svc\r\n\r\n",
            ]
        )
        if rng.random() < 0.25:
            sizes, verb, body = (
                [b"%d" % len(headers), b"%d" % (len(headers) + len(payload))],
                b"HPUB",
                headers + payload,
            )
        else:
            sizes, verb, body = [self.digits(len(payload))], b"PUB", payload
        line = verb
        for part in (self.subject, *reply, *sizes):
            line += rng.choice(BLANKS) + part
        return line + rng.choice(ENDS) + body + b"\r\n"

    def digits(self, size: int) -> bytes:
        return self.rng.choice([b"%d"] * 20 + [b"0%d", b"%d"]) % size

    def other(self) -> bytes:
        rng = self.rng
        sid = b"%d" % rng.randrange(1, 6)
        return rng.choice([
            b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"pub a 1\r\nx\r\n", b"PUB a 0 \r\n\r\n",
            b"SUB %b %b\r\n" % (rng.choice(FILTERS), sid), b"SUB %b q %b\r\n" % (rng.choice(FILTERS), sid),
            b"UNSUB %b\r\n" % sid, b"UNSUB %b %d\r\n" % (sid, rng.randrange(1, 9)),
        ])  # fmt: skip

    def wrong(self) -> bytes:
        return self.rng.choice([
            b"PUB a\r\n", b"PUB a b c d\r\n", b"PUB a -1\r\n", b"PUB a +1\r\nx\r\n", b"PUB a 99999999\r\n",
            b"HPUB a 9 2\r\n",
            b"PUB a 1\r\nxy\r\n", b"NOPE\r\n", b"PUB " + b"s" * 5000 + b" 1\r\nx\r\n", b"HPUB a 0 1\r\nx\r\n",
            b"PUB a 1_0\r\n0123456789\r\n", b"PUB a 1\rx\r\n", b"\r\n", b"PUB a..b 0\r\n\r\n", b"PUB  0\r\n\r\n",
            b"PUB a 1\r\nx\n\n", b"PUB a 0\r\nx\n", b"PUB a\x001\r\nx\r\n", b"PUB a\x0b1\r\nx\r\n",
            b"PUB a\r1\r\nx\r\n", b"PUB a _INBOX.\x01r 1\r\nx\r\n", b"HPUB a\x1f12 12\r\nNATS/1.0\r\n\r\n\r\n",
        ])  # fmt: skip

    def commands(self) -> Iterator[bytes]:
        wrongs = self.rng.choice([0.0, 0.0, 0.0, 0.0, 0.03, 0.3])
        for _ in range(self.rng.randrange(1, 60)):
            chance = self.rng.random()
            if chance < 0.08:
                yield self.other()
            elif chance < 0.08 + wrongs:
                yield self.wrong()
            else:
                yield from [self.message()] * (self.rng.randrange(1, 40) if chance > 0.9 else 1)

    def pieces(self) -> Iterator[bytes]:
        """The input as reads bring it."""
        sent = list(self.commands())
        self.count = len(sent)
        rng, data = self.rng, b"".join(sent)
        largest = max(rng.choice([7, 60, 500, 5_000, 100_000, 100_000]), len(data) // 200)
        at = 0
        while at < len(data):
            size = rng.randrange(1, largest + 1)
            yield data[at : at + size]
            at += size


class Rig:
    """A server, its takers, and all that became of one seed's input."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seen: list[object] = []
        """Calls, output and counters, look by look."""
        self.calls: list[object] = []
        self.output: dict[int, bytes] = {}
        self.valve = Valve()
        rng = self.rng
        self.rig = ServerRig(
            max_payload=rng.choice([1 << 20, 1 << 20, 4000]), max_pending=rng.choice([1 << 26, 20_000, 3_000])
        )
        self.peers = [self._client() for _ in range(rng.randrange(1, 4))]
        self.subscriptions = {
            filter: self._subscribe(filter) for filter in rng.sample(FILTERS, rng.choice([0, 0, 1, 3]))
        }
        self.node = FakePeer("node")
        self.wanted = rng.choice(FILTERS)
        if rng.random() < 0.3:
            for filter in dict.fromkeys((self.wanted, rng.choice(FILTERS))):
                self.rig.router.peers.set_interest(self.node, filter, None, 1)

    def _client(self) -> Peer:
        rng = self.rng
        flags = ["true" if rng.random() < chance else "false" for chance in (0.1, 0.1, 0.3)]
        headers = rng.choice(["true", "true", "false"])
        connect = (
            f'CONNECT {{"verbose":{flags[0]},"pedantic":{flags[1]},"echo":{"false" if flags[2] == "true" else "true"},'
            f'"headers":{headers},"no_responders":{headers},"protocol":1}}\r\n'
        )
        peer = self.rig.client(connect=connect.encode())
        if rng.random() < 0.3:
            self._restrict(peer)
        for sid in range(1, rng.choice([1, 2, 2, 4])):
            peer.send(b"SUB %b %d" % (rng.choice(FILTERS), sid))
        peer.read()
        return peer

    def _restrict(self, peer: Peer) -> None:
        """Gives a client permissions, perhaps also for replies to what it gets."""
        rng = self.rng

        def some(most: int) -> list[str] | None:
            return None if rng.random() < 0.5 else [filter.decode() for filter in rng.sample(FILTERS, most)]

        replies = ResponseOptions(2, 60.0) if rng.random() < 0.5 else None
        options = PermissionOptions(SubjectLists(some(4), some(2)), SubjectLists(None, some(2)), replies)
        peer.connection.session.set_permissions(ConnectionPermissions(UserPermissions(options), ManualTime()))

    def _subscribe(self, filter: bytes) -> Subscription:
        subscribe, local_only = self.rig.router.subscribe, self.rng.random() < 0.5
        take = self._callback(filter, *[self.rng.random() < 0.2 for _ in range(3)])
        if self.rng.random() < 0.5:
            return subscribe(filter, take, local_only=local_only)
        most = self.rng.choice([1, 3, 1000])

        def bulk(messages: list[Outgoing], origin: Origin) -> int:
            """As the contract says: what may raise or close a valve is taken alone."""
            for place, message in enumerate(messages[:most]):
                if self._is_special(len(self.seen)) or len(message[3]) == 5:
                    if place:
                        return place
                    take(*message, origin)
                    return 1
                take(*message, origin)
            return len(messages[:most])

        queue = self.rng.choice([None, None, b"_sys_"])
        return subscribe(filter, take, queue, local_only=local_only, bulk=bulk)

    @staticmethod
    def _is_special(seen: int) -> bool:
        """True for a message at which a callback may close a valve or end its subscription."""
        return (seen + 1) % 7 == 0 or (seen + 1) % 5 == 0

    def _callback(
        self, name: bytes, fails: bool = False, shuts: bool = False, goes: bool = False
    ) -> Callable[..., None]:

        def take(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            self.calls.append((name, subject, reply, headers, payload, getattr(origin, "cid", None)))
            self.seen.append(self.calls[-1])
            if shuts and len(self.seen) % 7 == 0:
                self.valve.close()
                origin.wait_at(self.valve)
            if goes and len(self.seen) % 5 == 0:
                self.rig.router.unsubscribe(self.subscriptions[name])
            if fails and len(payload) == 5:
                raise RuntimeError("a callback that fails")

        return take

    def run(self, pieces: Iterable[bytes]) -> Rig:
        publisher = self.peers[0]
        for piece in pieces:
            if publisher.closed:
                break
            publisher.connection.data_received(piece)
            self._look()  # each read comes in a turn of its own, as the loop has it
            if self.rng.random() < 0.2:
                self.valve.open()
            if self.rng.random() < 0.2:
                self.rig.router.peers.valve_told(self.node, self.wanted, self.rng.random() < 0.5)
        self.rig.router.peers.valve_told(self.node, self.wanted, closed=False)
        for _ in range(12):
            self.valve.open()
            self._look()
        return self

    def _look(self) -> None:
        for peer in self.peers:
            one, sent = peer.connection, peer.read()
            if sent:
                self.seen.append((one.cid, sent))
                self.output[one.cid] = self.output.get(one.cid, b"") + sent
            self.seen.append(
                (one.in_msgs, one.in_bytes, one.out_msgs, one.out_bytes, one.pending, one.stalls, peer.closed)
            )
            self.seen.append(sorted((sid, sub.delivered, sub.closed) for sid, sub in one.subscriptions.items()))
        self.seen.append(list(self.node.sent))


@contextmanager
def portions_of(seed: int, *, compiled: bool) -> Iterator[None]:
    """Portions of this seed's size, by compiled code or by Python alone."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch, python_alone(pure=not compiled):
        patch.setattr(commands, "MESSAGE_BYTES", rng.choice([512, 512, 1]))
        patch.setattr(commands, "PORTION_OUTPUT_BYTES", rng.choice([8192, 300]))
        patch.setattr(commands, "CHUNK_BYTES", rng.choice([8192, 8192, 100]))
        yield


def publishes_differ(seed: int, pieces: list[bytes]) -> str:
    """The first difference between compiled code and Python with a seed's takers and this input; "" without one."""
    with portions_of(seed, compiled=True):
        compiled = Rig(seed).run(pieces)
    with portions_of(seed, compiled=False):
        python = Rig(seed).run(pieces)
    pairs: list[tuple[str, Any, Any]] = [
        ("calls", compiled.calls, python.calls),
        ("output", compiled.output, python.output),
        ("the end", compiled.seen[-7:], python.seen[-7:]),
    ]
    if not compiled.peers[0].closed:
        # Python meets a wrong line with the rest of its chunk, compiled code when its turn comes.
        pairs.append(("what is seen", compiled.seen, python.seen))
    return next((f"{what}: {first_difference(one, other)}" for what, one, other in pairs if one != other), "")


def first_difference(one: Any, other: Any) -> str:
    """The first place where two lists or dictionaries differ, shortened."""
    if isinstance(one, dict):
        one, other = sorted(one.items()), sorted(other.items())
    for place, (here, there) in enumerate(itertools.zip_longest(one, other, fillvalue="nothing")):
        if here != there:
            return f"at {place} compiled {str(here)[:300]}, Python {str(there)[:300]}"
    return "nothing"


def every_cut(seed: int, most: int = 120) -> Iterator[list[bytes]]:
    """A small input in two reads, cut at every place."""
    inputs, data = Inputs(seed), b""
    for command in inputs.commands():
        if len(data) + len(command) <= most:
            data += command
    for place in range(len(data) + 1):
        yield [piece for piece in (data[:place], data[place:]) if piece]
