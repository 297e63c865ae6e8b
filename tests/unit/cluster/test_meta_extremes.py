"""No command stops the meta group: whatever it holds, all nodes refuse it or carry it out alike (meta/machine.py)."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.meta import machine as meta
from jetcluster.meta.machine import MetaMachine
from jetcluster.model.stream import StreamConfig
from tests.unit.stream.extremes import ODD

NO_LIMITS = {"max_streams": -1, "max_memory": -1, "max_storage": -1}
PEERS = ("peerAAAA", "peerBBBB", "peerCCCC", "peerDDDD")
NAMES = ("S", "T", "U")
LONG_ODD = (*ODD, "S", "peerAAAA", 1, 2, ["a", "b"], {"name": "S"}, [1, "x"], "x" * 300_000)


class Build:
    """Fields of commands; half of them sound."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.pick = random.choice
        self.requests = 0

    def config(self) -> Any:
        subjects = [f"{self.pick('abc')}.{self.random.randrange(3)}"]
        wire = StreamConfig(
            name=self.pick(NAMES), subjects=subjects, num_replicas=self.pick((1, 1, 3)), max_bytes=self.pick((-1, 500))
        ).normalised().to_wire()  # fmt: skip
        if self.random.random() < 0.3:
            wire[self.pick(sorted(wire))] = self.pick(LONG_ODD)
        if self.random.random() < 0.1:
            wire["subjects"] = [self.pick((*LONG_ODD, "a..b", ">", "*", ""))]
        if self.random.random() < 0.1:
            del wire[self.pick(sorted(wire))]
        if self.random.random() < 0.1:
            wire["placement"] = self.pick((*ODD, {"cluster": "C"}))
        if self.random.random() < 0.1:
            wire["restoring"] = True
        return wire

    def peers(self) -> list[str]:
        return self.random.sample(PEERS, self.random.randint(1, 3))

    def gid(self) -> int:
        return self.random.randint(1, 6)

    def command(self, kind: str) -> bytes:
        stream = {"account": self.pick(("$G", "A")), "name": self.pick(NAMES)}
        peers = self.peers()
        fields: dict[str, Any] = {
            "stream_create": lambda: {
                **stream, "config": self.config(), "peers": peers, "leader": peers[0], "created": 1,
                "limits": NO_LIMITS,
            },
            "stream_update": lambda: {
                **stream, "config": self.config(), "limits": NO_LIMITS,
                **self.pick(({}, {"peers": peers, "at": 5}, {"peers": peers, "from": self.peers()})),
            },
            "stream_delete": lambda: stream | self.pick(({}, {"gid": self.gid()})),
            "stream_restored": lambda: {**stream, "gid": self.gid()},
            "stream_move_cancel": lambda: {**stream, "revision": self.random.randrange(40)},
            "stream_peers": lambda: {**stream, "gid": self.gid(), "peers": peers},
            "node": lambda: {"peer": peers[0], "name": "n", "tags": ["t"], "jetstream": True, "level": 2},
            "node_drain": lambda: {"peer": peers[0], "draining": self.pick((True, False))},
            "node_remove": lambda: {"peer": peers[0], "name": self.pick(("", "n"))},
            "node_replace": lambda: {"peer": peers[0], "by": self.pick(PEERS)},
            "cluster": lambda: {"id": "c" * 22},
            "rescue": lambda: {
                "rescue": {
                    "number": self.random.randrange(4), "at_ns": 1, "by": "u", "survivors": {peers[0]: "a"},
                    "lost": self.pick(({"peerDDDD": "d"}, self.pick(ODD))),
                }
            },
            "stream_rescue": lambda: {
                **stream, "gid": self.gid(), "number": self.random.randrange(3), "kept": peers[0], "peers": peers,
            },
        }[kind]()  # fmt: skip
        self.requests += 1
        command = {"kind": kind, "request": f"r{self.requests}", **fields}
        for _ in range(self.pick((0, 0, 0, 1, 2))):
            command[self.pick(sorted(command))] = self.pick(LONG_ODD)
        if self.random.random() < 0.05:
            del command[self.pick(sorted(command))]
        raw = json.dumps(command).encode()
        if self.random.random() < 0.05:
            return self.pick((b"", b"[" * 3000, b"{}", b"null", b"\xff\xfe", raw[:-1], raw + b"x", b'{"a":' * 3000))
        return raw


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_no_command_raises(seed: int) -> None:
    random = Random(seed)
    build = Build(random)
    one, other = MetaMachine(), MetaMachine()
    kinds = sorted(meta._HANDLERS)
    for index in range(1, 31):
        command = build.command(random.choice(("stream_create", random.choice(kinds), random.choice(kinds))))
        first, second = one.apply(index, 1, command), other.apply(index, 1, command)
        assert json.dumps(first[0]) == json.dumps(second[0])
        assert len(first[1]) == len(second[1])
        if "error" in first[0]:
            assert not first[1], "a refusal has no effects"
        if random.random() < 0.2:
            again = MetaMachine()
            again.restore(other.snapshot())
            assert again.snapshot() == other.snapshot()
            other = again
        assert one.digest == other.digest
        for account in ("$G", "A"):
            assert one.assignments(account) == other.assignments(account)
    assert one.snapshot() == other.snapshot()
    sound = MetaMachine()
    sound.restore(one.snapshot())
    for peer in PEERS:
        assert (sound.replicas_on(peer), sound.leaders_on(peer)) == (one.replicas_on(peer), one.leaders_on(peer))


def test_every_kind_of_command_is_among_them() -> None:
    """One that is added later has to be added above."""
    build = Build(Random(1))
    for kind in meta._HANDLERS:
        assert isinstance(build.command(kind), bytes)  # KeyError for one that is missing


def test_nothing_is_left_of_a_command_that_fails_in_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node takes the place of another one in the first of two streams, and then something goes wrong."""
    machine = MetaMachine()
    index = 0

    def apply(kind: str, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
        nonlocal index
        index += 1
        command = {"kind": kind, "request": f"r{index}", **fields}
        return machine.apply(index, 1, json.dumps(command).encode())

    for peer in ("A", "B", "C"):
        apply("node", peer=peer, name=peer.lower(), tags=[], jetstream=True)
    for name in ("S", "T"):
        config = StreamConfig(name=name, subjects=[name.lower()], num_replicas=2).normalised().to_wire()
        apply("stream_create", account="$G", config=config, peers=["A", "B"], leader="A", created=1, limits=NO_LIMITS)
    before = machine.all_assignments(), dict(machine.nodes), machine.replicas_on("A"), machine.leaders_on("A")
    put = MetaMachine._put

    def fail(self: MetaMachine, assignment: Any) -> None:
        put(self, assignment)
        if assignment.name == "T" and "C" in assignment.peers:
            raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(MetaMachine, "_put", fail)
        verdict, effects = apply("node_replace", peer="A", by="C")
    assert verdict["error"]["err_code"] == 10051 and not effects
    assert before == (
        machine.all_assignments(), dict(machine.nodes), machine.replicas_on("A"), machine.leaders_on("A")
    )  # fmt: skip
    assert [a.name for a in machine.assignments("$G")] == ["S", "T"]
    verdict, effects = apply("node_replace", peer="A", by="C")
    assert verdict["moved"] == 2 and len(effects) == 3
    taken = StreamConfig(name="V", subjects=["s"]).normalised().to_wire()
    fields = {"peers": ["B"], "leader": "B", "created": 1, "limits": NO_LIMITS}
    assert apply("stream_create", account="$G", config=taken, **fields)[0]["error"]["err_code"] == 10065
