"""Requests to the meta leader (cluster/meta_service.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetcluster.cluster import meta_service
from jetcluster.cluster.restore_watch import SILENT_SECONDS
from jetcluster.errors import ApiError
from jetcluster.meta.placement import PlacementRules
from jetcluster.model.stream import StreamConfig
from jetcluster.raft.api import NotLeaderError
from tests.unit.cluster.meta_leader import NO_LIMITS, Leader


async def test_a_create_is_placed_and_stamped() -> None:
    leader = Leader()
    result = await leader.create("S", num_replicas=3)
    assert result["assignment"]["created_ns"] == leader.time.time_ns()
    assert sorted(result["assignment"]["peers"]) == ["n1", "n2", "n3"]


async def test_more_replicas_are_placed_beside_those_there_are() -> None:
    leader = Leader(5)
    first = (await leader.create("S"))["assignment"]["peers"]
    grown = (await leader.update("S", num_replicas=3))["peers"]
    assert grown[:1] == first and len(set(grown)) == 3
    with pytest.raises(ApiError) as caught:
        leader.online = set(grown)
        await leader.update("S", num_replicas=5)
    assert caught.value.err_code == 10005


async def test_two_streams_that_become_each_others_source_at_the_same_time_are_no_cycle() -> None:
    """Each message of one would come back to it for ever. The servers of both clients do not know the other stream."""
    leader = Leader()
    leader.commit.clear()
    one = asyncio.create_task(leader.create("A", subjects=["a"], sources=[{"name": "B"}]))
    other = asyncio.create_task(leader.create("B", subjects=["b"], sources=[{"name": "A"}]))
    await asyncio.sleep(0)
    leader.commit.set()
    assert (await one)["created"]
    with pytest.raises(ApiError, match="detected cycle"):
        await other
    await leader.create("B", subjects=["b"])
    with pytest.raises(ApiError, match="detected cycle"):
        await leader.update("B", subjects=["b"], sources=[{"name": "A"}])
    await leader.update("A", subjects=["a"])
    assert (await leader.update("B", subjects=["b"], sources=[{"name": "A"}]))["config"]["sources"]


async def test_replicated_streams_of_a_node_are_limited() -> None:
    leader = Leader()
    leader.rules = PlacementRules(max_ha_assets=1)
    await leader.create("R1")
    await leader.create("A", num_replicas=3)
    await leader.create("Another")
    with pytest.raises(ApiError, match="maximum number of HA assets reached"):
        await leader.create("B", num_replicas=2)
    leader.rules = PlacementRules(max_ha_assets=2)  # as after a reload
    await leader.create("B", num_replicas=2)


async def test_what_streams_reserve_has_room_on_each_node() -> None:
    leader = Leader()
    leader.rules = PlacementRules(max_memory=10, max_storage=100)
    assert len(leader.machine.nodes) == 3
    for name in ("A1", "A2", "A3"):  # one on each node
        await leader.create(name, max_bytes=60)
    for fields in ({"max_bytes": 101}, {"max_bytes": 41}, {"max_bytes": 41, "num_replicas": 3},
                   {"storage": "memory", "max_bytes": 11}):  # fmt: skip
        with pytest.raises(ApiError) as refused:
            await leader.create("B", **fields)
        assert refused.value.err_code == 10005
        assert refused.value.description == "no suitable peers for placement, insufficient storage"
    await leader.create("B", max_bytes=40, num_replicas=3)
    await leader.create("C", max_bytes=10, storage="memory")
    await leader.create("D", num_replicas=3)
    with pytest.raises(ApiError):
        await leader.create("E", max_bytes=1)
    await leader.service.handle("stream_delete", {"request": "d", "account": "A", "name": "A2"})
    await leader.create("E", max_bytes=60)


async def test_what_creations_under_way_reserve_counts() -> None:
    leader = Leader()
    leader.rules = PlacementRules(max_storage=100)
    leader.commit.clear()
    first = asyncio.ensure_future(leader.create("A", max_bytes=60, num_replicas=3))
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as refused:
        await leader.create("B", max_bytes=60)
    assert refused.value.err_code == 10005
    leader.commit.set()
    await first
    await leader.create("B", max_bytes=40)


async def test_without_a_cluster_the_account_limit_is_the_answer() -> None:
    leader = Leader(1, clustered=False)
    leader.rules = PlacementRules(max_storage=100)
    await leader.create("A", max_bytes=101)


async def test_who_leads_stays_when_replicas_go_then_who_is_there() -> None:
    leader = Leader()
    await leader.create("S", num_replicas=3)
    leader.online, leader.led_by = {"n1", "n2"}, "n2"
    assert (await leader.update("S", num_replicas=2))["peers"] == ["n2", "n1"]
    leader.led_by = "n1"
    assert (await leader.update("S", num_replicas=1))["peers"] == ["n1"]


async def test_who_is_not_well_is_taken_last_and_goes_first() -> None:
    leader = Leader()
    for sick in ("n1", "n2", "n3"):
        leader.sick = {sick}
        assert (await leader.create(f"R1-{sick}"))["assignment"]["peers"] != [sick]
    await leader.create("S", num_replicas=3)
    leader.led_by, leader.sick = "n2", {"n1"}
    assert (await leader.update("S", num_replicas=2))["peers"] == ["n2", "n3"]


async def test_creates_under_way_count_as_load_and_are_forgotten_after() -> None:
    leader = Leader()
    leader.commit.clear()
    creates = [asyncio.ensure_future(leader.create(f"S{i}")) for i in range(6)]
    await asyncio.sleep(0)
    leader.commit.set()
    await asyncio.gather(*creates)
    assert [leader.machine.replicas_on(p) for p in ("n1", "n2", "n3")] == [2, 2, 2]
    assert [leader.machine.leaders_on(p) for p in ("n1", "n2", "n3")] == [2, 2, 2]
    assert +leader.service._underway == +leader.service._leading == {}


async def test_a_failed_proposal_is_forgotten_too() -> None:
    leader = Leader()

    async def fail(command: bytes) -> dict[str, Any]:
        raise NotLeaderError("n2")

    leader.service._propose = fail
    with pytest.raises(NotLeaderError):
        await leader.create("S")
    assert +leader.service._underway == +leader.service._leading == {}


async def test_a_retry_with_the_same_id_gives_the_first_stream() -> None:
    leader = Leader()
    first = await leader.create("S", request="same")
    again = await leader.create("S", request="same")
    assert again == first


async def test_an_equal_stream_answers_while_there_is_no_room() -> None:
    leader = Leader()
    await leader.create("S", num_replicas=3)
    leader.online = {"n1"}
    assert (await leader.create("S", num_replicas=3))["created"] is False
    with pytest.raises(ApiError) as caught:
        await leader.create("T", num_replicas=3)
    assert caught.value.description == "no suitable peers for placement, peer offline"


async def test_taken_subjects_are_refused_before_missing_places() -> None:
    leader = Leader()
    await leader.create("S", subjects=["a"])
    with pytest.raises(ApiError) as caught:
        await leader.create("T", subjects=["a"], num_replicas=5)
    assert caught.value.err_code == 10065


@pytest.mark.parametrize("kind", ["lookup", "names", "list", "usage"])
async def test_reads_are_linearizable(kind: str) -> None:
    leader = Leader()
    await leader.create("S")
    before = leader.barriers
    body = {"account": "A", "name": "S", "offset": 0, "limit": 10, "subject": ""}
    await leader.service.handle(kind, body)
    assert leader.barriers == before + 1
    leader.leading = False
    with pytest.raises(NotLeaderError):
        await leader.service.handle(kind, body)


async def test_pages_are_bounded() -> None:
    leader = Leader()
    for i in range(5):
        await leader.create(f"S{i}")
    body = {"account": "A", "offset": 1, "limit": 2, "subject": ""}
    assert await leader.service.handle("names", body) == {"total": 5, "offset": 1, "names": ["S1", "S2"]}


async def test_a_page_of_long_configurations_has_fewer_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is longer than a frame between nodes never arrives."""
    leader = Leader()
    for n in range(6):
        await leader.create(f"S{n}", description="x" * (9000 if n == 4 else 1000))
    monkeypatch.setattr(meta_service, "LIST_BYTES", 6000)
    pages, offset = [], 0
    while offset < 6:
        body = {"account": "A", "offset": offset, "limit": 256, "subject": ""}
        page = await leader.service.handle("list", body)
        pages.append([one["name"] for one in page["assignments"]])
        assert page.get("limit", len(pages[-1])) == len(pages[-1])
        offset += len(pages[-1])
    assert pages == [["S0", "S1", "S2"], ["S3"], ["S4"], ["S5"]]


async def test_a_filter_takes_streams_whose_subjects_overlap_and_none_without() -> None:
    """A client that looks for the stream of a subject must not be given a mirror of that name."""
    leader = Leader()
    await leader.create("U", subjects=["u.>"])
    await leader.create("M", mirror={"name": "U"})
    await leader.create("Q", sources=[{"name": "U"}])
    await leader.create("N")
    for subject, names in (("M", []), ("Q", []), ("N", ["N"]), ("*", ["N"]), (">", ["N", "U"]), ("u.x", ["U"])):
        body = {"account": "A", "offset": 0, "limit": 10, "subject": subject}
        assert (await leader.service.handle("names", body))["names"] == names
        assert len((await leader.service.handle("list", body))["assignments"]) == len(names)


async def test_unknown_requests() -> None:
    with pytest.raises(ApiError):
        await Leader().service.handle("nope", {})
    with pytest.raises(ApiError) as caught:
        await Leader().service.handle("lookup", {"account": "A", "name": "S"})
    assert caught.value.err_code == 10059


async def test_a_stream_is_not_scaled_up_into_a_tier_that_is_full() -> None:
    leader = Leader(5)
    await leader.create("ONE", num_replicas=1)
    await leader.create("THREE", num_replicas=3)

    def update(replicas: int, most: int) -> dict[str, Any]:
        config = StreamConfig(name="ONE", num_replicas=replicas).normalised().to_wire()
        tier = {**NO_LIMITS, "max_streams": most, "replicas": replicas}
        return {"request": f"u{replicas}{most}", "account": "A", "config": config, "limits": NO_LIMITS, "tier": tier}

    with pytest.raises(ApiError) as error:
        await leader.service.handle("stream_update", update(3, 1))
    assert error.value.err_code == 10027
    await leader.service.handle("stream_update", update(3, 2))
    await leader.service.handle("stream_update", update(1, 0))  # back, whatever that tier has by now


async def test_a_stream_without_max_bytes_needs_a_byte_for_each_replica() -> None:
    leader = Leader()
    config = StreamConfig(name="ONE", num_replicas=3).normalised().to_wire()
    body = {"request": "one", "account": "A", "config": config, "limits": {**NO_LIMITS, "max_storage": 2}}
    with pytest.raises(ApiError) as error:
        await leader.service.handle("stream_create", body)
    assert error.value.err_code == 10047
    body = {**body, "request": "again", "limits": {**NO_LIMITS, "max_storage": 3}}
    assert (await leader.service.handle("stream_create", body))["created"]
    body = {**body, "request": "repeated", "limits": {**NO_LIMITS, "max_storage": 0}}
    assert not (await leader.service.handle("stream_create", body))["created"], "it is there"


async def test_what_apply_would_have_to_compare_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader()
    await leader.create("A", subjects=["a.*.x", "*.b.y", "c.>"])
    monkeypatch.setattr("jetcluster.cluster.meta_service.MAX_LOOKUPS", 30)
    with pytest.raises(ApiError, match="wildcards are at so many places"):
        await leader.create("B", subjects=[f"b.{i}" for i in range(11)])
    await leader.create("B", subjects=[f"b.{i}" for i in range(10)])


async def restore(leader: Leader, name: str) -> dict[str, Any]:
    """Begins a restore of a stream, and returns what ends it."""
    body = {"request": f"restore of {name}", "account": "A", "limits": NO_LIMITS}
    config = StreamConfig(name=name, subjects=[name]).normalised().to_wire() | {"restoring": True}
    made = await leader.service.handle("stream_create", {**body, "config": config})
    return {"request": f"end of {name}", "account": "A", "name": name, "gid": made["assignment"]["gid"]}


async def test_a_restore_that_ends_at_the_last_moment_is_not_given_up_behind_its_end() -> None:
    leader = Leader()
    ends = await restore(leader, "S")
    assert await leader.service.give_up_restores(1, lambda: "r1") == []
    leader.time.advance(SILENT_SECONDS)
    leader.commit.clear()  # the end is in the log and not applied, so the stream still looks like a restore
    ended = asyncio.ensure_future(leader.service.handle("stream_restored", ends))
    await asyncio.sleep(0)
    given_up = asyncio.ensure_future(leader.service.give_up_restores(1, lambda: "r2"))
    await asyncio.sleep(0)
    leader.commit.set()
    await ended
    assert await given_up == []
    assert leader.machine.assignment("A", "S") is not None


async def test_a_restore_that_ends_while_another_one_is_given_up_stays() -> None:
    leader = Leader()
    await restore(leader, "S1")
    ends = await restore(leader, "S2")
    await leader.service.give_up_restores(1, lambda: "r1")
    leader.time.advance(SILENT_SECONDS)
    leader.commit.clear()
    given_up = asyncio.ensure_future(leader.service.give_up_restores(1, lambda: "r2"))
    await asyncio.sleep(0)
    ended = asyncio.ensure_future(leader.service.handle("stream_restored", ends))
    await asyncio.sleep(0)
    leader.commit.set()
    assert [gone.name for gone in await given_up] == ["S1"]
    await ended
    assert leader.machine.assignment("A", "S2") is not None


async def test_streams_that_are_created_at_once_get_different_leaders() -> None:
    leader = Leader()
    leader.commit.clear()
    creates = [asyncio.ensure_future(leader.create(f"S{number}", num_replicas=3)) for number in range(6)]
    await asyncio.sleep(0)
    leader.commit.set()
    hints = [result["assignment"]["leader_hint"] for result in await asyncio.gather(*creates)]
    assert sorted(hints) == ["n1", "n1", "n2", "n2", "n3", "n3"]
