"""Reads that are due, some of which fail (replica/reads/waits.py)."""

from __future__ import annotations

import asyncio
import functools

import pytest

from jetcluster.replica.read_memory import ReadMemory
from jetcluster.replica.reads.waits import MAX_REPLY_BACKLOG, MAX_SECONDS, Call, DueReads, ReadAround, ReadWaits
from jetcluster.store.api import DamagedError
from testkit.sim.nodes import Cluster
from testkit.sim.shared import VirtualLoop, virtual_time


class Due:
    """Reads that wait for index 1; `stopped`: the faults that were told; `failures`: what the loop was told of."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop, self.log, self.stopped = loop, list[str](), list[BaseException]()
        self.backlog_fails = self.stop_fails = False
        memory = ReadMemory(1 << 20)
        self.reads = DueReads(loop, loop, self._stop, ReadMemory(1 << 20), self._backlog)
        self.waits = ReadWaits(ReadAround(loop, loop, self.reads, memory))

    def _stop(self, error: BaseException) -> None:
        self.stopped.append(error)
        if self.stop_fails:
            raise error

    def _backlog(self, reply: bytes) -> int:
        if self.backlog_fails and reply == b"unknown":
            raise RuntimeError("a defect")
        return MAX_REPLY_BACKLOG + 1 if reply == b"slow" else 0

    def hold(self, name: str, answer: Call | None = None, refuse: Call | None = None, reply: bytes = b"r") -> None:
        note = functools.partial(self.log.append, name)
        gave_up = functools.partial(self.log.append, f"{name} given up")
        refused = functools.partial(self.log.append, f"{name} refused")
        assert self.waits.hold(1, answer or note, gave_up, reply, refuse=refuse or refused)

    def seen(self) -> int:
        """The number of failures that the loop was told of, which are forgotten."""
        count = len(self.loop.failures)
        self.loop.failures.clear()
        return count


def fail() -> None:
    raise RuntimeError("a defect")


@virtual_time
@pytest.mark.parametrize("where", ["answer", "refuse", "backlog", "stop"])
async def test_whatever_raises_the_others_and_later_ones_are_answered(where: str) -> None:
    due = Due()
    due.backlog_fails, due.stop_fails = where == "backlog", where == "stop"

    def broken() -> None:
        raise OSError("the disk") if where == "stop" else RuntimeError("a defect")

    first = {"backlog": None}.get(where, broken)
    due.hold("first", first, fail if where == "refuse" else None, b"unknown")
    due.hold("second")
    try:
        due.waits.applied(1)
    except OSError:
        assert where == "stop"
    await asyncio.sleep(0)
    told = {"answer": ["first refused"], "refuse": [], "backlog": ["first"], "stop": ["first refused"]}[where]
    assert due.log == [*told, "second"] and len(due.stopped) == (where == "stop")
    assert due.seen() == {"answer": 1, "refuse": 2, "backlog": 1, "stop": 0}[where]
    due.hold("third")
    due.waits.applied(1)
    assert due.log[-1] == "third"


@virtual_time
async def test_what_is_cleared_leaves_nothing_planned() -> None:
    due = Due()
    due.hold("first", reply=b"slow")
    due.hold("second", refuse=fail, reply=b"slow")
    due.waits.applied(1)
    assert len(due.reads) == 2
    due.reads.clear()
    assert due.log == ["first given up", "second given up"] and not len(due.reads)
    due.hold("third")
    due.waits.applied(1)
    assert due.log[2:] == ["third"], "at once"


@virtual_time
@pytest.mark.parametrize("error", [OSError("the disk"), MemoryError(), DamagedError(1, 5)])
async def test_a_read_that_meets_a_fault_of_this_machine_is_refused_and_it_is_told(error: Exception) -> None:
    due = Due()

    def answer() -> None:
        raise error

    due.hold("read", answer)
    due.waits.applied(1)
    assert due.log == ["read refused"] and due.stopped == [error]


@virtual_time
async def test_damage_found_by_a_read_that_had_waited_is_repaired() -> None:
    """The replica is not stopped for good, as it is for other faults."""
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster.leader("S").publish(b"s", b"x")
        await cluster.all_read("S")
        node = cluster.followers("S")[0]
        replica, log = node.replica("S"), list[str]()

        def answer() -> None:
            raise DamagedError(1, 5)

        waits = replica.reads.own.waits
        assert waits.hold(1, answer, print, refuse=functools.partial(log.append, "refused"))
        waits.applied(replica.group.applied_index)
        assert log == ["refused"] and replica.damaged and not replica.failed
        await cluster.until(lambda: node.reads("S"), what="it is rebuilt")
        assert replica.repair.repaired == 1 and (await node.get(b"S", 1))[2] == b"x"


@virtual_time
async def test_the_last_read_of_a_slow_requester_goes_at_its_deadline() -> None:
    due = Due()
    due.hold("first", reply=b"slow")
    due.waits.applied(1)
    await asyncio.sleep(MAX_SECONDS - 0.1)
    assert not due.log
    await asyncio.sleep(0.2)
    assert due.log == ["first"]
