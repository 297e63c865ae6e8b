"""The parts that waiting reads share, for tests of them alone."""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.clock import Clock, Timers
from jetcluster.replica.read_memory import MAX_MEMBER_BYTES, MAX_SLOW_MEMBER_BYTES, ReadMemory
from jetcluster.replica.reads.waits import DueReads, ReadAround


def around(
    clock: Clock, timers: Timers, backlog: Callable[[bytes], int] = lambda reply: 0, memory: ReadMemory | None = None
) -> ReadAround:
    def stop(error: BaseException) -> None:
        raise error

    memory = memory or ReadMemory(MAX_MEMBER_BYTES)
    due = DueReads(clock, timers, stop, ReadMemory(MAX_SLOW_MEMBER_BYTES), backlog)
    return ReadAround(clock, timers, due, memory)
