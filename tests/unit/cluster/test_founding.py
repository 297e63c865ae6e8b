"""Streams that are cut off in the middle of their founding, and servers that carry out their meta log once more."""

from __future__ import annotations

import asyncio
import json

import pytest

from jetcluster.cluster.meta_replica import MetaReplica
from jetcluster.meta.state import Assignment
from jetcluster.raft.journal.journal import Journal
from jetcluster.replica.consumer_exchange import ConsumerExchange
from jetcluster.replica.services import Services
from jetcluster.replica.stream_replica import StreamReplica
from testkit.sim.nodes import ACCOUNT, NO_LIMITS, Cluster
from testkit.sim.shared import virtual_time
from tests.unit.cluster.test_moves import tag


async def assigned(cluster: Cluster, replicas: int) -> Assignment:
    """It is in the meta log, and nobody has got any further."""
    node = cluster["A"]
    body = node.js.parts.service and cluster.stream_body({"name": "S", "subjects": ["s"], "num_replicas": replicas})
    return Assignment.from_dict((await node.js.meta_request("stream_create", body))["assignment"])


@virtual_time
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("begun", [0, 1])
async def test_all_lose_power_before_the_group_is_made(
    replicas: int, begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`begun`: so many have made their replica, and it had not yet voted."""
    async with Cluster() as cluster:
        made: list[str] = []

        def begin(services: Services, assignment: Assignment, exchange: ConsumerExchange) -> StreamReplica:
            if len(made) >= begun:
                raise OSError("no space left on device")
            made.append(services.network.me)
            return StreamReplica(services, assignment, exchange)

        with monkeypatch.context() as patch:
            patch.setattr("jetcluster.cluster.local_streams.StreamReplica", begin)
            assignment = await assigned(cluster, replicas)
            await cluster.until(lambda: all(n.js.assignment(ACCOUNT, "S") is not None for n in cluster))
            await asyncio.sleep(0.1)
            cluster.crash("ABC")
        knew = [name for name in "ABC" if assignment.gid in cluster[name].journal.groups]
        assert len(knew) == len(made) == begun
        cluster.restart("ABC")
        await cluster.led("S")
        assert (await cluster["A"].publish_again(b"s"))["seq"] == 1
        await cluster.until(lambda: sum(node.has("S") for node in cluster) == replicas)
        await cluster.equal("S")
        assert not any(n.replica("S").group.log.damaged for n in cluster if n.has("S"))  # type: ignore[attr-defined]


@virtual_time
@pytest.mark.parametrize("replicas", [1, 3])
async def test_all_lose_power_right_after_a_stream_is_made(replicas: int) -> None:
    async with Cluster() as cluster:
        await cluster.create("S", replicas)
        await cluster["A"].publish(b"s", b"kept")
        cluster.crash("ABC")
        cluster.restart("ABC")
        await cluster.led("S")
        assert (await cluster["A"].publish_again(b"s"))["seq"] == 2


@virtual_time
async def test_a_founder_that_was_away_from_the_beginning_comes_with_its_vote() -> None:
    async with Cluster() as cluster:
        cluster.crash("C")
        assignment = await assigned(cluster, 2)
        away = next(name for name in "AB" if cluster[name].me in assignment.peers)
        await cluster.led("S")
        cluster.crash(away)
        cluster.restart(away)
        cluster.restart("C")
        await cluster.led("S")


@virtual_time
@pytest.mark.parametrize("replicas", [1, 3])
async def test_who_carries_out_its_meta_log_once_more_founds_nothing_that_it_has_left(
    replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its store has forgotten all, and nothing says that there was any; its journal remembers what it has left."""
    async with Cluster("ABCDEF") as cluster:
        await tag(cluster)
        gid = (await cluster.create("S", replicas, placement={"tags": ["old"]})).gid
        await cluster["A"].publish(b"s", b"kept")
        old = cluster.leader("S")
        await cluster.update("S", replicas, placement={"tags": ["new"]})
        await cluster.until(lambda: not old.has("S") and gid not in old.journal.groups, what="it has moved away")
        await asyncio.sleep(3.0)  # the journal knows what was committed
        cluster.crash(old.name)
        old.kv.flushed.clear()
        monkeypatch.setattr(MetaReplica, "had_state", lambda self: False)
        back = cluster.restart(old.name)
        cluster.isolate(old.name)
        await cluster.until(lambda: gid in back.raft.groups, what="it hears of the stream once more")
        await asyncio.sleep(5.0)
        group = back.raft.groups[gid]
        assert back.me not in group.peers and group.leader is None and not group.may_campaign()
        cluster.heal()
        await cluster.until(lambda: back.js.known.current and not back.has("S"), what="it knows better")
        await cluster.led("S")
        assert (await back.publish_again(b"s"))["seq"] == 2
        await cluster.equal("S")


@virtual_time
async def test_a_journal_learns_from_the_cluster_which_groups_it_may_have_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal learns of all groups made by then: damage may have taken what it knew of them itself."""
    learnt: list[tuple[Journal, int]] = []
    monkeypatch.setattr(Journal, "learn_top", lambda journal, gid: learnt.append((journal, gid)))
    async with Cluster() as cluster:
        made = [(await cluster.create(name, 3)).gid for name in ("S", "T")]
        cluster.crash("B")
        learnt.clear()
        again = cluster.restart("B")
        await cluster.until(lambda: again.js.known.current, what="it knows the streams")
        assert learnt == [(again.journal, made[-1])]


async def shrunk_to(cluster: Cluster, peer: str) -> None:
    leader = cluster.meta_leader()
    assert leader is not None
    config = dict(cluster.stream_body({"name": "S", "subjects": ["s"], "num_replicas": 1})["config"])
    command = {"kind": "stream_update", "request": "shrink", "account": ACCOUNT, "config": config, "limits": NO_LIMITS}
    result = await leader.js.meta.propose(json.dumps({**command, "peers": [peer]}).encode())
    assert "error" not in result, result
    await cluster.until(lambda: all(n.js.assignment(ACCOUNT, "S").peers == (peer,) for n in cluster))  # type: ignore[union-attr]


@virtual_time
async def test_a_founder_that_never_began_does_not_take_the_peers_of_now_for_the_voters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its server could not begin the replica. The stream is to shrink to that one, which knows nothing of it yet."""
    async with Cluster() as cluster:
        late = cluster["C"]

        def begin(services: Services, assignment: Assignment, exchange: ConsumerExchange) -> StreamReplica:
            if services is late.services:
                raise OSError("no space left on device")
            return StreamReplica(services, assignment, exchange)

        with monkeypatch.context() as patch:
            patch.setattr("jetcluster.cluster.local_streams.StreamReplica", begin)
            await cluster.create("S", 3)
            await cluster["A"].publish(b"s", b"kept")
            await shrunk_to(cluster, late.me)
            await late.js.flusher.flush()
        cluster.crash("C")
        away = next(node for node in cluster if not node.replica("S").leading)
        cluster.crash(away.name)
        back = cluster.restart("C")
        cluster.isolate("C")
        group = back.replica("S").group
        await asyncio.sleep(3.0)
        assert group.leader is None and back.me not in group.peers and not back.replica("S").damaged
        cluster.heal()
        leader = await cluster.led("S")
        assert leader.replica("S").store.last_seq == 1, "its vote has made one that has the message lead"
        assert (await cluster["A" if away.name != "A" else "B"].publish_again(b"s"))["seq"] == 2
        cluster.restart(away.name)
        await cluster.until(lambda: [n.name for n in cluster if n.has("S")] == ["C"], what="it is where it is to be")
        assert cluster["C"].replica("S").store.last_seq == 2


@virtual_time
async def test_a_stream_that_nobody_began_before_it_was_changed_is_founded_by_the_word_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Cluster() as cluster:

        def begin(*_: object) -> StreamReplica:
            raise OSError("no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("jetcluster.cluster.local_streams.StreamReplica", begin)
            await assigned(cluster, 3)
            await shrunk_to(cluster, cluster["C"].me)
            await cluster.flush()
            cluster.crash("ABC")
        cluster.restart("BC")
        back = cluster["C"]
        await cluster.until(lambda: "A does not say" in str(back.log.lines), what="it waits for the third")
        assert not back.replica("S").leading
        cluster.restart("A")
        assert await cluster.led("S") is back
        assert (await cluster["A"].publish_again(b"s"))["seq"] == 1
