"""Servers are emptied and removed, and the meta group's leader steps down (cluster/administration.py)."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.cluster import administration
from jetcluster.cluster.meta_members import REMOVED
from jetcluster.errors import ApiError
from jetcluster.mesh.api import MeshError
from jetcluster.meta.machine import MetaMachine
from jetcluster.meta.state import Assignment
from jetcluster.raft.api import NotLeaderError
from testkit.sim.nodes import ACCOUNT, SMALL_LOG, Cluster, Node
from testkit.sim.shared import virtual_time
from tests.unit.cluster.consumers import Puller, consumer, owned_by, owner
from tests.unit.meta.test_places import stream


async def ask(node: Node, kind: str, **body: Any) -> dict[str, Any]:
    return await node.js.meta_request(kind, {"request": f"a{next(node.cluster.inboxes)}", **body})


async def refusal(node: Node, kind: str, **body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await ask(node, kind, **body)
    return caught.value


def _leads(node: Node) -> bool:
    return node.js.meta.leading


def holds(node: Node) -> int:
    return len(node.js.replicas)


async def emptied(cluster: Cluster, node: Node, ask_at: Node) -> None:
    await cluster.until(lambda: not holds(node), 60, f"{node.name} is empty")
    left = await ask(ask_at, "server_evacuate", peer=node.name)
    assert left["assigned"] == 0 and left["held"] == {"replicas": 0, "leaders": 0, "consumers": 0}


@virtual_time
async def test_the_meta_leader_steps_down_to_the_one_it_is_asked_for() -> None:
    async with Cluster() as cluster:
        for preferred in "ABCB":
            leader = cluster.meta_leader()
            assert leader is not None
            if preferred == leader.name:
                error = await refusal(cluster["A"], "meta_stepdown", placement={"preferred": preferred})
                assert error.description == f'preferred server "{preferred}" is already leader'
                continue
            await ask(cluster["A"], "meta_stepdown", placement={"preferred": preferred})
            await cluster.until(partial(_leads, cluster[preferred]), what="it leads")
        leader = cluster.meta_leader()
        await ask(cluster["C"], "meta_stepdown")
        await cluster.until(lambda: cluster.meta_leader() not in (None, leader), what="another one leads")


@virtual_time
async def test_the_meta_leader_at_rest_walks_over_no_streams() -> None:
    async with Cluster() as cluster:
        for number in range(5):
            await cluster.create(f"S{number}")
        leader = cluster.meta_leader()
        assert leader is not None
        looked: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            by_gid = MetaMachine.by_gid

            def spy(machine: MetaMachine, gid: int) -> Assignment | None:
                looked.append(gid)
                return by_gid(machine, gid)

            patch.setattr(MetaMachine, "by_gid", spy)
            patch.setattr(MetaMachine, "all_assignments", lambda machine: looked.append(0) or [])
            patch.setattr(MetaMachine, "_sorted", lambda machine, gids: looked.extend(gids) or [])
            await asyncio.sleep(5.0)
        assert looked == []


@virtual_time
async def test_a_server_is_emptied_and_removed_while_messages_come() -> None:
    async with Cluster("ABCD", options=SMALL_LOG) as cluster:
        for number in range(6):
            await cluster.create(f"S{number}", 3 if number < 4 else 1)
        leaving = max(cluster, key=holds)
        await cluster.create("S")
        if not leaving.has("S"):
            await cluster.delete("S")
            await cluster.create("S")
        for number in range(50):
            await cluster["A"].publish(b"s0", b"%d" % number)
        home = next(node for node in cluster if node is not leaving)
        assert (await ask(home, "server_evacuate", peer=leaving.name))["draining"]
        for number in range(50, 100):
            await home.publish(b"s0", b"%d" % number)
        await emptied(cluster, leaving, home)
        await cluster.create("NEW", 3, ask=home.name)
        assert not leaving.has("NEW"), "nothing new is placed on a server that is drained"
        assert not leaving.js.meta.leading
        await ask(home, "server_remove", peer=leaving.name)
        await cluster.until(lambda: cluster.meta_leader() not in (None, leaving), what="a meta leader")
        leader = cluster.meta_leader()
        assert leader is not None and leader.js.meta.group is not None
        group = leader.js.meta.group
        await cluster.until(lambda: leaving.me not in group.peers, what="it is no voter")
        await asyncio.sleep(5)
        assert leaving.me not in group.peers, "it does not come back by itself"
        assert leaving.me not in leader.js.meta.machine.nodes
        for number in range(4):
            await cluster.equal(f"S{number}")
        replica = home.replica("S0") if home.has("S0") else cluster.leader("S0").replica("S0")
        assert replica.store.messages == 100
        await cluster.stop(leaving.name)
        await home.publish(b"s1")
        assert (await refusal(home, "server_remove", peer=leaving.name)).err_code == 10044


@virtual_time
async def test_a_move_to_a_server_that_dies_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "MOVES_AT_ONCE", 1)
    monkeypatch.setattr(administration, "PATIENCE_SECONDS", 10.0)
    async with Cluster("ABCDE", options=SMALL_LOG) as cluster:
        for number in range(6):
            await cluster.create(f"S{number}")
        leader = cluster.meta_leader()
        assert leader is not None
        leaving = max((node for node in cluster if node is not leader), key=holds)
        machine = leader.js.meta.machine
        before = {one.gid: one.peers for one in machine.assigned_to(leaving.me)}
        assert len(before) > 1
        await ask(leader, "server_evacuate", peer=leaving.name)
        await cluster.until(lambda: len(machine.assigned_to(leaving.me)) < len(before), what="one moves")
        (first,) = before.keys() - {one.gid for one in machine.assigned_to(leaving.me)}
        dead = next(node for node in cluster if first in {one.gid for one in machine.assigned_to(node.me)}
                    and node.me not in before[first])  # fmt: skip
        assert dead is not leader
        await cluster.stop(dead.name)
        await cluster.until(lambda: set(leaving.js.replicas) <= {first}, 120, "the others have moved")
        assert set(leaving.js.replicas) == {first}, "this one is not complete without it"


@virtual_time
async def test_consumers_of_a_drained_server_are_served_elsewhere() -> None:
    async with Cluster("ABCD") as cluster:
        await cluster.create("S")
        leaving = next(node for node in cluster.followers("S"))
        home = next(node for node in cluster if node is not leaving)
        for number in range(10):
            await home.publish(b"s", b"%d" % number)
        await consumer(home, "c")
        await owned_by(cluster, "c", leaving)
        puller = Puller(home, "S", "c")
        for message in await puller.fetch(4):
            await puller.ack(message)
        await ask(home, "server_evacuate", peer=leaving.name)
        await emptied(cluster, leaving, home)
        assert owner(cluster, "c") is not leaving
        assert [payload for _, _, payload in await puller.fetch(2)] == [b"4", b"5"]


@virtual_time
async def test_a_new_leader_goes_on_emptying() -> None:
    async with Cluster("ABCDE", options=SMALL_LOG) as cluster:
        for number in range(12):
            await cluster.create(f"S{number}", 3)
        leader = cluster.meta_leader()
        assert leader is not None
        await ask(cluster["A"], "server_evacuate", peer=leader.name)  # it has to hand that over too
        await cluster.until(lambda: cluster.meta_leader() not in (None, leader), what="another meta leader")
        second = cluster.meta_leader()
        assert second is not None
        cluster.crash(second.name)
        await asyncio.sleep(1)
        cluster.restart(second.name)
        home = next(node for node in cluster if node.name not in (leader.name, second.name))
        await emptied(cluster, leader, home)
        await ask(home, "server_evacuate", peer=leader.name, cancel=True)
        assert not home.js.meta.machine.nodes[leader.me].draining


@virtual_time
async def test_refusals_say_the_numbers() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", 3)
        error = await refusal(cluster["A"], "server_evacuate", peer="B")
        assert error.err_code == 10041 and "1 streams find no other place" in error.description
        assert "S (R3)" in error.description
        error = await refusal(cluster["A"], "server_remove", peer="B")
        assert error.err_code == 10041 and "holds 1 stream replicas" in error.description
        await cluster.delete("S")
        assert (await refusal(cluster["A"], "server_remove", peer="nope")).err_code == 10044
        cluster.crash("C")
        await cluster.until(lambda: cluster.meta_leader() is not None, what="a meta leader")
        await asyncio.sleep(1)
        leader = cluster.meta_leader()
        assert leader is not None
        other = next(node for node in cluster if node is not leader)
        error = await refusal(other, "server_remove", peer_id=other.me)
        assert error.err_code == 10041
        assert "would have 2 voters, 1 of them connected and caught up, and needs 2" in error.description
        assert leader.js.meta.group is not None and len(leader.js.meta.group.peers) == 3


@virtual_time
@pytest.mark.parametrize(
    ("first", "second", "code"), [(0.0, 0.0, 10041), (0.0, 0.2, 10041), (0.2, 0.0, 10005), (0.8, 0.0, 10005)]
)
async def test_no_stream_is_placed_on_a_server_while_it_is_removed(first: float, second: float, code: int) -> None:
    """A decision takes 0.6 s, and a request asks first whether its leader still leads, for as long."""
    async with Cluster("ABCD", tags={"D": "spare"}) as cluster:
        await ask(cluster["A"], "meta_stepdown", placement={"preferred": "B"})
        await cluster.until(partial(_leads, cluster["B"]), what="it leads")
        leader, spare = cluster["B"], cluster["D"]
        await asyncio.sleep(1.0)
        for name in "AC":
            cluster.network.link(leader.me, cluster[name].me).delay = 0.3
            cluster.network.link(cluster[name].me, leader.me).delay = 0.3
        body = cluster.stream_body({"name": "S", "subjects": ["s"], "placement": {"tags": ["spare"]}})

        async def create() -> None:
            await asyncio.sleep(first)
            await leader.js.meta_request("stream_create", body)

        async def remove() -> None:
            await asyncio.sleep(second)
            await ask(leader, "server_remove", peer="D")

        done = await asyncio.gather(create(), remove(), return_exceptions=True)
        refused = [one.err_code for one in done if isinstance(one, ApiError)]
        assert refused == [code]
        machine = leader.js.meta.machine
        assert (spare.me in machine.removed) != bool(machine.assigned_to(spare.me))


@virtual_time
async def test_a_leader_that_is_deposed_while_it_removes_a_server_leaves_that_to_the_next_one() -> None:
    """It would wait for places that it never learns of, and say that it takes too long."""
    async with Cluster() as cluster:
        await asyncio.sleep(1.0)
        leader = cluster.meta_leader()
        assert leader is not None and leader.js.meta.group is not None
        cluster.isolate(leader.name)
        leader.js.meta.group.propose(b"{}")
        waiting = attrgetter("administration._places_given")(leader.js)(leader.js.meta.group)
        with pytest.raises(NotLeaderError):
            await waiting


@virtual_time
async def test_a_server_that_has_just_started_does_not_say_that_it_holds_nothing() -> None:
    """Its meta state on disk may be older than a stream that only it has, and it would be removed with that stream."""
    async with Cluster() as cluster:
        await cluster.create("S", 1)
        (home,) = cluster.holders("S")
        asked = next(node for node in cluster if node is not home)
        await home.publish(b"s", b"acknowledged")
        cluster.crash(home.name)
        home = cluster.restart(home.name)
        told: list[int] = []
        silent = 0
        while len(told) < 5:
            try:
                answer = await asked.js.network.mesh.call(home.me, administration.HELD_METHOD, b"", 1.0)
                told.append(json.loads(answer)["replicas"])
            except MeshError as error:
                silent += "does not know yet" in str(error)
            await asyncio.sleep(0.0001)
        assert set(told) == {1} and silent


@virtual_time
async def test_a_server_that_is_gone_is_removed_and_its_streams_go_on() -> None:
    """With fewer replicas, until a server comes that can hold one."""
    async with Cluster() as cluster:
        await cluster.create("S", 3)
        await cluster["A"].publish(b"s", b"1")
        await asyncio.sleep(1)
        cluster["C"].kv.flush_now()
        cluster.crash("C")
        await cluster.led("S")
        await asyncio.sleep(1)
        gone = cluster.nodes["C"].me
        home = next(iter(cluster))
        await ask(home, "server_remove", peer="C")
        leader = await cluster.led("S")
        await cluster.until(lambda: len(leader.replica("S").group.peers) == 2, what="two voters")
        await home.publish(b"s", b"2")
        used = await home.js.used(ACCOUNT)
        again = cluster.restart("C")  # with its old store: never again
        await asyncio.sleep(10)
        assert again.has("S") and await home.js.used(ACCOUNT) == used, "what it holds counts for nothing"
        assert again.log.events("error").count(REMOVED) == 1
        assert again.js.joining.removed == REMOVED
        assignment = leader.replica("S").assignment
        for request in (again.js.meta_request("names", {}), again.js.stream_request(assignment, "info", {})):
            before = cluster.loop.time()
            with pytest.raises(ApiError) as refused:
                await request
            assert refused.value.err_code == 10044 and cluster.loop.time() == before, "and not 503 some seconds later"
        meta = cluster.meta_leader()
        assert meta is not None and meta.js.meta.group is not None and gone not in meta.js.meta.group.peers
        await cluster.stop("C")
        cluster.add("D")
        await cluster.until(lambda: len(cluster.leader("S").replica("S").group.peers) == 3, 60, "three voters again")
        await cluster.equal("S", "A", "B", "D")


def assigned(cluster: Cluster) -> tuple[str, ...]:
    """The peers of stream S."""
    found = next(iter(cluster)).js.assignment(ACCOUNT, "S")
    assert found is not None
    return found.peers


@virtual_time
async def test_a_stream_that_was_to_shrink_to_a_lost_server_stays_with_who_has_it() -> None:
    """Its leader is lost while it is asked to be the only one; the others have it, and would be without a place."""
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s", b"kept")
        await cluster.equal("S")
        home, lost = cluster.meta_leader(), cluster.leader("S")
        if lost is home:
            await ask(lost, "meta_stepdown")
            await cluster.until(lambda: cluster.meta_leader() not in (None, lost), what="another meta leader")
            home = cluster.meta_leader()
        assert home is not None
        body = cluster.stream_body({"name": "S", "subjects": ["s"], "num_replicas": 1})
        updated = await home.js.meta_request("stream_update", body)
        assert updated["assignment"]["peers"] == [lost.me]
        assert len(lost.replica("S").group.peers) == 3, "it has not begun"
        cluster.crash(lost.name)
        cluster.add(lost.name)
        await cluster.until(lambda: lost.me not in home.js.meta.machine.nodes, 60, "it is replaced")
        await cluster.until(lambda: assigned(cluster) != (lost.me,), 30, "S has a place")
        (peer,) = assigned(cluster)
        holder = next(node for node in cluster if node.me == peer)
        await cluster.until(lambda: [node for node in cluster if node.has("S")] == [holder], 30, "it is there alone")
        assert (await home.publish_again(b"s"))["seq"] == 2
        assert (await holder.get(b"S", 1))[2] == b"kept"


@virtual_time
async def test_leaders_that_do_not_answer_hold_up_nobody() -> None:
    """100 streams are led by servers that are not theirs, and one of them answers."""
    strays = [stream(gid, "gone", replicas=1) for gid in range(2, 102)]
    clock, asked, moved = asyncio.get_running_loop().time, [], []

    async def ask_stream(assignment: Assignment, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        assert kind == "members"
        asked.append(assignment.gid)
        if assignment.gid != 70:
            await asyncio.Event().wait()
        return {"voters": ["L"], "outgoing": [], "learners": []}

    async def set_peers(assignment: Assignment, peers: list[str], request: str) -> dict[str, Any]:
        moved.append((assignment.gid, peers))
        return {"assignment": assignment.changed(5, peers=tuple(peers)).to_dict()}

    machine = SimpleNamespace(nodes={"L": SimpleNamespace(peer="L", draining=False)}, removed={}, misplaced=strays)
    machine.by_gid = {one.gid: one for one in strays}.get
    group = SimpleNamespace(peers=("L",), status=lambda: SimpleNamespace(peers=[]))
    network: Any = SimpleNamespace(
        me="L",
        mesh=SimpleNamespace(serve=lambda method, handler: None, peers={}),
        leaders=dict.fromkeys(range(102), "L"),
    )
    runtime: Any = SimpleNamespace(clock=SimpleNamespace(monotonic=clock), rng=SimpleNamespace(token=bytes))
    meta: Any = SimpleNamespace(machine=machine, group=group, leading=True)
    service: Any = SimpleNamespace(set_peers=set_peers)
    known: Any = SimpleNamespace(current=True)
    leading = administration.Administration(runtime, network, SimpleNamespace(), meta, service, known, {}, ask_stream)  # type: ignore[arg-type]
    took = []
    while len(set(asked)) < len(strays):
        start = clock()
        await leading.tend()
        took.append(clock() - start)
        assert len(took) < 20
    assert max(took) <= administration.HELD_SECONDS + 0.1 and moved == [(70, ["L"])]
    assert asked[:100] == [one.gid for one in strays], "each in its turn"


@virtual_time
@pytest.mark.parametrize("seconds", [3, 140])
async def test_a_stream_that_was_only_on_a_drained_server_that_died_stays_assigned_to_it(seconds: int) -> None:
    """Its move was under way: whoever was to have it has nothing, and would wait for it for ever."""
    async with Cluster("ABCD") as cluster:
        for number in range(12):
            await cluster.create(f"S{number}", 1, subjects=[f"s{number}"])
            await cluster["A"].publish(b"s%d" % number, b"kept")
        lost = cluster["D"]
        if cluster.meta_leader() is lost:
            await ask(lost, "meta_stepdown")
            await cluster.until(lambda: cluster.meta_leader() not in (None, lost), what="another meta leader")
        home = cluster.meta_leader()
        assert home is not None
        machine = home.js.meta.machine

        def there(leading: bool) -> set[str]:
            """Names of its streams of which a replica elsewhere leads, or waits."""
            held = [(name, node.replica(name)) for node in cluster for name in had if node.has(name)]
            return {name for name, replica in held if replica.leading == leading}

        def assigned_to_it() -> set[str]:
            return {one.name for one in machine.assigned_to(lost.me)}

        had = assigned_to_it()
        await ask(home, "server_evacuate", peer="D")
        await cluster.until(lambda: assigned_to_it() != had, 10, "one moves")
        cluster.crash("D")
        await asyncio.sleep(seconds)
        assert there(False) & had - assigned_to_it()
        await ask(home, "server_remove", peer="D")
        assert assigned_to_it() == had - there(True)
        await cluster.until(lambda: not there(False), 30, "nobody waits for what nobody has")
