"""Requests to a group's leader across leader changes (cluster/requests.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetcluster.cluster.patience import wait_until
from jetcluster.cluster.requests import DEADLINE, LAST_WORDS, REPEATED, LeaderRequests
from jetcluster.errors import ApiError, by_code
from jetcluster.raft.api import (
    BackpressureError,
    EntryTooLargeError,
    MembershipError,
    NotLeaderError,
    StorageFullError,
)
from jetcluster.replica.leaders import LeaderTable
from jetcluster.replica.proposals import OutcomeUnknownError
from testkit.twins.mesh_memory import InMemoryMesh, MemoryNetwork
from tests.unit.cluster.nodes import ListLog
from tests.unit.cluster.virtual_loop import VirtualLoop, virtual_time

GID = 7


class AheadClock:
    """A wall clock that is ahead of the others, by seconds."""

    def __init__(self, loop: VirtualLoop, ahead: float) -> None:
        self._loop = loop
        self._ahead = int(ahead * 1e9)
        self.monotonic = loop.monotonic

    def time_ns(self) -> int:
        return self._loop.time_ns() + self._ahead


class Side:
    def __init__(self, network: MemoryNetwork, loop: VirtualLoop, name: str, ahead: float = 0.0) -> None:
        self.mesh: InMemoryMesh = network.mesh(name, name * 8)
        self.leaders = LeaderTable(self.mesh, lambda gid: None)
        self.log = ListLog()
        self.raises: list[Exception] = []
        """One for each of the next requests; then they are answered."""
        self.asked = 0
        self.hangs = False
        clock = AheadClock(loop, ahead)
        self.requests = LeaderRequests("test", self.mesh, self.leaders, clock, self._handle, self.log)
        self.mesh.start_now()

    async def _handle(self, gid: int, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        await asyncio.sleep(3600 if self.hangs else 0.01)
        if self.raises:
            raise self.raises.pop(0)
        return {"by": self.mesh.me.name, "gid": gid, "kind": kind, **body}


async def pair(ahead: float = 0.0) -> tuple[MemoryNetwork, Side, Side]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    network = MemoryNetwork(loop, clock=loop)
    sides = Side(network, loop, "A", ahead), Side(network, loop, "B")
    await asyncio.sleep(0.01)
    return network, *sides


@virtual_time
async def test_the_leader_answers_here_or_there() -> None:
    _, a, b = await pair()
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    for side in (a, b):
        assert await side.requests.ask(GID, "k", {"x": 1}) == {"by": "A", "gid": GID, "kind": "k", "x": 1}


@virtual_time
async def test_an_election_is_waited_for() -> None:
    _, a, b = await pair()
    loop = asyncio.get_running_loop()
    loop.call_later(2.0, b.leaders.lead, GID, 1)
    before = loop.time()
    assert (await a.requests.ask(GID, "k", {}))["by"] == "B"
    assert 2.0 <= loop.time() - before < 2.1


@virtual_time
async def test_whoever_does_not_lead_any_more_is_not_asked_twice_and_the_new_leader_answers() -> None:
    _, a, b = await pair()
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    a.raises = [NotLeaderError(None)]
    asyncio.get_running_loop().call_later(0.5, b.leaders.lead, GID, 2)
    a.leaders.follow(GID, 2, None)
    assert (await b.requests.ask(GID, "k", {}))["by"] == "B"
    assert (a.asked, b.asked) == (1, 1)


@virtual_time
@pytest.mark.parametrize("error", [OutcomeUnknownError("?"), BackpressureError("much"), NotLeaderError("x")])
async def test_trouble_that_passes_is_repeated(error: Exception) -> None:
    _, a, b = await pair()
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    a.raises = [error]
    asyncio.get_running_loop().call_later(0.1, a.leaders.lead, GID, 1)
    assert (await b.requests.ask(GID, "k", {}))["by"] == "A"
    assert a.asked == 2


@virtual_time
@pytest.mark.parametrize("error", [OutcomeUnknownError("?"), BackpressureError("much"), NotLeaderError("x")])
async def test_a_leader_that_was_in_trouble_and_says_nothing_of_itself_is_found_again(error: Exception) -> None:
    """A leader announces itself when it is elected, and not again because one request met it at a bad moment."""
    _, a, b = await pair()
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    a.raises = [error]
    before = asyncio.get_running_loop().time()
    assert (await b.requests.ask(GID, "k", {}))["by"] == "A"
    assert a.asked == 2 and asyncio.get_running_loop().time() - before < 0.2


@virtual_time
async def test_a_link_that_breaks_under_way_is_no_answer() -> None:
    network, a, b = await pair()
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()
    loop.call_later(0.005, network.cut, a.mesh.me.peer_id, b.mesh.me.peer_id)
    loop.call_later(1.0, network.heal, a.mesh.me.peer_id, b.mesh.me.peer_id)
    assert (await b.requests.ask(GID, "k", {}))["by"] == "A"
    assert a.asked == 2


@virtual_time
async def test_refusals_end_the_asking() -> None:
    _, a, b = await pair()
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    for raised, err_code in ((by_code(10059), 10059), (StorageFullError("full"), 10047)):
        a.raises = [raised]
        with pytest.raises(ApiError) as refused:
            await b.requests.ask(GID, "k", {})
        assert refused.value.err_code == err_code


@virtual_time
async def test_a_defect_is_answered_at_once_and_logged_once() -> None:
    _, a, b = await pair()
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    a.raises = [KeyError("oops"), KeyError("oops")]
    with pytest.raises(ApiError) as refused:
        await b.requests.ask(GID, "k", {})
    assert refused.value.code == 500 and a.asked == 1 and len(a.log.events("error")) == 1


@virtual_time
async def test_nobody_leads() -> None:
    _, a, _ = await pair()
    loop = asyncio.get_running_loop()
    before = loop.time()
    with pytest.raises(ApiError) as refused:
        await a.requests.ask(GID, "k", {})
    assert (refused.value.code, refused.value.err_code) == (503, 10008)
    assert DEADLINE <= loop.time() - before < DEADLINE + 0.5


@virtual_time
async def test_a_repetition_says_so_only_when_the_first_may_have_been_carried_out() -> None:
    _, a, _ = await pair()
    a.leaders.lead(GID, 1)
    a.raises = [BackpressureError("full")]
    assert REPEATED not in await a.requests.ask(GID, "k", {})
    a.leaders.lead(GID, 1)
    a.raises = [OutcomeUnknownError("leadership lost")]
    assert (await a.requests.ask(GID, "k", {}))[REPEATED] is True


@virtual_time
async def test_a_leader_that_hangs_is_not_waited_for_once_another_one_leads() -> None:
    _, a, b = await pair()
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    a.hangs = True
    loop = asyncio.get_running_loop()
    loop.call_later(1.0, b.leaders.lead, GID, 2)
    before = loop.time()
    answer = await b.requests.ask(GID, "k", {})
    assert answer["by"] == "B" and answer[REPEATED] is True, "the one that hung may have carried it out"
    assert 1.0 <= loop.time() - before <= 1.0 + LAST_WORDS + 0.1


@virtual_time
async def test_the_answer_of_a_leader_that_hands_over_meanwhile_counts() -> None:
    _, a, b = await pair()
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    asyncio.get_running_loop().call_later(0.005, b.leaders.lead, GID, 2)
    assert (await b.requests.ask(GID, "k", {}))["by"] == "A"
    assert (a.asked, b.asked) == (1, 0)


@virtual_time
async def test_what_no_leader_could_take_is_refused_at_once() -> None:
    _, a, b = await pair()
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    for final in (EntryTooLargeError(), MembershipError("no member")):
        a.raises = [final]
        before = asyncio.get_running_loop().time()
        with pytest.raises(ApiError) as refused:
            await b.requests.ask(GID, "k", {})
        assert not refused.value.retriable and str(final) in refused.value.description
        assert asyncio.get_running_loop().time() - before < 0.1


@virtual_time
@pytest.mark.parametrize("ahead", [0.0, 4.0, -4.0])
async def test_clocks_that_differ_keep_nobody_from_being_answered(ahead: float) -> None:
    _, a, b = await pair(ahead)
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    assert (await b.requests.ask(GID, "k", {}))["by"] == "A"
    assert a.asked == 1


@virtual_time
@pytest.mark.parametrize("ahead", [0.0, 4.0, -4.0])
@pytest.mark.parametrize("waits", [2.0, 30.0])
async def test_a_question_that_comes_late_is_answered_if_somebody_waits_still(ahead: float, waits: float) -> None:
    network, a, b = await pair(ahead)
    a.leaders.lead(GID, 1)
    await asyncio.sleep(0.01)
    network.hold(a.mesh.me.peer_id)
    asyncio.get_running_loop().call_later(waits, network.release)
    asking = asyncio.ensure_future(b.requests.ask(GID, "k", {}))
    await asyncio.sleep(waits + 1.0)
    assert a.asked == (waits < DEADLINE)
    if waits < DEADLINE:
        assert (await asking)["by"] == "A"
    else:
        with pytest.raises(ApiError):
            await asking


@virtual_time
async def test_a_request_that_asks_twice_is_given_up_as_a_whole() -> None:
    _, a, _ = await pair()
    loop = asyncio.get_running_loop()
    before = loop.time()
    wait_until(before + 2.0)
    with pytest.raises(ApiError):
        await a.requests.ask(GID, "k", {})
    assert 1.7 < loop.time() - before < 2.0
