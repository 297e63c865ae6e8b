"""Refused streams: the client gets nats-server's text, the log and the findings get the arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.cluster.refusals import AGAIN_SECONDS, KEPT_SECONDS, MAX_KEPT, Refusal, Refusals, reasons_of_placement
from jetcluster.errors import ApiError, by_code
from jetcluster.meta.placement import Candidate, PlacementRules
from jetcluster.model.stream import StreamConfig
from testkit.twins.log import ListLog
from testkit.twins.time import ManualTime
from tests.unit.cluster.meta_leader import NO_LIMITS, Leader

CONFIG = {"name": "S", "num_replicas": 3, "max_bytes": 3 << 30, "storage": "file"}
RULES = PlacementRules(max_ha_assets=7, max_storage=4 << 30)


def reasons(*candidates: Candidate, draining: tuple[str, ...] = (), **changed: Any) -> list[str]:
    names = {candidate.peer: candidate.peer.upper() for candidate in candidates}
    return reasons_of_placement({**CONFIG, **changed}, candidates, names, draining, RULES, "C")


def recent(leader: Leader) -> list[tuple[Refusal, float]]:
    assert leader.service.refusals is not None
    return leader.service.refusals.recent()


def test_each_server_and_why() -> None:
    found = reasons(
        Candidate("n1", room=4 << 30),
        Candidate("n2", room=1 << 30),
        Candidate("n3", online=False, full=True, room=4 << 30),
        Candidate("n4", jetstream=False, room=4 << 30),
        draining=("N5",),
    )
    assert found == [
        "1 of 5 servers fit, 3 replicas are asked for",
        "N1: fits",
        "N2: 3.0 GiB are asked for, and of what it may store 1.0 GiB are not reserved yet",
        "N3: it holds 7 replicated streams, which max_ha_assets allows, it is offline",
        "N4: it has no JetStream",
        "N5: it is being emptied",
    ]


def test_tags_another_cluster_and_servers_of_one_machine() -> None:
    found = reasons(Candidate("n1", tags=("az:1",)), placement={"tags": ["az:2", "!az:1"]}, num_replicas=1)
    assert found[1] == "N1: tags not matched ['az:2'], tags excluded ['az:1']"
    assert reasons(placement={"cluster": "other"}) == ["the placement names cluster other, and this one is C"]
    found = reasons(*(Candidate(f"n{at}") for at in range(3)))
    assert found[0] == "3 of 3 servers fit, 3 replicas are asked for; some of them are on one machine"


@pytest.mark.parametrize(
    ("fields", "limits", "code", "why"),
    [
        (
            {"max_bytes": 101},
            {},
            10005,
            "0 of 3 servers fit, 1 replica is asked for; n1: 101 B are asked for, and of what it may store 100 B are "
            "not reserved yet; n2: 101 B are asked for, and of what it may store 100 B are not reserved yet; n3: 101 B "
            "are asked for, and of what it may store 100 B are not reserved yet",
        ),
        (
            {"max_bytes": 60, "num_replicas": 3},
            {"max_storage": 170},
            10047,
            "max_bytes 60 B and 3 replicas ask for 180 B of file storage; the limit is 170 B, streams have reserved "
            "0 B, 170 B are left",
        ),
        (
            {"num_replicas": 3, "storage": "memory"},
            {"max_memory": 0},
            10028,
            "without max_bytes a stream needs room for a byte of memory storage for each replica; the limit is 0 B, "
            "streams have reserved 0 B, 0 B are left",
        ),
    ],
)
async def test_the_client_and_the_operator(fields: dict[str, Any], limits: Any, code: int, why: str) -> None:
    leader = Leader()
    leader.rules = PlacementRules(max_storage=100)
    plain = {10005: "no suitable peers for placement, insufficient storage"}.get(code) or by_code(code).description
    for _ in range(2):
        with pytest.raises(ApiError) as refused:
            config = StreamConfig(name="S", **fields).normalised().to_wire()
            body = {"request": "q1", "account": "A", "config": config, "limits": {**NO_LIMITS, **limits}}
            await leader.service.handle("stream_create", body)
        assert (refused.value.err_code, refused.value.description) == (code, plain), "as nats-server says it"
    ((refusal, seconds),) = recent(leader)
    assert (refusal.account, refusal.stream, "; ".join(refusal.why), seconds) == ("A", "S", why, 0.0)
    ((level, event, values),) = leader.log.lines
    assert (level, event, values["request"], values["why"]) == ("warning", "a stream is refused", "q1", why)


async def test_replicas_without_a_cluster_and_what_needs_no_explanation() -> None:
    leader = Leader(1, clustered=False)
    with pytest.raises(ApiError):
        await leader.create("S", num_replicas=3)
    assert recent(leader)[0][0].why == ("3 replicas are asked for, and this server is in no cluster",)
    await leader.create("T", subjects=["t"])
    with pytest.raises(ApiError):
        await leader.create("U", subjects=["t"])
    assert len(recent(leader)) == 1, "an overlap says all by itself"


async def test_a_peer_that_nobody_can_replace() -> None:
    leader = Leader()
    await leader.create("S", num_replicas=3)
    with pytest.raises(ApiError):
        await leader.service.handle("stream_update", {
            "request": "u", "account": "A", "limits": NO_LIMITS,
            "config": {**leader.machine.assignment("A", "S").config, "num_replicas": 5},  # type: ignore[union-attr]
        })  # fmt: skip
    ((refusal, _),) = recent(leader)
    assert refusal.why[0] == "3 of 3 servers fit, 5 replicas are asked for"


def test_they_are_kept_for_an_hour_and_bounded() -> None:
    clock, log = ManualTime(), ListLog()
    refusals = Refusals(clock, log)  # type: ignore[arg-type]
    error = by_code(10047)
    for number in range(MAX_KEPT + 5):
        refusals.note("A", f"S{number}", "q", error, ["full"])
    assert len(refusals.recent()) == MAX_KEPT
    before = len(log.lines)
    refusals.note("A", "S20", "q", error, ["full"])
    assert len(log.lines) == before, "said a moment ago"
    clock.advance(AGAIN_SECONDS)
    refusals.note("A", "S20", "q", error, ["full"])
    assert len(log.lines) == before + 1
    clock.advance(KEPT_SECONDS - 1)
    assert [one.stream for one, _ in refusals.recent()] == ["S20"]
    clock.advance(1)
    assert refusals.recent() == []
