"""Requests that a stream's leader answers (cluster/stream_requests.py)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.raft.api import NotLeaderError
from jetcluster.store import slices
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvDamagedError
from jetcluster.stream.read import msg_get as stored_search
from jetcluster.stream.read.get_request import SetBackError
from testkit.sim.nodes import ACCOUNT, Cluster, Node
from testkit.sim.shared import virtual_time


async def ask(node: Node, kind: str, stream: str = "S", **body: Any) -> dict[str, Any]:
    assignment = node.js.assignment(ACCOUNT, stream)
    assert assignment is not None
    return await node.js.stream_request(assignment, kind, {"revision": assignment.revision, **body})


async def msg_get(node: Node, seq: int) -> dict[str, Any]:
    answer = await ask(node, "msg_get", payload=json.dumps({"seq": seq}), headers="")
    found: dict[str, Any] = json.loads(answer["response"])
    return found


@virtual_time
async def test_every_node_gets_the_leaders_answers() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", subjects=["s.>"])
        for number in range(1, 11):
            await cluster["A"].publish(b"s.%d" % (number % 2), b"%d" % number)
        await cluster.equal("S")
        leader = cluster.leader("S").name
        for node in cluster:
            info = await ask(node, "info", subjects_filter=">")
            assert info["state"]["messages"] == 10 and info["state"]["subjects"] == {"s.0": 5, "s.1": 5}
            assert info["cluster"]["leader"] == leader and len(info["cluster"]["replicas"]) == 2
            assert all(replica["current"] for replica in info["cluster"]["replicas"])
            message = (await msg_get(node, 3))["message"]
            assert base64.b64decode(message["data"]) == b"3"
        assert await ask(cluster["B"], "purge", filter="s.0") == {"purged": 5}
        assert await ask(cluster["C"], "msg_delete", seq=1) == {"deleted": 1}
        with pytest.raises(ApiError) as refused:
            await ask(cluster["C"], "msg_delete", seq=1)
        assert refused.value.code == 400 or refused.value.err_code in (10043, 10057)
        await cluster.equal("S")
        assert cluster["A"].replica("S").store.messages == 4
        with pytest.raises(ApiError):
            await ask(cluster["A"], "nonsense")


@virtual_time
@pytest.mark.parametrize("replicas", [1, 3])
async def test_info_shows_what_was_published_before_it_was_asked_for(replicas: int) -> None:
    """nats.js: publishes without waiting for the PubAcks, flushes, and counts what its consumer has to come."""
    async with Cluster() as cluster:
        await cluster.create("S", replicas, subjects=["s.>"])
        leader = cluster.leader("S")
        for number in range(1, 6):
            leader.bus.publish(b"s.x", b"")
            leader.bus.publish(b"s.x", b"")
            assert (await ask(leader, "info"))["state"]["messages"] == 2 * number


@virtual_time
async def test_info_does_not_wait_when_the_last_entry_is_none_of_the_machines() -> None:
    """After a restart that is the entry with which the leader's term begins, until something is published."""
    async with Cluster("A", clustered=False) as cluster:
        await cluster.create("S", 1)
        await cluster["A"].publish(b"s")
        cluster.crash("A")
        node = cluster.restart("A")
        await cluster.led("S")
        replica = node.replica("S")
        await cluster.until(lambda: replica.leading, what="the leader")
        assert replica.group.last_index > replica.machine.applied_index
        asked = asyncio.get_running_loop().time()
        assert (await ask(node, "info"))["state"]["messages"] == 1
        assert asyncio.get_running_loop().time() - asked < 0.05


@virtual_time
async def test_info_shows_a_node_that_is_away() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        gone = cluster.followers("S")[0]
        cluster.crash(gone.name)
        await cluster["A" if gone.name != "A" else "B"].publish(b"s")
        info = await ask(cluster.leader("S"), "info")
        states = {replica["name"]: replica for replica in info["cluster"]["replicas"]}
        assert states[gone.name]["offline"] and not states[gone.name]["current"] and states[gone.name]["lag"] > 0


@virtual_time
async def test_every_node_gets_the_leaders_search_for_ids() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", subjects=["s.>"])
        for number in range(1, 11):
            await cluster["A"].publish(b"s.%d" % (number % 2), b"", b"NATS/1.0\r\nNats-Msg-Id: id:%d\r\n\r\n" % number)
        for node in cluster:
            for subject, expected in ((">", ["id:1", "id:10"]), ("s.1", ["id:1"]), ("s.*", ["id:1", "id:10"])):
                wish = {"seq": 1, "next_by_subj": subject, "msg_id_prefixes": ["id:1"]}
                answer = await ask(node, "msg_get", payload=json.dumps(wish), headers="")
                assert json.loads(answer["response"])["msg_ids"] == {"searched": 10, "found": expected}


@virtual_time
async def test_a_search_for_ids_is_not_answered_by_a_replica_that_leads_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its store may be set back meanwhile, and what it lacks then is no proof of anything."""
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s", b"", b"NATS/1.0\r\nNats-Msg-Id: id:1\r\n\r\n")
        await cluster.equal("S")
        old = cluster.leader("S")
        budget = old.replica("S").runtime.budget
        run, searches = budget.run, list[bool]()

        async def slow(key: Hashable, steps: Any) -> Any:
            await run(key, steps)
            searches.append(True)
            await ask(old, "stepdown")
            await cluster.until(lambda: not old.replica("S").leading, what="another leader")
            return b'{"msg_ids":{"searched":9,"found":[]}}'

        monkeypatch.setattr(budget, "run", slow)
        wish = {"seq": 1, "next_by_subj": "s", "msg_id_prefixes": ["id:"]}
        answer = await ask(old, "msg_get", payload=json.dumps(wish), headers="")
        assert json.loads(answer["response"])["msg_ids"] == {"searched": 1, "found": ["id:1"]}
        assert searches == [True]


@virtual_time
async def test_a_search_for_ids_goes_elsewhere_when_the_stream_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s", b"", b"NATS/1.0\r\nNats-Msg-Id: id:1\r\n\r\n")
        search, refused = stored_search.search, list[bool]()

        def once(*of: Any) -> Any:
            if not refused:
                refused.append(True)
                raise SetBackError("the stream ended at 5, and now at 1")
            return (yield from search(*of))

        monkeypatch.setattr(stored_search, "search", once)
        wish = {"seq": 1, "next_by_subj": "s", "msg_id_prefixes": ["id:"]}
        answer = await ask(cluster["A"], "msg_get", payload=json.dumps(wish), headers="")
        assert json.loads(answer["response"])["msg_ids"]["found"] == ["id:1"] and refused


@virtual_time
async def test_msg_get_is_not_answered_by_a_leader_that_lost_its_majority() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s", b"1")
        old = cluster.leader("S")
        cluster.isolate(old.name)
        assert not any(node.replica("S").leading for node in cluster if node is not old)
        asked = asyncio.get_running_loop().create_task(msg_get(old, 1))
        await cluster.until(
            lambda: any(node is not old and node.replica("S").leading for node in cluster), what="a new leader"
        )
        with pytest.raises(ApiError) as refused:
            await asked
        assert refused.value.err_code == 10008
        cluster.heal()
        await asyncio.sleep(1)
        assert base64.b64decode((await msg_get(old, 1))["message"]["data"]) == b"1"


@virtual_time
async def test_a_request_survives_a_change_of_leaders() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        for _ in range(5):
            await cluster["A"].publish(b"s")
        await cluster.equal("S")
        leader = cluster.leader("S")
        asker = cluster.followers("S")[0]
        asked = asyncio.get_running_loop().create_task(ask(asker, "purge"))
        cluster.crash(leader.name)
        assert (await asked)["purged"] == 5


@virtual_time
async def test_an_update_made_elsewhere_comes_with_the_answer() -> None:
    async with Cluster() as cluster:
        old = await cluster.create("S")
        await cluster.update("S", max_msgs=9)
        answer = await cluster["A"].js.stream_request(old, "info", {"revision": old.revision})
        assert answer["assignment"]["config"]["max_msgs"] == 9
        assert "assignment" not in await ask(cluster["A"], "info")


@virtual_time
async def test_a_leader_that_lags_behind_the_meta_group_shows_no_old_configuration() -> None:
    """One that was elected right after an update knows from the stream's log that there is a newer one."""
    async with Cluster() as cluster:
        old = await cluster.create("S")
        new = await cluster.update("S", max_msgs=9)
        leader = await cluster.led("S")
        replica = leader.replica("S")
        await cluster.until(lambda: replica.machine.config_revision == new.revision, what="the update is in force")
        replica.assignment = old
        asked = asyncio.get_running_loop().create_task(
            leader.js.stream_request(old, "info", {"revision": old.revision})
        )
        await asyncio.sleep(0.2)
        assert not asked.done()
        replica.assignment = new
        assert (await asked)["assignment"]["config"]["max_msgs"] == 9


@virtual_time
async def test_a_configuration_that_never_comes_is_waited_for_once() -> None:
    """A rescue of the meta group may have lost the update."""
    async with Cluster() as cluster:
        old = await cluster.create("S")
        new = await cluster.update("S", max_msgs=9)
        leader = await cluster.led("S")
        replica, clock = leader.replica("S"), asyncio.get_running_loop().time
        await cluster.until(lambda: replica.machine.config_revision == new.revision, what="the update is in force")
        replica.assignment = old
        took = []
        for _ in range(3):
            began = clock()
            await leader.js.stream_request(old, "info", {"revision": old.revision})
            took.append(clock() - began)
        assert took[0] >= 0.5 and max(took[1:]) < 0.1


@virtual_time
async def test_stepdown_moves_the_leadership_to_whom_was_asked_for() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        target = cluster.followers("S")[1]
        assert await ask(cluster["A"], "stepdown", placement={"preferred": target.name}) == {}
        await cluster.until(lambda: target.replica("S").leading, what="it leads", seconds=1)
        await cluster.create("R", 1, subjects=["r"])
        assert await ask(cluster["A"], "stepdown", "R", placement={}) == {}  # nobody else is there
        cluster.isolate(target.name)
        await cluster.led("S")
        rest = [node for node in cluster if node is not target and not node.replica("S").leading]
        with pytest.raises(ApiError) as refused:
            await ask(rest[0], "stepdown", placement={"preferred": target.name})
        assert refused.value.err_code == 10005


@virtual_time
async def test_damage_is_not_a_not_found() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s")
        leader = cluster.leader("S")

        def damaged(seq: int) -> None:
            raise DamagedError(1, 1)

        leader.replica("S").store.get = damaged  # type: ignore[assignment]
        with pytest.raises(ApiError) as refused:
            await msg_get(leader, 1)
        assert refused.value.err_code == 10008 and leader.replica("S").damaged
        await cluster.until(lambda: not leader.replica("S").leading, what="another one leads")
        await cluster.led("S")
        assert "message" in await msg_get(leader, 1)


@virtual_time
async def test_a_leader_whose_store_fails_right_behind_the_proof_does_not_say_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 30152 of the simulation of complete nodes."""
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s", b"1")
        leader = cluster.leader("S")
        replica = leader.replica("S")
        error = KvDamagedError("Corruption")

        def unreadable(start: bytes, end: bytes) -> None:
            raise error

        def proven_and_then_stopped(callback: Callable[[bool], None]) -> None:
            callback(True)
            with monkeypatch.context() as patch, pytest.raises(KvDamagedError):
                patch.setattr(leader.kv, "chunks", unreadable)
                replica.store.abandon()  # as `Applier` does for a command that met the damage
            replica.group.fail(error)

        monkeypatch.setattr(replica.group, "reads_now", lambda: False)
        monkeypatch.setattr(replica.group, "read_index", proven_and_then_stopped)
        found = await msg_get(leader, 1)
        assert base64.b64decode(found["message"]["data"]) == b"1"
        assert replica.failed and not replica.leading


@virtual_time
async def test_a_stream_that_is_gone_has_no_leader() -> None:
    async with Cluster() as cluster:
        old = await cluster.create("S")
        await cluster.delete("S")
        with pytest.raises(ApiError) as refused:
            await cluster["A"].js.stream_request(old, "info", {"revision": 0})
        assert refused.value.err_code == 10008


@virtual_time
async def test_a_repeated_delete_that_finds_its_work_done_is_a_success() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", subjects=["s.>"])
        await cluster["A"].publish(b"s.1", b"1")
        assert await ask(cluster["B"], "msg_delete", seq=1) == {"deleted": 1}
        assert await ask(cluster["B"], "msg_delete", seq=1, repeated=True) == {"deleted": 0}
        with pytest.raises(ApiError):
            await ask(cluster["B"], "msg_delete", seq=1)


@virtual_time
@pytest.mark.parametrize(
    ("config", "seq", "code"),
    [({}, 7, 10057), ({"storage": "memory"}, 7, 10043), ({"deny_delete": True}, 1, 10057)],
    ids=["behind the end", "behind the end, in memory", "not permitted"],
)
async def test_a_repeated_delete_of_what_it_cannot_have_deleted_is_refused(
    config: dict[str, object], seq: int, code: int
) -> None:
    async with Cluster() as cluster:
        await cluster.create("S", subjects=["s.>"], **config)
        await cluster["A"].publish(b"s.1", b"1")
        with pytest.raises(ApiError) as refused:
            await ask(cluster["B"], "msg_delete", seq=seq, repeated=True)
        assert refused.value.err_code == code


@virtual_time
async def test_counting_subjects_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a leader that is none any more when it has counted does not answer."""
    monkeypatch.setattr(slices, "STEP", slices.Step(subjects=2))
    async with Cluster() as cluster:
        await cluster.create("S", subjects=["s.>"])
        for number in range(20):
            await cluster["A"].publish(b"s.%d" % number)
        leader = cluster.leader("S")
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        requests = leader.js.parts.streams
        counting = asyncio.get_running_loop().create_task(count_turns())
        found = await requests._info(leader.replica("S"), {"subjects_filter": "s.*"})
        counting.cancel()
        assert len(found["state"]["subjects"]) == 20 and found["page"][0] == 20
        assert turns >= 10
        asked = asyncio.get_running_loop().create_task(requests._info(leader.replica("S"), {"subjects_filter": "s.*"}))
        await asyncio.sleep(0)
        monkeypatch.setattr(type(leader.replica("S")), "leading", False)
        with pytest.raises(NotLeaderError):
            await asked
