"""An invariant that does not hold is noticed, also where it fails no client."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from types import SimpleNamespace

import pytest

from jetcluster.raft.api import Role
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.session import Session
from tests.sim.cluster.invariants import KEPT, OVERDUE, Invariants, replicas

pytestmark = pytest.mark.sim


def test_a_server_is_emptied_until_somebody_puts_it_back(deployment: Deployment) -> None:
    nodes = attrgetter("node.jetstream.jetstream.meta.machine._nodes")(deployment.machines["n1"])
    peer, node = next(iter(nodes.items()))
    invariants = Invariants(deployment)
    nodes[peer] = replace(node, draining=True)
    invariants.look()
    nodes[peer] = node
    deployment.put_back.add(peer)
    invariants.look()
    nodes[peer] = replace(node, draining=True)
    invariants.look()
    nodes[peer] = node
    deployment.put_back.clear()
    with pytest.raises(Violation, match="is not emptied any more"):
        invariants.look()


def test_a_whole_frame_and_a_call_that_wait_are_noticed(deployment: Deployment) -> None:
    machine = deployment.machines["n1"]
    mesh = attrgetter("node.jetstream.jetstream.network.mesh")(machine)
    reader = attrgetter("_reader")(next(iter(mesh.links.values())))
    reader.feed(b"\0\0")
    Invariants(deployment).look()
    setattr(reader, "_need", 2)  # noqa: B010
    with pytest.raises(Violation, match=r"a whole frame of .* waits for more"):
        Invariants(deployment).look()
    attrgetter("_chunks")(reader).clear()
    attrgetter("_rpc._waiting")(mesh)[7] = ("nobody", SimpleNamespace(done=lambda: False))
    with pytest.raises(Violation, match="a call waits for nobody"):
        Invariants(deployment).look()


async def _stream(deployment: Deployment) -> None:
    session = Session("admin", deployment.addresses())
    await session.connect()
    await session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
    await session.close()


def test_nobody_waits_for_commands_of_who_leads_no_more(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.run_until_done(deployment.spawn(deployment.client("me"), _stream(deployment)), 30.0)
    deployment.run(2.0)
    invariants = Invariants(deployment)
    streams = [one for one in replicas(deployment) if one.stream is not None]
    waits = {77: SimpleNamespace(done=lambda: False)}
    for one in streams:
        if one.group.role is Role.LEADER:
            attrgetter("proposals._waiting")(one.stream).update(waits)
    invariants.look()
    follower = next(one for one in streams if one.group.role is not Role.LEADER)
    attrgetter("proposals._waiting")(follower.stream).update(waits)
    with pytest.raises(Violation, match=r"requests wait for its commands \[77\]"):
        invariants.look()
    with monkeypatch.context() as patch:
        patch.setattr(type(follower.stream.machine), "has_job", lambda machine, index: index == 77)
        invariants.look()  # the next leader goes on with it
    attrgetter("proposals._waiting")(follower.stream).clear()
    follower.stream.ingest.proposed[78] = ([], 0, 0, 0.0)
    deployment.victims[follower.machine.name] = None  # it was chosen, and nothing of it was damaged
    with pytest.raises(Violation, match=r"publishes wait for its commands \[78\]"):
        invariants.look()


def test_what_was_sent_and_nobody_waits_for_is_noticed(deployment: Deployment) -> None:
    invariants = Invariants(deployment)
    invariants.look()
    leader = next(one for one in replicas(deployment) if one.group.role is Role.LEADER)
    flow = next(iter(leader.group.flows.values()))
    flow.next += 1
    with pytest.raises(Violation, match=r"\d+ was sent to \w+, which has \d+, and no answer is awaited"):
        invariants.look()
    flow.out.append((flow.next - 1, 0))
    invariants.look()


def test_a_batch_whose_time_is_over_is_noticed(deployment: Deployment) -> None:
    deployment.run_until_done(deployment.spawn(deployment.client("me"), _stream(deployment)), 30.0)
    deployment.run(2.0)
    invariants = Invariants(deployment)
    leader = next(one for one in replicas(deployment) if one.stream is not None and one.stream.leading)
    now = attrgetter("node.jetstream.jetstream.runtime.clock")(leader.machine).monotonic()
    opened = attrgetter("ingest.batches.stage._open")(leader.stream)
    opened[b"one"] = SimpleNamespace(deadline=now - OVERDUE + 1.0)
    invariants.look()
    invariants.look()
    opened[b"one"].deadline -= 2.0
    invariants.look()  # it may have stood still until now
    with pytest.raises(Violation, match="are open, and their time is over"):
        invariants.look()
    opened.clear()


def test_who_has_left_and_may_found_a_stream_is_noticed(deployment: Deployment) -> None:
    deployment.run_until_done(deployment.spawn(deployment.client("me"), _stream(deployment)), 30.0)
    deployment.run(2.0)
    invariants = Invariants(deployment)
    invariants.look()
    streams = attrgetter("node.jetstream.jetstream.meta.machine._by_gid")(deployment.machines["n1"])
    gid, assignment = next(iter(streams.items()))
    streams[gid] = replace(assignment, founders=(*assignment.founders, "nobody"))
    with pytest.raises(Violation, match=r"\{'nobody'\} may found the stream S of .* again"):
        invariants.look()


async def _consumer(deployment: Deployment) -> None:
    await _stream(deployment)
    session = Session("owner", deployment.addresses())
    await session.connect()
    body = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    await session.api("CONSUMER.DURABLE.CREATE.S.c", body)
    for text in (b"1", b"2"):
        await session.request("s", text)
    await session.close()


def test_what_is_gone_and_waits_for_an_ack_is_noticed(deployment: Deployment) -> None:
    deployment.run_until_done(deployment.spawn(deployment.client("me"), _consumer(deployment)), 30.0)
    deployment.run(2.0)
    invariants = Invariants(deployment)
    invariants.look()
    stream = next(one.stream for one in replicas(deployment) if one.stream is not None)
    stream.table.by_name["c"].unacked.entries |= {1: None, 1_000: None}
    invariants.look()  # an owner that was behind may have delivered what was removed before
    stream.store.delete(1)
    invariants.look()  # nor is one look enough: it may have been delivered once more
    with pytest.raises(Violation, match=r"\[1\] wait for an ack of c, and are not there"):
        invariants.look()


def test_more_than_may_wait_for_an_ack_is_noticed_and_what_was_out_before_an_update_is_not(
    deployment: Deployment,
) -> None:
    deployment.run_until_done(deployment.spawn(deployment.client("me"), _consumer(deployment)), 30.0)
    deployment.run(2.0)
    invariants = Invariants(deployment)
    consumer = next(one.stream for one in replicas(deployment) if one.stream is not None).table.by_name["c"]
    for most, waiting in ((2, 2), (1, 2), (1, 2), (1, 1)):
        consumer.rules.max_ack_pending = most
        consumer.unacked.entries = dict.fromkeys(range(1, waiting + 1))
        invariants.look()
    consumer.unacked.entries[2] = None
    with pytest.raises(Violation, match="c: 2 messages not acknowledged, 1 at most"):
        invariants.look()


def test_a_segment_that_is_kept_for_nobody_is_noticed(deployment: Deployment) -> None:
    def journal() -> SimpleNamespace:
        return SimpleNamespace(retention=SimpleNamespace(oldest=1), newest_segment=3, failed=None)

    def look(first: int, complete: int = 3, seconds: float = KEPT, at: SimpleNamespace | None = None) -> None:
        at = at or usual
        at.groups = {7: SimpleNamespace(first_segment=lambda: first)}
        at.restatement = SimpleNamespace(complete=complete)
        attrgetter("_segments_go")(invariants)(deployment.machines["n1"], at)
        deployment.run(seconds)

    invariants, usual = Invariants(deployment), journal()
    look(2)
    look(1)
    look(2, 1)
    look(2, seconds=KEPT - 1.0)
    look(2, at=journal())  # the server has started again
    look(2, seconds=KEPT - 1.0)
    look(2)
    with pytest.raises(Violation, match=r"segment 1 is kept for \d\.\d s, of which nobody has anything"):
        look(2)


def test_a_replica_that_looks_for_no_leader_is_noticed(deployment: Deployment) -> None:
    invariants = Invariants(deployment)
    group = next(one.group for one in replicas(deployment) if one.group.role is Role.FOLLOWER)
    group.engine.forget_leader()
    group.sync()
    assert group.leader is None and group.election.at is not None
    for _ in range(3):
        invariants.look()
    group.election.stop()
    invariants.look()  # its turn may come yet
    with pytest.raises(Violation, match="looks for no leader"):
        invariants.look()
