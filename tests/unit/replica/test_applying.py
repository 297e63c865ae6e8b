"""Commands that cannot be carried out, and what fails around one: the stream goes on (replica/applying.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.meta.state import Assignment
from jetcluster.objects.bucket import Bucket
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvDamagedError, KvError
from jetcluster.stream.apply.publish import MessageAdmission
from jetcluster.stream.lead.ingest import Ingest
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time
from tests.unit.cluster.consumers import Puller, consumer, host, owner, state


def poison(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A message `bad` is stored, and then apply fails, on every replica."""
    admit = MessageAdmission.admit

    def fail(self: MessageAdmission, batch: Any, base: int, gate: Any = None) -> Any:
        result = admit(self, batch, base, gate)
        if any(payload == b"bad" for _, _, payload in batch.messages()):
            raise error
        return result

    monkeypatch.setattr(MessageAdmission, "admit", fail)


@pytest.mark.parametrize("replicas", [1, 3])
@virtual_time
async def test_all_replicas_refuse_what_none_can_carry_out(monkeypatch: pytest.MonkeyPatch, replicas: int) -> None:
    poison(monkeypatch, AssertionError("a hole"))
    async with Cluster() as cluster:
        await cluster.create("S", replicas, republish={"src": ">", "dest": "r.>"})
        leader = cluster.leader("S")
        seen: list[bytes] = []
        leader.bus.subscribe(b"r.>", lambda subject, reply, headers, payload, origin: seen.append(payload))
        assert (await cluster["A"].publish(b"s", b"1"))["seq"] == 1
        refused = await cluster["B"].publish(b"s", b"bad")
        assert refused["error"]["err_code"] == 10051
        assert (await cluster["C"].publish(b"s", b"2"))["seq"] == 2
        await cluster.equal("S")
        for node in cluster:
            if node.has("S"):
                replica = node.replica("S")
                assert [m.payload for m in replica.store.queries.scan(b">", 1)] == [b"1", b"2"]
                assert (replica.applying.refusals, replica.failed, replica.sound) == (1, "", True)
                (line,) = (v for _, e, v in node.log.lines if e == "a command is refused by all replicas")
                assert line["stream"] == "S" and "a hole" in line["error"] and "fail" in line["error"]
        assert seen == [b"1", b"2"]  # what was taken back is not logged twice
        behind = cluster.followers("S")[0].name if replicas > 1 else leader.name
        cluster.crash(behind)
        cluster.restart(behind)
        await cluster["ABC".replace(behind, "")[0]].publish_again(b"s", b"3")
        await cluster.equal("S")
        assert [m.payload for m in cluster[behind].replica("S").store.queries.scan(b">", 1)] == [b"1", b"2", b"3"]


@virtual_time
async def test_consumers_go_on_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, AssertionError("a hole"))
    async with Cluster() as cluster:
        await cluster.create("S")
        await consumer(cluster["A"], "c")
        puller = Puller(cluster["B"], "S", "c")
        for number in range(3):
            await cluster["A"].publish(b"s", b"%d" % number)
            await cluster["C"].publish(b"s", b"bad")
            await cluster.until(lambda: any(host(node).hosted for node in cluster), what="its owner begins anew")
            await asyncio.sleep(0.01)  # its interest is on the way to the others
            (message,) = await puller.fetch(1)
            assert message[2] == b"%d" % number
            await puller.ack(message)
        await cluster.until(lambda: all(not state(node).pending for node in cluster), what="the acks")
        assert host(owner(cluster)).hosted == 1
        await cluster.equal("S")


@virtual_time
async def test_what_follows_from_a_command_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one node, for a reason of its own: the command counts, and the replica lives."""
    async with Cluster() as cluster:
        await cluster.create("S")
        on_applied = Ingest.on_applied

        def fail(self: Ingest, index: int, result: Any) -> None:
            if self is ingest:
                raise KeyError("a hole")
            on_applied(self, index, result)

        leader = cluster.leader("S")
        ingest = leader.replica("S").ingest
        monkeypatch.setattr(Ingest, "on_applied", fail)
        with pytest.raises(TimeoutError):
            await cluster["A"].publish(b"s", b"1")
        monkeypatch.undo()
        await cluster["A"].publish(b"s", b"2")
        await cluster.equal("S")
        replica = leader.replica("S")
        assert (replica.store.messages, replica.failed, replica.failures.count) == (2, "", 1)
        assert "what follows from a command failed" in leader.log.events("error")


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KvDamagedError("Corruption"), KvError("IO error")])
@virtual_time
async def test_a_disk_that_fails_stops_its_replica_and_no_other(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A damaged record is another matter: that replica is rebuilt (test_repair.py)."""
    async with Cluster() as cluster:
        await cluster.create("S")
        follower = cluster.followers("S")[0]
        machine = follower.replica("S").machine

        def fail(*_: Any) -> None:
            raise error

        monkeypatch.setattr(machine.store, "append", fail)
        await cluster["A"].publish(b"s", b"1")
        await cluster.until(lambda: bool(follower.replica("S").failed), what="the replica stops")
        assert follower.replica("S").applying.refusals == 0
        for node in cluster:
            assert node is follower or not node.replica("S").failed
        assert (await cluster["A"].publish_again(b"s", b"2"))["seq"] == 2


@virtual_time
async def test_a_leader_that_comes_upon_damage_forgets_what_it_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log counts the command as applied, so that it is not among those that a change of leaders drops."""
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s", b"1")
        replica = cluster.leader("S").replica("S")

        def damaged(*_: Any) -> None:
            monkeypatch.undo()
            raise DamagedError(1, 1)

        monkeypatch.setattr(replica.machine.store, "append", damaged)
        with pytest.raises(TimeoutError):
            await cluster["A"].publish(b"s", b"2")
        await cluster.until(lambda: not replica.group.lacks_state, what="the replica has another one's state")
        assert (replica.ingest.proposed, replica.failed) == ({}, "")
        await cluster["A"].publish_again(b"s", b"3")
        await cluster.equal("S")


@virtual_time
async def test_nothing_is_read_of_a_state_that_a_failing_command_took_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also not by what comes in the same turn, before the node looks after the replica that stopped."""
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s", b"1")
        await cluster.all_read("S")
        follower = cluster.followers("S")[0]
        replica = follower.replica("S")

        def fail(*_: Any) -> None:
            raise KvDamagedError("Corruption")

        def fail_and_read(index: int, term: int, command: bytes) -> None:
            monkeypatch.setattr(replica.store, "append", fail)
            monkeypatch.setattr(follower.kv, "chunks", fail)
            try:
                applies(index, term, command)
            finally:
                monkeypatch.undo()
                joined.append(replica.reads.own.joined)

        joined: list[bool] = []
        applies, group = replica.apply, replica.group
        assert group.machine is replica  # type: ignore[attr-defined]
        monkeypatch.setattr(replica, "apply", fail_and_read)
        await cluster["B"].publish(b"s", b"2")
        await cluster.until(lambda: bool(replica.failed), what="the replica stops")
        assert joined == [False]


@virtual_time
async def test_a_state_that_cannot_be_written_stops_its_replica_and_keeps_no_other_from_the_disk() -> None:
    async with Cluster("A", clustered=False) as cluster:
        node = cluster["A"]
        for name in ("S", "T"):
            await cluster.create(name, 1, subjects=[name.lower()])
            await node.publish(name.lower().encode(), b"1")
        await asyncio.sleep(1)
        replica = node.replica("S")
        replica.machine.clock = 1 << 70  # a defect that no check saw
        replica.store.touch()
        await node.publish(b"t", b"2")
        await cluster.until(lambda: bool(replica.failed), what="the replica stops")
        assert "cannot be written" in replica.failed
        assert (await node.publish(b"t", b"3"))["seq"] == 3
        assert not node.services.commits.failing
        cluster.crash("A")
        node = cluster.restart("A")
        await cluster.until(lambda: node.has("S") and node.replica("S").leading, what="it is there again")
        assert (await node.publish_again(b"s", b"2"))["seq"] == 2
        assert (await node.publish_again(b"t", b"4"))["seq"] == 4


@virtual_time
async def test_an_object_service_that_fails_stops_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Bucket, rules: Any) -> None:
        raise KeyError("a hole")

    monkeypatch.setattr(Bucket, "begin", fail)
    async with Cluster("A", clustered=False) as cluster:
        await cluster.create("OBJ_b", 1, subjects=["$O.b.>"])
        assert (await cluster["A"].publish(b"$O.b.M.x", b"1"))["seq"] == 1
        replica = cluster["A"].replica("OBJ_b")
        assert replica.leading and (replica.failed, replica.failures.count) == ("", 1)
        assert "the object service failed" in cluster["A"].log.events("error")


@virtual_time
async def test_an_assignment_that_fails_stops_neither_the_meta_group_nor_other_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster.create("T", subjects=["t"])
        update = StreamReplica.update

        def fail(self: StreamReplica, assignment: Assignment) -> None:
            if assignment.name == "S":
                raise KeyError("a hole")
            update(self, assignment)

        monkeypatch.setattr(StreamReplica, "update", fail)
        with pytest.raises(ApiError):
            await cluster.update("S", max_msgs=5)  # nobody puts it into the stream's log
        await cluster.update("T", subjects=["t"], max_msgs=7)
        await cluster.equal("T")
        for node in cluster:
            assert node.js.meta.group is not None and not node.js.meta.group.stopped
            assert node.replica("T").machine.rules.max_msgs == 7
            assert "an assignment failed" in node.log.events("error")


@virtual_time
async def test_consumers_hear_once_per_turn_of_what_was_stored_and_after_the_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Cluster("A", clustered=False) as cluster:
        await cluster.create("S", 1)
        node = cluster["A"]
        await consumer(node, "c")
        await cluster.until(lambda: host(node).hosted == 1, what="an owner")
        told: list[object] = []
        node.bus.subscribe(b"acks", lambda subject, reply, headers, payload, origin: told.append(payload))
        monkeypatch.setattr(host(node), "appended", lambda first, last: told.append((first, last)))
        for _ in range(3):
            node.bus.publish(b"s", b"x", b"acks")
            node.replica("S").ingest.flush()  # a command each
        await asyncio.sleep(0.1)
        acks = [b'{"stream":"S","seq":%d}' % seq for seq in (1, 2, 3)]
        assert told == [*acks, (1, 3)]


@virtual_time
async def test_what_says_something_about_this_machine_stops_the_replica_also_at_the_end_of_a_turn() -> None:
    async with Cluster("A", clustered=False) as cluster:
        await cluster.create("S", 1)
        replica = cluster["A"].replica("S")

        def fail() -> None:
            raise KvError("corruption")

        replica.reads.own.waits.hold(0, fail, lambda: None)
        assert (await cluster["A"].publish(b"s", b"x"))["seq"] == 1
        await cluster.until(lambda: bool(replica.failed), what="it stops")
        assert "corruption" in replica.failed
