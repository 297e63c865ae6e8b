"""Turns on their way to the leader, and what only an owner knows, on whole nodes of one process."""

from __future__ import annotations

import asyncio
import itertools

from jetcluster.replica.consumer_exchange import TURN_NOTICE
from testkit.sim.nodes import Cluster, NoRespondersError
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
async def test_deliveries_and_acks_in_flight_while_leaders_change_skip_nothing() -> None:
    """The stream's leader changes again and again, and the owner's link to it breaks, under a client that pulls and
    acknowledges; every message comes, and none again whose ack was confirmed."""
    async with Cluster() as cluster:
        await filled(cluster, 0)
        await consumer(cluster["A"], "c", ack_wait=SECOND, max_ack_pending=50)
        total, done = 200, False
        client = Puller(cluster["A"], "S", "c")
        confirmed: set[int] = set()
        seen_seqs: set[int] = set()
        late: list[int] = []

        async def publishes() -> None:
            for number in range(total):
                while True:
                    try:
                        await cluster["B"].publish(b"s", b"%d" % number)
                        break
                    except (NoRespondersError, TimeoutError):
                        await asyncio.sleep(0.02)
                await asyncio.sleep(0.01)

        async def consumes() -> None:
            seen = 0
            while (found := state(cluster["A"])).floor_sseq < max(total, cluster["A"].replica("S").store.last_seq):
                assert len(found.pending) <= 50
                client.pull(10, expires=0.3)
                await asyncio.sleep(0.05)
                for message in client.got[seen:]:
                    seen += 1
                    seq = int(message[1].split(b".")[5])
                    seen_seqs.add(seq)
                    if seq in confirmed:
                        late.append(seq)
                    try:
                        await cluster["A"].request(message[1], b"+ACK", 0.3)
                        confirmed.add(seq)
                    except (NoRespondersError, TimeoutError):
                        pass  # it will come again, or only its confirmation was lost

        async def disturbs() -> None:
            round_ = 0
            while not done:
                await asyncio.sleep(0.35)
                leader = next((n for n in cluster if n.replica("S").leading), None)
                if leader is None:
                    continue
                round_ += 1
                if round_ % 2:
                    leader.replica("S").group.transfer()
                    continue
                other = next(n for n in cluster if n is not leader)
                cluster.network.cut(leader.me, other.me)
                await asyncio.sleep(0.05)
                cluster.network.heal(leader.me, other.me)

        disturber = asyncio.ensure_future(disturbs())
        async with asyncio.timeout(120):
            await asyncio.gather(publishes(), consumes())
        done = True
        await disturber
        assert seen_seqs == set(range(1, cluster["A"].replica("S").store.last_seq + 1))
        assert len(confirmed) > total // 2
        assert late == []
        await cluster.equal("S")
        assert sum(host(node).turns.lost for node in cluster) > 0


@virtual_time
async def test_without_acks_the_positions_shown_are_exact() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 50)
        await consumer(cluster["A"], "c", ack_policy="none")
        for home in cluster:
            await owned_by(cluster, "c", home)
            for client in cluster:
                puller = Puller(client, "S", "c")
                await puller.fetch(4)
                infos = [await ask(node, "S", "consumer_info", name="c") for node in cluster]
                assert {info["delivered"]["stream_seq"] for info in infos} == {int(puller.got[-1][2]) + 1}


@virtual_time
async def test_turns_that_get_lost_on_the_way_are_found_and_nothing_is_skipped() -> None:
    """Every seventh notice of a turn is dropped by the network."""
    async with Cluster() as cluster:
        await filled(cluster, 100)
        leader = await cluster.led("S")
        await consumer(leader, "c", ack_wait=SECOND)
        home = cluster.followers("S")[0]
        await owned_by(cluster, "c", home)
        notify, count = home.mesh.notify, itertools.count(1)

        def lossy(peer: str | None, kind: str, payload: bytes) -> None:
            if kind != TURN_NOTICE or next(count) % 7:
                notify(peer, kind, payload)

        home.mesh.notify = lossy  # type: ignore[method-assign]
        client = Puller(home, "S", "c")
        confirmed: set[int] = set()
        late: list[int] = []
        seen = 0
        async with asyncio.timeout(300):
            while state(leader).floor_sseq < 100:
                client.pull(10, expires=0.5)
                await asyncio.sleep(0.1)
                for message in client.got[seen:]:
                    seen += 1
                    seq = int(message[1].split(b".")[5])
                    late += [seq] if seq in confirmed else []
                    try:
                        await home.request(message[1], b"+ACK", 5.0)
                        confirmed.add(seq)
                    except TimeoutError:
                        pass
        assert {int(message[1].split(b".")[5]) for message in client.got} == set(range(1, 101))
        assert late == [] and host(home).turns.lost > 3
        home.mesh.notify = notify  # type: ignore[method-assign]
        await cluster.equal("S")


@virtual_time
async def test_a_turn_that_a_full_leader_refuses_is_tried_again() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 5)
        leader = await cluster.led("S")
        await consumer(leader, "c")
        for home in (leader, cluster.followers("S")[0]):
            await owned_by(cluster, "c", home)
            for node in cluster:  # of one alone another one would lead
                node.kv.broken = node.services.commits.full = True
                node.services.commits.failing = "full"
            client = Puller(home, "S", "c")
            client.pull(1, expires=10.0)
            await asyncio.sleep(0.5)
            assert client.got == []
            for node in cluster:
                node.kv.broken = node.services.commits.full = False
                node.services.commits.failing = ""
            await cluster.until(lambda: len(client.got) == 1, what="the message")  # noqa: B023
            await client.ack(client.got[0])


@virtual_time
async def test_a_turn_that_nobody_could_apply_does_not_get_into_the_log() -> None:
    """A node of another version may send one, say. In the log it would stop all replicas of the stream, for good."""
    async with Cluster() as cluster:
        await filled(cluster, 10)
        leader, home = await owned_by_a_follower(cluster)
        me = home.mesh.me.peer_id.encode()
        head = leader.replica("S").assignment.gid.to_bytes(4, "little") + me
        session = host(home).turns._session.to_bytes(8, "little")
        for body in (b"", bytes(8), bytes(8) + b"\x02", bytes(9) + b"junk", bytes(9) + bytes(8) + b"\xff" + bytes(4)):
            home.mesh.notify(leader.mesh.me.peer_id, TURN_NOTICE, head + session + body)
        await asyncio.sleep(1)
        assert not any(node.replica("S").failed for node in cluster)
        client = Puller(home, "S", "c")
        await client.fetch(10)
        assert {int(message[1].split(b".")[5]) for message in client.got} == set(range(1, 11))
