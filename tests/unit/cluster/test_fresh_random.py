"""Reads of every strength while leaders change, nodes crash and are cut off: each finds what it asked for, or an error.

S has three replicas; UP has one, and a mirror that answers for it. Every node is one client, whose own node remembers
what it was told. A register is the last message of a stream's only subject.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable

import pytest

from jetcluster.replica.reads.confirm import ReadConfirmations
from jetcluster.replica.reads.demands import Demands
from testkit.sim.nodes import SMALL_LOG, Cluster, Node, NoRespondersError
from testkit.sim.shared import virtual_time
from tests.unit.replica.test_mirror_host import serve_api

ROUNDS = 40
BOUND = 0.5
"""Seconds of `max_staleness`."""
STREAMS = {"S": b"s", "UP": b"up"}


class StaleReadError(AssertionError):
    pass


class Register:
    """The sequences of one stream that anybody knows of, and when."""

    def __init__(self) -> None:
        self.known = [(0.0, 0)]

    def learn(self, now: float, seq: int) -> None:
        if seq > self.known[-1][1]:
            self.known.append((now, seq))

    def at(self, time: float) -> int:
        """The highest one known by then."""
        return next(seq for when, seq in reversed(self.known) if when <= max(time, 0.0))


class Run:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster, self.rng = cluster, random.Random(seed)
        self.apis = {node.name: serve_api(node) for node in cluster}
        self.registers = {stream: Register() for stream in STREAMS}
        self.own: dict[tuple[str, str, int], int] = {}
        """(stream, node, its life) -> the last sequence that it was told of."""
        self.lives = dict.fromkeys("ABCDE", 0)
        self.down = ""
        self.numbers = itertools.count(1)
        self.answered: dict[str, int] = {}

    def now(self) -> float:
        return self.cluster.loop.time()

    async def publish(self, node: Node, stream: str) -> None:
        life = stream, node.name, self.lives[node.name]
        try:
            ack = await node.publish(STREAMS[stream], b"%d" % next(self.numbers))
        except (TimeoutError, NoRespondersError):
            return
        if "seq" in ack:
            self.registers[stream].learn(self.now(), ack["seq"])
            self.own[life] = max(self.own.get(life, 0), ack["seq"])

    async def read(self, node: Node, stream: str) -> None:
        """One read of a random strength."""
        register, began = self.registers[stream], self.now()
        own, token = self.own.get((stream, node.name, self.lives[node.name]), 0), register.at(began)
        prefix = b"$JS.API.DIRECT.GET."
        kind, least, body, headers = self.rng.choice(
            (
                ("default", own, b"", b""),
                ("eventual", 0, b'{"consistency":"eventual"}', b""),
                ("session", own, b'{"consistency":"session"}', b""),
                ("token", token, b"", b"NATS/1.0\r\nNats-Min-Last-Sequence: %d\r\n\r\n" % token),
                ("bounded", register.at(began - BOUND), b'{"max_staleness":%d}' % int(BOUND * 1e9), b""),
                ("linearizable", token, b'{"consistency":"linearizable"}', b""),
                ("leader", token, b"", b""),
            )
        )
        if kind == "leader":
            prefix = b"$JS.API.DIRECT_LEADER.GET."
        subject = prefix + stream.encode() + b"." + STREAMS[stream]
        try:
            _, head, _ = await node.request(subject, body, 6.0, headers)
        except (TimeoutError, NoRespondersError):
            return
        if head.startswith(b"NATS/1.0 503"):
            return
        found = 0 if head.startswith(b"NATS/1.0 404") else int(head.split(b"\r\nNats-Sequence: ")[1].split(b"\r\n")[0])
        if found < least:
            raise StaleReadError(f"at {began:.3f} {kind} read of {stream} at {node.name}: {found}, and not {least}")
        self.answered[kind] = self.answered.get(kind, 0) + 1
        if kind in ("linearizable", "leader"):
            register.learn(self.now(), found)

    async def client(self, name: str, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.sleep(self.rng.expovariate(20.0))
            node = self.cluster[name]
            if not node.alive:
                continue
            act = self.rng.choice((self.publish, self.read, self.read, self.read))
            await act(node, self.rng.choice(list(STREAMS)))

    async def fault(self) -> None:
        kind = self.rng.choice(("crash", "restart", "cut", "heal", "move", "heal"))
        if kind == "crash" and not self.down:
            self.down = self.rng.choice([node.name for node in self.cluster])
            self.cluster.crash(self.down)
            await self.apis.pop(self.down).stop()
        elif kind == "restart" and self.down:
            name, self.down = self.down, ""
            self.lives[name] += 1
            self.apis[name] = serve_api(self.cluster.restart(name))
        elif kind == "cut":
            self.cluster.isolate(self.rng.choice([node.name for node in self.cluster]))
        elif kind == "heal":
            self.cluster.heal()
        else:
            for node in self.cluster:
                if node.has("S") and node.replica("S").leading:
                    node.replica("S").group.transfer()

    async def go(self) -> None:
        stop = asyncio.Event()
        clients = [asyncio.ensure_future(self.client(name, stop)) for name in self.lives]
        try:
            for _ in range(ROUNDS):
                await asyncio.wait(clients, timeout=self.rng.choice((0.05, 0.3, 1.0)), return_when="FIRST_EXCEPTION")
                for client in clients:
                    if client.done():
                        client.result()
                await self.fault()
        finally:
            stop.set()
            self.cluster.heal()
            results = await asyncio.gather(*clients, return_exceptions=True)
            for api in self.apis.values():
                await api.stop()
        for result in results:
            if isinstance(result, BaseException):
                raise result


async def run(seed: int) -> Run:
    async with Cluster("ABCDE", options=SMALL_LOG) as cluster:
        one = Run(cluster, seed)
        await cluster.create("S", 3)
        await cluster.create("UP", 1)
        await cluster.create("M", 3, subjects=[], mirror={"name": "UP"}, mirror_direct=True)
        await cluster.all_read("S")
        await one.go()
        return one


@virtual_time
@pytest.mark.parametrize("seed", range(3))
async def test_every_read_finds_what_it_asked_for(seed: int) -> None:
    one = await run(seed)
    for kind in ("default", "eventual", "session", "token", "bounded", "linearizable", "leader"):
        assert one.answered.get(kind, 0) > 5, one.answered


PLANTS: dict[str, tuple[type, str, object]] = {
    "nobody is asked for a proof": (Demands, "_prove", lambda self, request, go_on: go_on()),
    "every proof is young": (Demands, "age", lambda self: 0.0),
    "sequences are not waited for": (Demands, "_await_sequence", lambda self, seq, go_on, request: go_on()),
}  # fmt: skip


def plant(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kind, method, mistake = PLANTS[name]
    monkeypatch.setattr(kind, method, mistake)


@virtual_time
@pytest.mark.parametrize("name", PLANTS)
async def test_planted_staleness_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plant(monkeypatch, name)
    await found(range(6))


@virtual_time
async def test_a_mirror_that_answers_everybody_without_a_leader_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ReadConfirmations.hold

    def hold(self: ReadConfirmations, answer: Callable[[], None], *rest: object, **more: object) -> bool:
        if more.get("strict"):
            return real(self, answer, *rest, **more)  # type: ignore[arg-type]
        answer()
        return True

    monkeypatch.setattr(ReadConfirmations, "hold", hold)
    await found(range(2, 8))


async def found(seeds: range) -> None:
    for seed in seeds:
        try:
            await run(seed)
        except StaleReadError:
            return
    pytest.fail("no seed finds it")
