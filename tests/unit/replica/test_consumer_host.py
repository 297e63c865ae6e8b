"""Owners on whole nodes of one process: who serves, and who must not."""

from __future__ import annotations

import asyncio

from jetcluster.store.api import DamagedError
from testkit.sim.nodes import SMALL_LOG, Cluster
from testkit.sim.shared import virtual_time
from tests.unit.cluster.consumers import (
    SECOND,
    Puller,
    ask,
    consumer,
    filled,
    host,
    owned_by,
    owned_by_a_follower,
    state,
)


@virtual_time
async def test_pulled_and_acknowledged_through_every_node_wherever_the_owner_is() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 27)
        for home in cluster:
            name = f"on{home.name}"
            made = await consumer(home, name)
            assert made["created"] and made["info"]["num_pending"] == 27
            await owned_by(cluster, name, home)
            for number, client in enumerate(cluster):
                puller = Puller(client, "S", name)
                got = await puller.fetch(3)
                assert [payload for _, _, payload in got] == [b"%d" % n for n in range(3 * number, 3 * number + 3)]
                for message in got:
                    assert (await puller.ack(message))[2] == b""
            info = await ask(home, "S", "consumer_info", name=name)
            assert info["ack_floor"]["stream_seq"] == 9 and info["num_ack_pending"] == 0
            assert info["num_pending"] == 18 and info["delivered"]["consumer_seq"] == 9
            assert info["cluster"]["leader"] == home.name
            assert sorted(other["name"] for other in info["cluster"]["replicas"]) == sorted(set("ABC") - {home.name})
        assert {state(node, "onA").floor_sseq for node in cluster} == {9}
        await cluster.equal("S")


@virtual_time
async def test_an_owner_cut_off_from_everybody_does_not_deliver_what_its_successor_does() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 20)
        leader, home = await owned_by_a_follower(cluster)
        local = Puller(home, "S", "c")
        await local.fetch(5)
        cluster.isolate(home.name)
        local.pull(5)
        await cluster.until(lambda: state(leader).owner != home.me, what="another owner")
        successor = Puller(leader, "S", "c")
        await cluster.until(lambda: successor.node.bus.has_interest(successor.next), what="its subjects")
        got = await successor.fetch(5)
        assert [payload for _, _, payload in got] == [b"5", b"6", b"7", b"8", b"9"]
        await asyncio.sleep(4.0)
        assert len(local.got) == 5
        assert not host(home).turns.is_open
        cluster.heal()
        await cluster.until(lambda: host(home).owner(state(home).cid) is None, what="the former owner is gone")
        await cluster.equal("S")
        assert len(local.got) == 5


@virtual_time
async def test_the_consumer_goes_on_after_a_restart_of_all() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 10)
        await consumer(cluster["A"], "c", ack_wait=SECOND)
        client = Puller(cluster["A"], "S", "c")
        for message in (await client.fetch(6))[:4]:
            await client.ack(message)
        cluster.crash("ABC")
        cluster.restart("ABC")
        await cluster.led("S")
        again = Puller(cluster["B"], "S", "c")
        await cluster.until(lambda: again.pull(20, expires=10.0) > 0, what="an owner")
        await cluster.until(lambda: len(again.got) == 6, what="the rest")
        await asyncio.sleep(2.0)
        assert sorted(int(payload) for _, _, payload in again.got[:6]) == [4, 5, 6, 7, 8, 9]
        info = await ask(cluster["A"], "S", "consumer_info", name="c")
        assert info["ack_floor"]["stream_seq"] == 4


@virtual_time
async def test_a_push_consumer_delivers_once_its_client_is_answered_wherever_the_owner_is() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 3)
        asker, home = cluster["A"], cluster["B"]
        for told in (True, False):
            name, got = f"told{told}", []
            home.bus.subscribe(name.encode(), lambda *message, got=got: got.append(message))
            made = await consumer(home, name, deliver_subject=name, ack_policy="none")
            assert made["owner"] == home.me and not got
            if told:
                gid = home.replica("S").assignment.gid
                asker.js.consumers.answered(made["owner"], gid, made["cid"])
                asker.js.consumers.answered(made["owner"], gid, 99)  # gone meanwhile
            await asyncio.sleep(0.05)
            assert len(got) == (3 if told else 0)
            await asyncio.sleep(0.25)
            assert len(got) == 3, "a word that is lost holds nobody"
        assert host(home).owns == 2


@virtual_time
async def test_a_node_that_steps_aside_hands_its_consumers_over() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 3)
        for number in range(6):
            await consumer(cluster["A"], f"c{number}")
        leader = await cluster.led("S")
        client = Puller(cluster.followers("S")[0], "S", "c0")
        for node in (leader, cluster.followers("S")[0]):
            before = cluster.loop.time()
            await node.js.transfer_leaderships(2.0)
            assert cluster.loop.time() - before < 1.9
            assert host(node).owns == 0 and not node.replica("S").leading
        assert len(await client.fetch(3)) == 3


@virtual_time
async def test_a_follower_that_takes_a_snapshot_has_the_consumers_too() -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        await filled(cluster, 5)
        await consumer(cluster["A"], "old")
        away = cluster.followers("S")[0]
        await owned_by(cluster, "old", away)
        cluster.crash(away.name)
        leader = await cluster.led("S")
        await cluster.until(lambda: state(leader, "old").owner != away.me, what="another owner")
        await consumer(leader, "c")
        client = Puller(leader, "S", "c")
        for number in range(300):
            await leader.publish(b"s", b"%d" % number)
        for message in await client.fetch(100):
            await client.ack(message)
        await cluster.flush()
        back = cluster.restart(away.name)
        await cluster.until(lambda: back.has("S") and back.replica("S").leading is False, what="it is back")
        await cluster.equal("S")
        assert state(back).floor_sseq == 100 and host(back).owns == 0
        await cluster.until(lambda: back.me in host(cluster.leader("S")).moves.able_peers(), what="the leader knows")
        await owned_by(cluster, "c", back)
        got = await Puller(back, "S", "c").fetch(1)
        assert state(back).delivered_sseq == 101 and got[0][2] == b"95"


@virtual_time
async def test_on_a_single_server() -> None:
    async with Cluster("A", clustered=False) as cluster:
        await filled(cluster, 5, 1)
        made = await consumer(cluster["A"], "c")
        assert "cluster" not in made["info"]
        client = Puller(cluster["A"], "S", "c")
        for message in await client.fetch(5):
            await client.ack(message)
        client.pull(1, expires=30.0)
        await asyncio.sleep(0.01)
        await cluster.stop("A")
        assert client.statuses[-1:] == [b"409 Server Shutdown"]


@virtual_time
async def test_a_node_that_stood_still_serves_nobody_before_it_knows_that_it_is_still_the_owner() -> None:
    """SIGSTOP and SIGCONT do this: its clock jumps, and what it reads first may be a client's pull."""
    async with Cluster() as cluster:
        await filled(cluster, 20)
        leader = await cluster.led("S")
        await consumer(leader, "c", ack_policy="none")
        home = cluster.followers("S")[0]
        await owned_by(cluster, "c", home)
        local = Puller(home, "S", "c")
        await local.fetch(5)
        sessions = host(home).turns.lost
        home.services.runtime.pulse._at -= 1.5
        local.pull(5)
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        assert len(local.got) == 5 and not host(home).turns.is_open
        await cluster.until(lambda: len(local.got) == 10, what="the answer, after a new session")
        assert host(home).turns.lost == sessions + 1


@virtual_time
async def test_a_replica_that_is_not_sound_gives_its_consumers_away() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 5)
        leader, home = await owned_by_a_follower(cluster)
        home.replica("S").repair.in_store = True  # which cannot be repaired while the node runs
        home.replica("S").report_damage(DamagedError(1, 1))
        await cluster.until(lambda: state(leader).owner != home.me, what="another owner")
        client = Puller(home, "S", "c")
        await cluster.until(lambda: home.bus.has_interest(client.next), what="its subjects")
        assert len(await client.fetch(5)) == 5
        made = [await consumer(leader, f"n{number}") for number in range(6)]
        assert home.name not in {one["info"]["cluster"]["leader"] for one in made}


@virtual_time
async def test_a_replica_that_has_stopped_gives_its_consumers_away() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 5)
        leader, home = await owned_by_a_follower(cluster)
        home.replica("S").group.fail("a test")
        await cluster.until(lambda: state(leader).owner != home.me, what="another owner")
        client = Puller(home, "S", "c")
        await cluster.until(lambda: home.bus.has_interest(client.next), what="its subjects")
        assert len(await client.fetch(5)) == 5


@virtual_time
async def test_owners_that_were_let_go_with_turns_in_flight_pass_over_nothing_when_they_come_back() -> None:
    """A disk hangs for a second, say, and is well again before the last turn is applied."""
    async with Cluster() as cluster:
        await filled(cluster, 12)
        _, home = await owned_by_a_follower(cluster)
        local = Puller(home, "S", "c")
        await local.fetch(5)
        there = host(home)
        sessions = there.turns.lost
        local.pull(1)
        await cluster.until(lambda: there.turns.in_flight > 0, what="a turn on its way")
        home.js.known.current = False
        there.refresh()
        home.js.known.current = True
        there.refresh()
        assert not there.turns.is_open and there.turns.lost == sessions + 1
        await cluster.until(lambda: there.hosted == 1, what="the owner is back")
        local.pull(2)
        await cluster.until(lambda: len(local.got) >= 7, what="what comes next")
        await local.fetch(4)
        delivered = {int(payload) for _, _, payload in local.got}
        assert delivered >= set(range(6, 12)) and delivered <= set(range(12))
        assert state(home).delivered_sseq == 12 and len(state(home).pending) == 12
        await cluster.equal("S")
