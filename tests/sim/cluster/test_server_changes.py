"""Servers join, are emptied, put back, removed and taken in again, and what is not as it should be then is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from testkit.sim.deployment import Deployment, Violation
from testkit.sim.session import Session
from tests.sim.cluster import liveness, server_changes
from tests.sim.cluster.expendable import drains, expendable
from tests.sim.cluster.invariants import jetstream_of, replicas
from tests.sim.cluster.machine_faults import cut_links
from tests.sim.cluster.member_changes import ask
from tests.sim.cluster.run import started
from tests.sim.cluster.server_changes import SYSTEM, is_removed

pytestmark = pytest.mark.sim

Change = Callable[[Deployment, Random], Awaitable[Any]]


class Chosen(Random):
    """Chooses this one wherever it may."""

    def __init__(self, wanted: object) -> None:
        super().__init__(1)
        self.wanted = wanted

    def choice(self, among: Any) -> Any:
        return self.wanted if self.wanted in among else super().choice(among)


@pytest.fixture
def four() -> Any:
    """Three servers that have a stream with three replicas, and one that has joined."""
    deployment = started()
    loop = deployment.client("client")

    async def make() -> None:
        session = Session("client", deployment.addresses())
        await session.connect()
        await session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
        await session.js_publish("s", b"one")

    deployment.run_until_done(deployment.spawn(loop, make()), 20.0)
    do(deployment, server_changes.join)
    deployment.run(8.0)
    yield deployment
    deployment.close()


def do(deployment: Deployment, change: Change, wanted: object = "n2") -> Any:
    loop = deployment.client("administrator")
    task = deployment.spawn(loop, change(deployment, Chosen(wanted)))
    deployment.run_until_done(task, 200.0)
    return task.result()


def settle(deployment: Deployment) -> None:
    deployment.run_until_done(deployment.spawn(deployment.client("settle"), liveness.settle(deployment)), 61.0)


def homes(deployment: Deployment) -> set[str]:
    return {one.machine.name for one in replicas(deployment) if one.stream is not None}


def test_one_that_is_decommissioned_is_removed_and_comes_back_as_another_peer(four: Deployment) -> None:
    peer = four.machines["n2"].peer_id
    assert "n2" in homes(four)
    do(four, server_changes.decommission)
    assert is_removed(four, peer) and four.machines["n2"].peer_id != peer
    settle(four)
    assert homes(four) == {"n1", "n3", "j1"}


def test_one_that_is_put_back_into_use_is_no_longer_emptied(four: Deployment) -> None:
    peer = four.machines["n2"].peer_id

    async def empty(deployment: Deployment, rng: Random) -> None:
        assert await ask(deployment, rng, "SERVER.EVACUATE", {"peer_id": peer}, SYSTEM) is not None

    do(four, empty)
    assert drains(four)
    assert expendable(four, Random(1)) is None  # nothing is damaged meanwhile
    do(four, server_changes.put_back)
    four.run(1.0)
    assert not drains(four) and not is_removed(four, peer)
    settle(four)


def test_a_dead_one_is_removed_and_comes_back_without_its_store(four: Deployment) -> None:
    settle(four)
    four.run(6.0)
    peers = {name: machine.peer_id for name, machine in four.machines.items()}
    do(four, server_changes.remove_dead)
    removed = [name for name, peer in peers.items() if is_removed(four, peer)]
    assert len(removed) == 1 and four.machines[removed[0]].peer_id != peers[removed[0]]
    settle(four)


def test_one_that_never_heard_of_its_removal_is_taken_in_again_nevertheless(four: Deployment) -> None:
    """It goes on to think that it is being emptied, and nobody waits for it to be put back into use."""
    peer = four.machines["n2"].peer_id

    async def remove_unheard(deployment: Deployment, rng: Random) -> None:
        for _ in range(100):
            left = await ask(deployment, rng, "SERVER.EVACUATE", {"peer_id": peer}, SYSTEM)
            if left is not None and left.get("assigned") == 0 and (left["held"] or {}).get("replicas") == 0:
                break
            await asyncio.sleep(0.5)
        cut_links(deployment, ["n2"], [name for name in deployment.machines if name != "n2"])
        for _ in range(20):
            if is_removed(deployment, peer):
                return
            await ask(deployment, rng, "SERVER.REMOVE", {"peer_id": peer}, SYSTEM)
            await asyncio.sleep(0.5)

    do(four, remove_unheard)
    four.run(1.0)
    assert is_removed(four, peer)
    own = jetstream_of(four.machines["n2"]).meta.machine
    assert peer not in own.removed and own.nodes[peer].draining
    four.spawn(four.client("administrator"), server_changes.tidy(four, Random(1)))
    four.run(5.0)
    assert four.machines["n2"].peer_id not in ("", peer)


def test_who_was_removed_and_has_a_place_is_noticed(four: Deployment) -> None:
    peer = four.machines["n2"].peer_id
    server_changes.require_nothing_there(four, "n2", peer)
    machine = jetstream_of(four.machines["n1"]).meta.machine
    machine.removed[peer] = "n2"
    with pytest.raises(Violation, match=r"n2 was emptied and removed, and n1 knows it to have \['S'\]"):
        server_changes.require_nothing_there(four, "n2", peer)


def test_a_reload_that_is_not_taken_over_is_noticed(deployment: Deployment) -> None:
    do(deployment, server_changes.reconfigure)
    deployment.run(1.0)
    changed = [name for name, server in deployment.servers.items() if server.max_payload]
    assert len(changed) == 1
    options = deployment.machines[changed[0]].node
    assert options is not None
    assert not list(liveness.wanting(deployment))
    options.options.max_payload -= 1
    assert f"{changed[0]} takes messages of" in next(liveness.wanting(deployment))


def test_the_meta_group_is_handed_to_who_is_named(deployment: Deployment) -> None:
    def leader() -> str:
        return next(one.machine.name for one in replicas(deployment) if one.stream is None and one.group.ready)

    wanted = next(name for name in ("n1", "n2") if name != leader())
    do(deployment, server_changes.meta_stepdown, wanted)
    deployment.run(2.0)
    assert leader() == wanted


def test_administrators_who_ask_at_once_get_their_own_answers(four: Deployment) -> None:
    async def both() -> list[Any]:
        return await asyncio.gather(*(ask(four, Random(1), subject, None) for subject in ("STREAM.INFO.S", "INFO")))

    asking = four.spawn(four.client("administrators"), both())
    four.run_until_done(asking, 20.0)
    info, account = asking.result()
    assert info["config"]["name"] == "S"
    assert account["streams"] == 1
