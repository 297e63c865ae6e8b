"""Catch-up between nodes of two versions: it does not happen, and nothing is given up for it."""

from __future__ import annotations

import asyncio
import json

import pytest

from jetcluster.mesh.api import MeshError
from jetcluster.replica.catchup import CatchUp
from jetcluster.replica.exports import OPEN, RANGES, REPEAT_SECONDS, TROUBLE_SECONDS, Opened
from testkit.sim.shared import MeshNetwork, SimMesh, VirtualLoop, virtual_time
from testkit.twins.log import ListLog
from testkit.twins.time import SeededRng
from tests.unit.cluster.transfers import CONFIG, GID, Owner, Pair

OTHER = "a state waits until both nodes run the same version"


class Receiver:
    """B, and a peer A that serves only what the test has it serve."""

    def __init__(self, owner: Owner) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        network = MeshNetwork(loop)
        self.log = ListLog()
        self.peer: SimMesh = network.mesh("A", "A" * 8)
        mesh = network.mesh("B", "B" * 8)
        self.catchup = CatchUp(mesh, loop, SeededRng(1), {GID: owner}, self.log)
        for each in (self.peer, mesh):
            each.start_now()

    async def pull(self) -> None:
        await asyncio.sleep(0.1)
        self.catchup.pull(GID, "A" * 8, 1)
        while self.catchup.running(GID):
            await asyncio.sleep(0.01)


@virtual_time
async def test_from_a_giver_of_another_version_nothing_is_fetched_and_the_own_state_stays() -> None:
    owner = Owner(3, b"mine")
    receiver = Receiver(owner)

    async def answer(peer: str, payload: bytes) -> bytes:
        return json.dumps({"id": "0" * 16, "index": 9, "term": 1, "peers": ["A"], "size": 1}).encode()

    receiver.peer.serve("snapshot.open.of.another.version", answer)
    for _ in range(5):
        await receiver.pull()
    assert (owner.log, owner.values) == ([], [b"mine"])
    assert receiver.log.events("warning", "error") == [OTHER], "once, at once"
    await asyncio.sleep(REPEAT_SECONDS)
    await receiver.pull()
    assert receiver.log.events("warning", "error") == [OTHER, OTHER], "and now and then"


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"id": "0", "index": 9, "term": 1, "config": "00"}'])
@virtual_time
async def test_what_is_no_answer_of_this_version_costs_nothing(answer: bytes) -> None:
    owner = Owner(3, b"mine")
    receiver = Receiver(owner)

    async def opened(peer: str, payload: bytes) -> bytes:
        return answer

    receiver.peer.serve(OPEN, opened)
    await receiver.pull()
    assert (owner.log, owner.values) == ([], [b"mine"])


@virtual_time
async def test_a_giver_that_announces_nothing_costs_nothing_and_is_logged_when_it_lasts() -> None:
    """Also one whose protocol changed behind the first request."""
    owner = Owner(3, b"mine")
    receiver = Receiver(owner)

    async def opened(peer: str, payload: bytes) -> bytes:
        return Opened("0" * 16, 9, 1, CONFIG, 1, 1).encode()

    async def refused(peer: str, payload: bytes) -> bytes:
        raise MeshError("not now")

    receiver.peer.serve(OPEN, opened)
    receiver.peer.serve(RANGES, refused)
    await receiver.pull()
    assert receiver.log.events("warning", "error") == [], "it may be over in a moment"
    for _ in range(5):
        await asyncio.sleep(TROUBLE_SECONDS / 3)
        await receiver.pull()
    assert (owner.log, owner.values) == ([], [b"mine"])
    assert receiver.log.events("warning", "error") == ["catch-up does not come on"]
    await asyncio.sleep(REPEAT_SECONDS + TROUBLE_SECONDS)
    await receiver.pull()
    assert len(receiver.log.events("warning")) == 1, "this is another trouble, which has just begun"


@virtual_time
async def test_a_log_that_was_faster_than_the_first_announcement_keeps_the_own_state() -> None:
    source, target = Owner(9, b"1"), Owner(3, b"mine")
    pair = Pair(source, target)
    call = pair.meshes[1].call

    async def overtaken(peer: str, method: str, payload: bytes, timeout: float = 5.0) -> bytes:
        answer = await call(peer, method, payload, timeout)
        if method == RANGES:
            target.wants_state = False
        return answer

    pair.meshes[1].call = overtaken  # type: ignore[method-assign, assignment]
    await pair.pull()
    assert (target.log, target.values) == ([], [b"mine"])
