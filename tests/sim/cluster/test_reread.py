"""The judges of what servers have in memory find what is planted there, and nothing in a cluster at work."""

from __future__ import annotations

from contextlib import nullcontext
from operator import attrgetter
from typing import Any
from unittest.mock import Mock

import pytest

from jetcluster.monitor.view import apis_of
from jetcluster.ordered import OrderedSet
from jetcluster.store.kv import KvDamagedError
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.machine import DATA
from testkit.sim.session import Session
from tests.sim.cluster import reckoning, replicas, reread, state_views
from tests.sim.cluster.invariants import jetstream_of
from tests.sim.cluster.run import started


async def _work(deployment: Deployment) -> None:
    session = Session("writer", deployment.addresses())
    await session.connect()
    config = {"name": "S", "subjects": ["s.*"], "num_replicas": 3, "allow_msg_ttl": True}
    await session.api("STREAM.CREATE.S", config)
    for at in range(6):
        await session.js_publish(f"s.{at % 3}", b"x", {"Nats-Msg-Id": str(at), "Nats-TTL": "1h"})
    body = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    await session.api("CONSUMER.DURABLE.CREATE.S.c", body)
    with session.inbox() as (inbox, got):
        session.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch": 3}', inbox)
        for _ in range(3):
            await got.get()
    await session.close()


@pytest.fixture
def deployment() -> Any:
    one = started()
    one.run_until_done(one.spawn(one.client("work"), _work(one), "work"), 30.0)
    one.run(5.0)
    yield one
    one.close()


def _settled(deployment: Deployment) -> None:
    alike = replicas.settle(deployment)
    deployment.run_until_done(deployment.spawn(deployment.client("judge"), alike, "alike"), 120.0)


def _replica(deployment: Deployment) -> Any:
    return replicas.replicas(deployment, "S")["n2"]


def test_nothing_is_wrong_of_a_cluster_at_rest(deployment: Deployment) -> None:
    _settled(deployment)


def _forget_an_id(replica: Any) -> None:
    attrgetter("machine._dedupe._ids")(replica).pop(b"3")


def _count_a_ttl_twice(replica: Any) -> None:
    attrgetter("machine._expiry._ttls")(replica).entries += 1


def _give_the_consumer_away(replica: Any) -> None:
    replica.table.by_name["c"].owner = "nobody"


def _settle_a_message(replica: Any) -> None:
    replica.table.by_name["c"].unacked.redelivered += 1


def _lose_a_subject(replica: Any) -> None:
    attrgetter("store._index")(replica).table.pop(b"s.1")


def _forget_a_removal(replica: Any) -> None:
    attrgetter("known.machine._removed")(replica)["gone"] = "n9"
    attrgetter("known.machine._places")(replica).leaders["gone"] += 1


PLANTED = [
    _forget_an_id, _count_a_ttl_twice, _give_the_consumer_away, _settle_a_message, _lose_a_subject, _forget_a_removal,
]  # fmt: skip


@pytest.mark.parametrize("plant", PLANTED, ids=[one.__name__.strip("_") for one in PLANTED])
def test_what_only_memory_has_is_found(deployment: Deployment, plant: Any) -> None:
    plant(_replica(deployment))
    with pytest.raises(Violation, match=r"n2, .*(read again|counted)"):
        replicas.read_again(deployment)


def test_what_is_gone_may_not_wait_for_its_ack(deployment: Deployment) -> None:
    table = _replica(deployment).table
    assert not list(state_views.faults(table))
    table.by_name["c"].unacked.entries[1_000] = None
    assert any("[1000] wait for an ack" in text for text in state_views.faults(table))


def _count_bytes(node: Any) -> None:
    node.jetstream.jetstream.services.settings.account_quota.held[False] += 99


def _keep_a_batch_open(node: Any) -> None:
    node.jetstream.jetstream.services.settings.batch_quota.open += 1


def _hear_of_nobody(node: Any) -> None:
    link = next(iter(node.jetstream.mesh.links.values()))
    node.server.accounts.set_remote_interest(link, "APP", b"nobody.listens", None, 1)


def _send_clients_away(node: Any) -> None:
    node.jetstream.mesh.urls["client"] = ("nats://gone:1",)


def _own_one_more(node: Any) -> None:
    replica = next(iter(node.jetstream.jetstream.replicas.values()))
    replica.consumers.policy.came(replica.network.me)


def _keep_a_stream(node: Any) -> None:
    node.jetstream.jetstream.unassigned = (77,)


def _keep_a_request(node: Any) -> None:
    asks = attrgetter("_rpc._running")(node.jetstream.mesh)
    asks.setdefault("somebody", OrderedSet()).add(Mock(done=lambda: True))


def _keep_bytes_aside(node: Any) -> None:
    api = next(iter(apis_of(node).values()))
    attrgetter("_context.restore_room")(api).aside["somebody"] += 1


def _count_a_read(node: Any) -> None:
    next(iter(apis_of(node).values())).gets.waiting += 1


def _take_requests_twice(node: Any) -> None:
    (router, *_) = node.server.accounts
    for _ in range(2):
        router.subscribe(b"$JS.API.NOTHING", Mock(), local_only=True)


WRONG = [
    _count_bytes, _keep_a_batch_open, _hear_of_nobody, _send_clients_away, _own_one_more, _keep_a_stream,
    _keep_a_request, _keep_bytes_aside, _count_a_read, _take_requests_twice,
]  # fmt: skip


@pytest.mark.parametrize("plant", WRONG, ids=[one.__name__.strip("_") for one in WRONG])
def test_what_is_counted_or_known_wrongly_is_found(deployment: Deployment, plant: Any) -> None:
    assert not list(reckoning.wrong(deployment))
    deployment.victims["n2"] = None  # a fault has chosen it, and done nothing to its disk
    plant(deployment.machines["n2"].node)
    assert [text for text in reckoning.wrong(deployment) if text.startswith("n2")]


def test_a_server_that_cannot_answer_takes_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = started("three and a plain one")
    (name,) = [name for name, server in deployment.servers.items() if not server.jetstream]
    assert not list(reckoning.wrong(deployment))
    for other in deployment.machines.keys() - {name}:
        deployment.machines[other].kill()
    deployment.run(5.0)
    assert not list(reckoning.of_others(deployment))
    node: Any = deployment.machines[name].node
    (router, *_) = node.server.accounts
    router.subscribe(b"$JS.API.INFO", Mock(), local_only=True)
    assert [text for text in reckoning.of_others(deployment) if "knows nobody who answers" in text]
    deployment.close()


def _forget_what_is_due(owner: Any) -> None:
    attrgetter("selection.redelivery._heap")(owner).clear()


def _ask_for_more(owner: Any) -> None:
    owner.delivery.queue.wanted += 1


def _go_back(owner: Any) -> None:
    owner.selection.cursor = 0


def _leave_a_delivery_under_way(owner: Any) -> None:
    owner.selection.in_flight = 1


OWNED = [_forget_what_is_due, _ask_for_more, _go_back, _leave_a_delivery_under_way]


@pytest.mark.parametrize("plant", OWNED, ids=[one.__name__.strip("_") for one in OWNED])
def test_what_an_owner_has_wrong_is_found(deployment: Deployment, plant: Any) -> None:
    running = [one.consumers.running for one in replicas.replicas(deployment, "S").values()]
    (hosted,) = [hosted for owned in running for hosted in owned.values()]
    plant(hosted.owner)
    assert [text for text in reckoning.wrong(deployment) if "S: c: " in text]


def test_a_block_that_has_gone_may_not_be_kept(deployment: Deployment) -> None:
    replica = _replica(deployment)
    cache = attrgetter("store._cache")(replica)
    batch, _ = next(iter(cache.batches.values()))
    cache.put(99, 1, batch)
    assert [text for text in reckoning.wrong(deployment) if "group 99" in text]


@pytest.mark.parametrize("harmed", [False, True])
def test_only_rot_excuses_what_cannot_be_read(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, harmed: bool
) -> None:
    """Not that a fault has chosen the server once."""
    broken, machine = _replica(deployment), deployment.machines["n2"]
    deployment.victims["n2"] = None
    machine.disk.incidents = {f"{DATA}000001.sst": 1} if harmed else {}
    usual = replicas.contents

    def contents(replica: Any) -> Any:
        if replica is broken:
            raise KvDamagedError("rot")
        return usual(replica)

    monkeypatch.setattr(replicas, "contents", contents)
    monkeypatch.setattr(reread, "replica", lambda live: iter(contents(live)[2][:0]))
    for look in (replicas.compare_all, replicas.read_again):
        with nullcontext() if harmed else pytest.raises(KvDamagedError):
            look(deployment)


def test_what_stays_wrong_fails_the_run(deployment: Deployment) -> None:
    _keep_a_batch_open(deployment.machines["n2"].node)
    with pytest.raises(Violation, match="atomic"):
        _settled(deployment)


def test_a_removed_replica_that_is_not_in_the_store_is_found(deployment: Deployment) -> None:
    orphans = jetstream_of(deployment.machines["n2"]).local.orphans
    attrgetter("_deleted")(orphans)[99] = True
    with pytest.raises(Violation, match=r"removed replicas are \{99: "):
        _settled(deployment)


def test_a_watch_that_nobody_waits_for_is_found(deployment: Deployment) -> None:
    node: Any = deployment.machines["n2"].node
    router = next(iter(node.server.accounts))
    router.local.watch(b"watched.one", lambda: None)
    assert not [text for text in reckoning.wrong(deployment) if "which nobody watches" in text]
    attrgetter("local._watches._heads")(router)[b"watched"][b"watched.two"] = None
    assert [text for text in reckoning.wrong(deployment) if "which nobody watches" in text]
