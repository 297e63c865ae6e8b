"""The bytes of reads that wait (replica/read_memory.py)."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from jetcluster.replica.read_memory import ReadMemory
from jetcluster.replica.reads.demands import SequenceWaits
from jetcluster.replica.reads.waits import MAX_REPLY_BACKLOG, MAX_SECONDS, MAX_WAIT_SECONDS, PAUSE_SECONDS, ReadWaits
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time
from testkit.twins.time import ManualTime
from tests.unit.replica.waits_rig import around


def test_the_bytes_of_what_waits_are_bounded() -> None:
    """All kinds of reads of a replica share it, and all replicas of a node; one request always has room."""
    time, log = ManualTime(), []
    node = ReadMemory(250)
    one, other = (around(time, time, memory=ReadMemory(200, node)) for _ in range(2))
    first, sequences, second = ReadWaits(one), SequenceWaits(one), ReadWaits(other)
    give_up = functools.partial(log.append, "gave up")
    assert first.hold(1, functools.partial(log.append, "a"), give_up, size=1000)
    assert not sequences.hold(1, functools.partial(log.append, "b"), give_up, 1)
    assert sequences.hold(1, functools.partial(log.append, "without a body"), give_up)
    first.applied(1)
    sequences.reached(1)
    assert log == ["a", "without a body"] and node.used == 0
    log.clear()
    assert first.hold(2, functools.partial(log.append, "a"), give_up, size=150)
    assert not sequences.hold(2, functools.partial(log.append, "b"), give_up, 60)
    assert second.hold(2, functools.partial(log.append, "c"), give_up, size=100)
    assert not second.hold(2, functools.partial(log.append, "d"), give_up, size=1), "the node has no room"
    time.advance(MAX_WAIT_SECONDS)
    assert log == ["gave up"] * 2 and node.used == 0
    assert sequences.hold(2, functools.partial(log.append, "b"), give_up, 200)
    sequences.clear()
    assert second.hold(2, functools.partial(log.append, "c"), give_up, size=200)
    second.applied(2)
    assert log[2:] == ["gave up", "c"] and node.used == 0


@virtual_time
async def test_reads_with_large_requests_are_refused_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a replica whose disk stands still: the others are answered, and the replica stays."""
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster.all_read("S")
        node = cluster.followers("S")[0]
        group: Any = node.replica("S").group
        monkeypatch.setattr(group, "_apply", lambda: None)
        await cluster.leader("S").publish(b"s", b"x")
        await cluster.until(lambda: group.told_index > group.applied_index, what="it knows of it")
        padding = b" " * (5 << 20)
        found: list[tuple[bytes, bytes]] = []
        inbox = node.bus.subscribe(
            b"_INBOX.mine.*", lambda subject, _, headers, payload, __: found.append((headers, payload))
        )
        for number in range(5):  # 15 MiB have room
            node.bus.ask(b"$JS.API.DIRECT.GET.S", b'{"seq":1}' + padding, b"_INBOX.mine.%d" % number)
        await asyncio.sleep(0.01)
        assert [headers.split(b"\r\n")[0] for headers, _ in found] == [b"NATS/1.0 503 Too Many Waiting Reads"] * 2
        assert node.reads("S")
        monkeypatch.undo()
        await cluster.leader("S").publish(b"s", b"y")
        await cluster.until(lambda: len(found) == 5, what="all are answered")
        assert [payload for _, payload in found[2:]] == [b"x"] * 3
        node.bus.unsubscribe(inbox)


def test_the_requests_of_a_slow_requester_keep_nobody_out() -> None:
    """It asked by as many bytes as may wait, and takes no answer: more of it than slow ones may have are refused."""
    time, log = ManualTime(), list[str]()
    shared = around(time, time, lambda reply: MAX_REPLY_BACKLOG + 1 if reply == b"slow" else 0)
    held = ReadWaits(shared)

    def hold(name: str, size: int) -> bool:
        refuse = functools.partial(log.append, f"{name} refused")
        return held.hold(1, functools.partial(log.append, name), print, name.encode(), size, refuse)

    assert all(hold("slow", 1 << 20) for _ in range(16))
    assert not hold("quick", 1 << 20), "they wait for the index"
    held.applied(1)
    assert log == ["slow refused"] * 12 and not shared.memory.used
    assert all(hold("quick", 1 << 20) for _ in range(16))
    held.applied(1)
    time.advance(PAUSE_SECONDS)
    assert log[12:] == ["quick"] * 16
    time.advance(MAX_SECONDS + 1)
    assert log[28:] == ["slow"] * 4
    assert hold("slow", 1 << 20)
    held.applied(1)
    assert log[32:] == [], "the places are free again"
