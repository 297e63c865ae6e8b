"""Futures of control-plane commands (replica/proposals.py)."""

from __future__ import annotations

import asyncio

import pytest

from jetcluster.raft.api import BackpressureError, NotLeaderError
from jetcluster.replica import proposals
from jetcluster.replica.proposals import OutcomeUnknownError, Proposals, resolver
from testkit.sim.shared import virtual_time


class Group:
    """The part of a `RaftGroup` that is asked for here."""

    def __init__(self) -> None:
        self.index = 0
        self.leading = True

    def propose(self, command: bytes, reserve: bool = False) -> int:
        if not self.leading:
            raise NotLeaderError("other")
        self.index += 1
        return self.index


def start(waiting: Proposals, group: Group, seconds: float = 4.0) -> asyncio.Task[object]:
    return asyncio.get_running_loop().create_task(waiting.propose(group, b"", seconds))  # type: ignore[arg-type]


@virtual_time
async def test_each_waits_for_its_own_index() -> None:
    waiting, group = Proposals(), Group()
    first, second = start(waiting, group), start(waiting, group)
    await asyncio.sleep(0)
    waiting.applied(2, "two")
    waiting.applied(7, "somebody else's")
    assert await second == "two" and not first.done()
    waiting.applied(1, "one")
    assert await first == "one"


@virtual_time
async def test_lost_leadership_makes_later_ones_unknown_and_leaves_earlier_ones() -> None:
    waiting, group = Proposals(), Group()
    first, second = start(waiting, group), start(waiting, group)
    await asyncio.sleep(0)
    waiting.dropped(2)
    with pytest.raises(OutcomeUnknownError):
        await second
    waiting.applied(1, "one")
    assert await first == "one"


@virtual_time
async def test_time_runs_out_and_nothing_is_left_behind() -> None:
    waiting, group = Proposals(), Group()
    with pytest.raises(OutcomeUnknownError):
        await start(waiting, group, 1.0)
    waiting.applied(1, "late")
    waiting.dropped(0)
    assert waiting._waiting == {}


@virtual_time
async def test_refusals_are_passed_on_and_waiting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, group = Proposals(), Group()
    group.leading = False
    with pytest.raises(NotLeaderError):
        await start(waiting, group)
    group.leading = True
    monkeypatch.setattr(proposals, "MAX_WAITING", 2)
    tasks = [start(waiting, group) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(BackpressureError):
        await start(waiting, group)
    assert group.index == 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert waiting._waiting == {}


@virtual_time
async def test_a_resolver_comes_too_late_without_harm() -> None:
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    resolve = resolver(future)
    resolve(True)
    resolve(False)
    assert await future
    gone: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    gone.cancel()
    resolver(gone)(True)
