from __future__ import annotations

import asyncio
import json
from typing import Any

from jetcluster.budget import LoopBudget
from jetcluster.replica.leadership import LOST_SECONDS, REPEAT_SECONDS, SUBJECTS_AT_ONCE, Listening
from testkit.sim.nodes import ACCOUNT, Cluster, Node
from testkit.sim.shared import virtual_time
from testkit.twins.time import ManualTime


def listen(node: Node, kind: str) -> list[dict[str, Any]]:
    """Advisories to the stream's account and to the system account, as they come."""
    found: list[dict[str, Any]] = []
    subject = f"$JS.EVENT.ADVISORY.STREAM.{kind}.>".encode()
    for account in (ACCOUNT, "$SYS"):
        node.accounts[account].subscribe(
            subject, lambda s, r, h, payload, o, at=account: found.append({"to": at, **json.loads(payload)})
        )
    return found


@virtual_time
async def test_a_lost_quorum_is_published_by_those_that_are_left_again_and_again() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        leader = await cluster.led("S")
        told = listen(leader, "QUORUM_LOST")
        others = [node.name for node in cluster if node is not leader]
        cluster.crash(others[0])
        await cluster.never(lambda: bool(told), 2 * LOST_SECONDS)  # two of three are a quorum
        cluster.crash(others[1])
        await cluster.until(lambda: len(told) == 2, LOST_SECONDS + 5)
        user, system = told
        assert (user["to"], "account" in user, system["to"], system["account"]) == (ACCOUNT, False, "$SYS", ACCOUNT)
        assert user["stream"] == "S"
        assert {r["name"]: (r["current"], r.get("offline", False)) for r in user["replicas"]} == {
            leader.name: (True, False), others[0]: (False, True), others[1]: (False, True),
        }  # fmt: skip
        await asyncio.sleep(REPEAT_SECONDS + 0.5)
        assert len(told) == 4
        cluster.restart(others[0])
        await cluster.led("S")
        await asyncio.sleep(REPEAT_SECONDS + LOST_SECONDS)
        assert len(told) == 4
        assert leader.log.events("warning").count("stream has no quorum") == 1


@virtual_time
async def test_who_does_not_follow_the_leader_of_the_others_says_so_and_answers_no_reads() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        leader = await cluster.led("S")
        other = next(node for node in cluster if node is not leader)
        replica = other.replica("S")
        await cluster.until(lambda: replica.reads.own.joined, what="it reads")
        told = listen(other, "LEADER_REFUSED")
        replica.group.refused = "it has another entry 3"
        replica.wake()
        await cluster.until(lambda: len(told) == 2)
        assert {t["to"] for t in told} == {ACCOUNT, "$SYS"}
        assert (told[0]["stream"], told[0]["server"], told[0]["reason"]) == ("S", other.name, "it has another entry 3")
        assert not replica.reads.own.joined
        replica.group.refused = ""
        await cluster.until(lambda: replica.reads.own.joined, what="it reads again")
        assert len(told) == 2


@virtual_time
async def test_an_election_is_no_lost_quorum_and_is_published_in_both_accounts() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster.create("ONE", 1)
        leader = await cluster.led("S")
        rest = [node for node in cluster if node is not leader]
        lost, elected = listen(rest[0], "QUORUM_LOST"), listen(rest[0], "LEADER_ELECTED")
        listen(rest[1], "LEADER_ELECTED")
        await asyncio.sleep(0.1)
        cluster.crash(leader.name)
        successor = await cluster.led("S")
        await cluster.until(lambda: len(elected) == 2)
        assert [(e["to"], e.get("account"), e["leader"]) for e in elected] == [
            (ACCOUNT, None, successor.name), ("$SYS", ACCOUNT, successor.name),
        ]  # fmt: skip
        assert len(elected[0]["replicas"]) == 3
        await cluster.never(lambda: bool(lost), 2 * LOST_SECONDS)


class Bus:
    account = "A"

    def __init__(self) -> None:
        self.subjects: list[bytes] = []

    def subscribe(self, subject: bytes, callback: Any, bulk: Any = None) -> bytes:
        self.subjects.append(subject)
        return subject

    def unsubscribe(self, subscription: bytes) -> None:
        self.subjects.remove(subscription)


class Room:
    def __init__(self) -> None:
        self.bus, self.time, self.heard, self.errors = Bus(), ManualTime(), 0, list[Exception]()
        self.budget = LoopBudget(self.time, self.time)
        self.listening = Listening(self.bus, self.budget, self.errors.append)  # type: ignore[arg-type]

    def listen(self, wanted: set[bytes]) -> None:
        self.listening.listen(wanted, lambda subject: lambda *_: None, self._listens)

    def _listens(self) -> None:
        self.heard += 1


def names(count: int, start: int = 0) -> set[bytes]:
    return {b"s.%d" % i for i in range(start, start + count)}


def test_few_at_once() -> None:
    room = Room()
    room.listen(names(SUBJECTS_AT_ONCE))
    assert room.listening.complete
    assert set(room.bus.subjects) == set(room.listening.subjects) == names(SUBJECTS_AT_ONCE)
    assert room.heard == 1


def test_very_many_in_steps_and_it_is_reported_when_all_are() -> None:
    room = Room()
    room.listen(names(10_000))
    assert not room.listening.complete
    assert not room.bus.subjects
    room.time.advance(0.0)
    room.time.advance(1.0)
    assert room.listening.complete
    assert set(room.bus.subjects) == names(10_000)
    assert room.heard == 1
    room.listen(names(9_999))
    assert room.listening.complete
    assert set(room.bus.subjects) == names(9_999)


def test_another_configuration_takes_the_place_of_the_one_under_way() -> None:
    room = Room()
    room.listen(names(10_000))
    room.listen(names(5_000, start=8_000))
    room.time.advance(1.0)
    assert set(room.bus.subjects) == names(5_000, start=8_000)
    assert len(room.bus.subjects) == 5_000
    assert room.heard == 1


def test_the_end_comes_before_all_are_listened_to() -> None:
    room = Room()
    room.listen(names(10_000))
    room.listening.end()
    room.time.advance(1.0)
    assert not room.bus.subjects
    assert room.listening.complete
    assert room.budget.jobs == 0


def test_where_too_many_jobs_wait_it_is_done_at_once(monkeypatch: Any) -> None:
    monkeypatch.setattr("jetcluster.budget.MAX_JOBS", 0)
    room = Room()
    room.listen(names(1_000))
    assert room.listening.complete
    assert set(room.bus.subjects) == names(1_000)


def test_a_subject_that_cannot_be_listened_to_is_logged() -> None:
    room = Room()

    def taker(subject: bytes) -> Any:
        raise ValueError(subject)

    room.listening.listen(names(1_000), taker, room._listens)
    room.time.advance(1.0)
    assert len(room.errors) == 1
    assert room.listening.complete
