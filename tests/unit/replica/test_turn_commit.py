"""At most one commit per turn and few under load, refusal while it fails (replica/turn_commit.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetcluster.raft.config import JournalOptions
from jetcluster.replica.turn_commit import HOLD_SECONDS, LOOK_SECONDS, RETRY_SECONDS, TurnCommit
from jetcluster.store.kv import KvError, KvFullError
from testkit.sim.nodes import ACCOUNT, Cluster
from testkit.sim.shared import virtual_time
from testkit.twins.log import ListLog
from testkit.twins.mem_kv import CrashKv
from testkit.twins.time import ManualTime


class Turns:
    """Turns that only note what they are told."""

    def __init__(self, told: list[str]) -> None:
        self.told = told

    def ask_first(self, may_apply: object) -> None:
        self.told.append("held")

    def apply_again(self) -> None:
        self.told.append("room")


async def nothing() -> None:
    pass


def commits(kv: CrashKv, time: ManualTime, log: ListLog | None = None, told: list[str] | None = None) -> TurnCommit:
    told = [] if told is None else told
    turns: Any = Turns(told)
    store: Any = kv
    return TurnCommit(store, time, log or ListLog(), turns, nothing, lambda: told.append("due"))


def test_many_marks_of_one_turn_are_one_commit() -> None:
    time, kv = ManualTime(), CrashKv()
    commit = commits(kv, time)
    for key in (b"a", b"b"):
        kv.put(key, b"")
        commit.mark()
    assert kv.commits == 0
    time.advance(0)
    assert kv.commits == 1


def test_turns_soon_after_a_commit_share_the_next_one() -> None:
    time, kv = ManualTime(), CrashKv()
    commit = commits(kv, time)
    for n in range(3):
        kv.put(b"%d" % n, b"")
        commit.mark()
        time.advance(0)
        assert kv.commits == 1
    time.advance(HOLD_SECONDS)
    assert kv.commits == 2
    time.advance(10 * HOLD_SECONDS)
    kv.put(b"first after a pause", b"")
    commit.mark()
    time.advance(0)
    assert kv.commits == 3
    kv.writes.pressing = True
    kv.put(b"pressing", b"")
    commit.mark()
    time.advance(0)
    assert kv.commits == 4


def test_under_load_there_is_one_commit_per_hold() -> None:
    time, kv = ManualTime(), CrashKv()
    commit = commits(kv, time)
    for n in range(1000):
        kv.put(b"%d" % n, b"")
        commit.mark()
        time.advance(HOLD_SECONDS / 100)
    assert 10 <= kv.commits <= 11


def test_a_failed_commit_is_repeated_and_logged_once() -> None:
    time, kv, log = ManualTime(), CrashKv(), ListLog()
    commit = commits(kv, time, log)
    kv.broken = True
    kv.put(b"a", b"")
    commit.mark()
    time.advance(3 * RETRY_SECONDS)
    assert commit.failing and len(log.events("error")) == 1
    kv.broken = False
    time.advance(RETRY_SECONDS)
    assert not commit.failing and kv.commits == 1 and len(log.events("warning")) == 1


def test_a_commit_that_has_to_wait_is_tried_again_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    time, kv, log = ManualTime(), CrashKv(), ListLog()
    told: list[str] = []
    commit = commits(kv, time, log, told)
    kv.waiting = True
    kv.put(b"a", b"")
    commit.mark()
    time.advance(3.0)
    assert kv.commits == 0 and set(told) == {"held"} and not commit.failing
    told.clear()
    kv.waiting = False
    monkeypatch.setattr(CrashKv, "due", True)
    time.advance(LOOK_SECONDS)
    assert kv.commits == 1 and told == ["room", "due"]
    time.advance(3.0)
    assert told == ["room", "due"] and not log.lines


def test_replicas_ask_for_room_from_the_commit_that_was_held_until_one_that_was_not() -> None:
    time, kv = ManualTime(), CrashKv()
    told: list[str] = []
    commit = commits(kv, time, told=told)
    kv.put(b"a", b"")
    commit.now()
    assert told == ["room"]
    kv.waiting = True
    kv.commit()  # by an import or a flush
    assert told == ["room", "held"] and not commit.may_apply()
    kv.waiting = False
    assert commit.may_apply()
    commit.now()
    assert told == ["room", "held", "room"]
    kv.broken = True
    kv.put(b"b", b"")
    commit.now()
    assert told[3:] == ["held"] and commit.failing


def test_nothing_is_committed_after_stop() -> None:
    time, kv = ManualTime(), CrashKv()
    commit = commits(kv, time)
    kv.put(b"a", b"")
    commit.mark()
    commit.stop()
    time.advance(10)
    assert kv.commits == 0


@virtual_time
@pytest.mark.parametrize(
    ("error", "err_code"),
    [(KvFullError("No space left on device"), 10077), (KvError("IO error: Input/output error"), 10008)],
)
async def test_publishes_are_refused_while_the_store_cannot_be_written_and_taken_again_after(
    error: KvError, err_code: int
) -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        leader = cluster.leader("S")
        assert (await leader.publish(b"s"))["seq"] == 1
        leader.kv.error, leader.kv.broken = error, True
        assert (await leader.publish(b"s"))["seq"] == 2  # applied in memory; this commit is the first to fail
        await cluster.until(lambda: leader.services.commits.failing, what="it is noticed")
        refused = await leader.publish(b"s")
        assert refused["error"]["err_code"] == err_code
        assert (await leader.get(b"S", 2))[1].startswith(b"NATS/1.0\r\n")  # reads go on
        leader.kv.broken = False
        await asyncio.sleep(2 * RETRY_SECONDS)
        assert (await leader.publish(b"s"))["seq"] == 3


@virtual_time
async def test_replicas_apply_no_more_while_the_store_is_overloaded() -> None:
    """Replicas of streams wait: what the meta group decides counts still."""
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s")
        await cluster.equal("S")
        node = cluster.followers("S")[0]
        replica = node.replica("S")
        node.kv.waiting = True
        node.kv.commit()
        node.services.commits.mark()
        for number in range(20):
            assert (await cluster.leader("S").publish(b"s"))["seq"] == number + 2
        await asyncio.sleep(1)
        assert replica.store.last_seq == 1 and replica.group.last_index > replica.machine.applied_index
        another = asyncio.create_task(cluster.create("T"))
        await cluster.until(lambda: node.js.assignment(ACCOUNT, "T") is not None, what="it hears of another stream")
        node.kv.waiting = False
        await another
        await cluster.until(lambda: replica.store.last_seq == 21, what="it has applied all")
        await cluster.equal("S")


@virtual_time
async def test_replicas_apply_again_when_the_store_was_overloaded_by_others() -> None:
    """An import writes and commits by itself: no replica had applied anything that would be committed later."""
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s")
        await cluster.all_read("S")
        node = cluster.followers("S")[0]
        replica = node.replica("S")
        await asyncio.sleep(1)
        node.kv.waiting = True
        node.kv.commit()  # the import's
        await cluster.leader("S").publish(b"s")
        await asyncio.sleep(1)
        assert replica.store.last_seq == 1
        node.kv.waiting = False
        await cluster.until(lambda: replica.store.last_seq == 2, 1.0, "it has applied all")


@virtual_time
async def test_the_journal_is_synced_before_the_store_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sync interval does not matter: or a power failure leaves data that no log knows of."""
    flushed: list[int] = []
    async with Cluster("A", clustered=False, options=JournalOptions(sync_interval=3600.0)) as cluster:
        await cluster.create("S", 1)
        node = cluster["A"]

        def flush_now(self: CrashKv) -> None:
            flushed.append(node.raft.journal.synced)

        for _ in range(3):
            await node.publish(b"s")
        written = node.raft.journal.open_seq
        assert node.raft.journal.synced < written
        monkeypatch.setattr(CrashKv, "flush_now", flush_now)
        await node.js.flusher.flush()
        assert len(flushed) == 1 and flushed[0] >= written
        monkeypatch.undo()


class Unreadable(CrashKv):
    def get(self, key: bytes) -> bytes | None:
        raise KvError("no disk")


def test_an_erasure_is_noted_in_its_commit_until_the_journal_forgets() -> None:
    time, kv = ManualTime(), CrashKv()
    commit = commits(kv, time)
    assert not commit.erased
    commit.erase()
    kv.flush_now()
    assert commits(kv.crashed(), time).erased, "another process goes on"
    commit.erased = False
    commit.erase()
    commit.forgotten()
    assert commits(kv, time).erased, "another one came while the journal forgot"
    commit.erased = False
    commit.forgotten()
    assert not commits(kv, time).erased
    assert commits(Unreadable(), time).erased, "nobody knows"
