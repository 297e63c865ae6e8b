"""Runs of backups against an account in memory: what is read, what a point holds, and deaths at every change."""

from __future__ import annotations

import json
import random

import pytest

from jetcluster.backup import plan
from jetcluster.backup.account import StreamSeen
from jetcluster.backup.lock import RENEW_SECONDS, STALE_SECONDS, BackupLockedError
from jetcluster.backup.point import NAME, Blob
from jetcluster.backup.retention import PointCatalog
from jetcluster.backup.run import NoSuchStreamError, next_name
from jetcluster.backup.storage import read_blob
from jetcluster.backup.verify import check_point
from testkit.twins.backup_storage import DiedError
from tests.unit.backup.accounts import FakeStream
from tests.unit.backup.site import Site, contents, damage

pytestmark = pytest.mark.usefixtures("small_segments")


def test_a_second_run_reads_what_is_new_alone() -> None:
    stream = FakeStream("S")
    stream.add(1000)
    site = Site(stream)
    first = site.backup()
    site.check(first)
    stream.add(10)
    before = site.account.read_bytes
    second = site.backup()
    site.check(second)
    assert site.account.read == list(range(1001, 1011))
    assert 0 < second.read_bytes - before < before / 50
    assert second.written_bytes < first.written_bytes / 10
    assert site.backup().written_bytes == 0
    assert len(PointCatalog(site.storage).names()) == 3


def test_an_older_point_keeps_what_was_deleted_since() -> None:
    stream = FakeStream("S")
    stream.add(300)
    site = Site(stream)
    first = site.backup()
    before = contents(site.storage, first, "S")
    stream.delete(1, 2, 150, 300)
    second = site.backup()
    site.check(second)
    assert contents(site.storage, first, "S") == before
    stream.delete(*range(1, 301))
    third = site.backup()
    site.check(third)
    found = third.stream("S")
    assert found is not None and not found.segments
    assert (found.state["messages"], found.state["first_seq"], found.state["last_seq"]) == (0, 301, 300)
    stream.add(5)
    site.check(site.backup())
    assert site.account.read == [301, 302, 303, 304, 305]


def test_a_stream_that_was_created_again_is_read_whole() -> None:
    stream = FakeStream("S")
    stream.add(50)
    site = Site(stream)
    site.backup()
    again = FakeStream("S", created="2026-11-02T00:00:00Z")
    again.add(40, size=3)
    site.account.streams["S"] = again
    site.check(site.backup())
    assert len(site.account.read) == 40


@pytest.mark.parametrize("count", [40, 50, 60])
def test_other_messages_under_the_same_creation_time_are_seen(count: int) -> None:
    """As when a store was set back to an older copy of itself."""
    stream = FakeStream("S")
    stream.add(50)
    site = Site(stream)
    site.backup()
    stream.held.clear()
    stream.last = 0
    stream.add(count, size=3)
    site.check(site.backup())
    assert len(site.account.read) == count


@pytest.mark.parametrize("unlisted", [False, True])
@pytest.mark.parametrize("gone", [(50,), tuple(range(40, 51)), tuple(range(1, 51))])
def test_sequences_that_come_again_are_seen_without_the_last_message(gone: tuple[int, ...], unlisted: bool) -> None:
    """A store was set back to its message 30, and 31 to 60 came again; the last one of the backup is deleted."""
    stream = FakeStream("KV_x")
    stream.add(50)
    site = Site(stream)
    site.backup()
    stream.delete(*range(31, 51))
    stream.last = 30
    stream.add(30, size=3)
    stream.delete(*gone)
    site.account.unlisted = unlisted
    site.check(site.backup())


def test_a_deleted_last_message_alone_reads_nothing_again() -> None:
    stream = FakeStream("S")
    stream.add(500)
    site = Site(stream)
    site.backup()
    stream.delete(500, 499, 450, *range(1, 100))
    stream.add(2)
    site.check(site.backup())
    assert site.account.read == [501, 502]


def test_a_message_that_goes_while_it_is_read_is_not_in_the_point() -> None:
    stream = FakeStream("S")
    stream.add(20)
    site = Site(stream)
    site.account.meanwhile = lambda _: stream.delete(7, 20)
    site.check(site.backup())
    assert stream.last == 20 and len(stream.held) == 18


def test_a_key_that_is_replaced_while_it_is_read_is_in_the_point() -> None:
    stream = FakeStream("KV_b")
    for number in range(10):
        stream.put(f"$KV.b.{number}", b"old")
    site = Site(stream)
    left = [9, 7, 7, 3]

    def replacing(_: str) -> None:
        if left:
            stream.put(f"$KV.b.{left.pop()}", b"new")

    site.account.meanwhile = replacing
    point = site.backup()
    site.check(point)
    assert len({one.subject for one in contents(site.storage, point, "KV_b")}) == 10


@pytest.mark.parametrize("hot", [1, 5, 200])
def test_a_point_of_a_busy_bucket_is_of_one_moment(hot: int) -> None:
    """Keys are put before each message that is read, also during the passes and the snapshot at the end."""
    stream = FakeStream("KV_b")
    for number in range(200):
        stream.put(f"$KV.b.{number}", b"old")
    site, rng, moments = Site(stream), random.Random(hot), []

    def busy(_: str) -> None:
        if rng.random() < 0.7:
            stream.put(f"$KV.b.{rng.randrange(hot)}", b"new")
        moments.append([stream.held[seq] for seq in sorted(stream.held)])

    site.account.meanwhile = busy
    for _ in range(3):
        moments[:] = [[stream.held[seq] for seq in sorted(stream.held)]]
        point = site.backup()
        assert check_point(site.storage, point, site.said.append) == []
        found = contents(site.storage, point, "KV_b")
        assert found in moments and len(found) == 200
        assert point.streams[0].state["last_seq"] >= found[-1].seq


def test_a_stream_that_is_made_again_while_it_is_read_is_read_anew() -> None:
    stream, again = FakeStream("S"), FakeStream("S", created="2026-11-02T00:00:00Z")
    stream.add(20)
    again.add(20, size=3)
    site = Site(stream)
    site.account.meanwhile = lambda _: site.account.streams.update(S=again)
    point = site.backup()
    site.check(point)
    assert point.streams[0].created == again.created
    again.add(1)
    site.account.meanwhile = lambda _: site.account.streams.clear()
    assert site.backup(allow_empty=True).streams == ()


def test_a_message_that_a_reading_missed_is_read_by_the_next_pass() -> None:
    stream = FakeStream("S")
    stream.add(200)
    site = Site(stream)
    site.account.hidden = {7, 200}
    passes: list[None] = []
    look = site.account.look

    def looking(name: str) -> StreamSeen | None:
        passes.append(None)
        if len(passes) == 3:
            site.account.hidden = set()
        return look(name)

    site.account.look = looking  # type: ignore[method-assign]
    site.check(site.backup())


def test_a_stream_that_does_not_tell_what_is_deleted_is_read_whole_and_written_in_part() -> None:
    stream = FakeStream("S")
    stream.add(500)
    site = Site(stream)
    site.backup()
    stream.delete(*range(100, 200))
    stream.add(5)
    site.account.unlisted = True
    point = site.backup()
    site.check(point)
    assert len(site.account.read) == 405
    assert point.written_bytes < 1500
    site.account.unlisted = False
    site.check(site.backup())
    assert site.account.read == []


def test_consumers_come_with_their_stream() -> None:
    stream = FakeStream("S")
    stream.add(5)
    stream.consumers["c"] = {"config": {"durable_name": "c"}, "state": {"pending": {"3": {"Sequence": 1}}}}
    site = Site(stream)
    site.check(site.backup())


def test_only_the_named_streams_are_in_a_point() -> None:
    one, other = FakeStream("A"), FakeStream("B")
    one.add(9)
    other.add(9)
    site = Site(one, other)
    site.backup()
    one.add(1)
    other.add(1)
    point = site.backup("B")
    assert [found.name for found in point.streams] == ["B"]
    assert site.account.read == [10]
    site.backup()  # A goes on from the point before
    assert site.account.read == [10]
    with pytest.raises(NoSuchStreamError, match="there is no stream C"):
        site.backup("C")


def test_small_segments_are_joined_without_asking_the_servers() -> None:
    stream = FakeStream("S")
    site = Site(stream)
    for _ in range(40):
        stream.add(2)
        site.check(site.backup())
        assert len(site.account.read) == 2
    point = site.backup(keep=1)
    found = point.stream("S")
    assert found is not None and len(found.segments) <= 2 * (plan.MAX_SMALL_SEGMENTS + 1)
    assert len(PointCatalog(site.storage).blobs()) == len(point.blobs)
    site.check(point)


def test_segments_of_deleted_messages_are_written_anew() -> None:
    stream = FakeStream("S")
    stream.add(1000)
    site = Site(stream)
    whole = site.backup()
    stream.delete(*(seq for seq in range(1, 1001) if seq % 10))
    point = site.backup(keep=1)
    site.check(point)
    assert site.account.read == []
    size = sum(len(data) for data in site.storage.files.values())
    assert size < whole.written_bytes / 2


def test_a_blob_that_is_missing_is_read_again() -> None:
    stream = FakeStream("S")
    stream.add(500)
    site = Site(stream)
    found = site.backup().stream("S")
    assert found is not None
    lost = found.segments[3]
    del site.storage.files[lost.blob.path]
    site.check(site.backup())
    assert site.account.read == list(range(lost.first, lost.last + 1))


def test_messages_that_segments_lack_are_read_alone() -> None:
    """Blobs are missing, in points and in what an interrupted run wrote, while the stream goes on."""
    for seed in range(8):
        rng = random.Random(seed)
        stream = FakeStream("S")
        site = Site(stream)
        for _ in range(6):
            stream.add(rng.randrange(200))
            stream.delete(*rng.sample(sorted(stream.held), rng.randrange(len(stream.held) // 2 + 1)))
            site.storage.changes, site.storage.die_at = 0, rng.choice([0, 6, 9])
            try:
                site.backup()
            except DiedError:
                pass
            site.storage.revive()
            for path in rng.sample(blobs := sorted(PointCatalog(site.storage).blobs()), len(blobs) // 4):
                del site.storage.files[path]
            site.check(site.backup())


@pytest.mark.parametrize("unlisted", [False, True])
def test_a_run_that_verifies_reads_damaged_segments_from_the_servers_again(unlisted: bool) -> None:
    stream = FakeStream("S")
    stream.add(500)
    stream.consumers["c"] = {"config": {"durable_name": "c"}, "state": {}}
    site = Site(stream)
    first = site.backup()
    found = first.streams[0]
    damage(site.storage, found.segments[2].blob.path)
    damage(site.storage, found.live.path)
    assert found.consumers is not None
    damage(site.storage, found.consumers.path)
    stream.add(1)
    site.account.unlisted = unlisted
    point = site.backup(keep=2, verify=True)
    site.check(point)
    assert point.verified
    if not unlisted:
        assert sorted(site.account.read) == [*range(found.segments[2].first, found.segments[2].last + 1), 501]
    for one in found.segments:  # of the older point
        assert read_blob(site.storage, one.blob)


def test_damage_that_is_seen_when_segments_are_joined_is_mended() -> None:
    stream = FakeStream("S")
    site = Site(stream)
    for _ in range(plan.MAX_SMALL_SEGMENTS):
        stream.add(2)
        point = site.backup()
    for one in point.streams[0].segments[1:3]:
        damage(site.storage, one.blob.path)
    stream.add(2)
    site.check(site.backup())
    assert set(site.account.read) == {3, 4, 5, 6, 17, 18}


def test_a_message_that_an_older_point_lacks_is_read() -> None:
    """The list of a point says what it has, not what the stream had."""
    stream = FakeStream("S")
    stream.add(50)
    lost = stream.held.pop(20)
    site = Site(stream)
    site.backup()
    stream.held[20] = lost
    site.check(site.backup())


def test_a_damaged_point_keeps_nobody_from_a_new_one_and_no_blob_from_staying() -> None:
    stream = FakeStream("S")
    stream.add(50)
    site = Site(stream)
    old = site.backup()
    site.storage.files[old.path] = b"{}"
    blobs = set(PointCatalog(site.storage).blobs())
    site.check(site.backup())
    assert len(site.account.read) == 50
    assert blobs <= set(PointCatalog(site.storage).blobs())


def test_copies_are_read_before_their_origins() -> None:
    origin, copy = FakeStream("A"), FakeStream("Z", mirror={"name": "A"})
    origin.add(3)
    copy.add(2)
    site = Site(origin, copy)
    point = site.backup()
    assert [one.name for one in point.streams] == ["Z", "A"]


@pytest.mark.parametrize("kind", ["die_at", "die_after"])
def test_a_death_at_any_change_leaves_nothing_half(kind: str) -> None:
    """Two runs with a pruning, killed at change n, for every n; then the run is started again."""
    number = 0
    finished = False
    while not finished:
        number += 1
        stream = FakeStream("S")
        stream.add(300)
        stream.consumers["c"] = {"config": {}, "state": {}}
        site = Site(stream, FakeStream("T"))
        first = site.backup()
        old = contents(site.storage, first, "S")
        stream.delete(*range(10, 200))
        stream.add(200)
        site.storage.changes = 0
        setattr(site.storage, kind, number)
        try:
            site.backup(keep=2)
            finished = True
        except DiedError:
            pass
        site.storage.revive()
        for name in PointCatalog(site.storage).names():
            assert check_point(site.storage, PointCatalog(site.storage).point(name), site.said.append) == []
        assert contents(site.storage, first, "S") == old
        point = site.backup(keep=2)
        site.check(point)
        site.check(site.backup(keep=1))
        needed = {blob.path for blob in point.blobs}
        assert set(PointCatalog(site.storage).blobs()) <= needed | {blob.path for blob in site.backup(keep=1).blobs}
        assert not [path for path in site.storage.files if path.startswith(("partial/", "lock"))]
    assert number > 15


def test_a_run_that_was_killed_is_gone_on_with() -> None:
    stream = FakeStream("S")
    stream.add(1000)
    site = Site(stream)
    site.storage.die_at = 12
    with pytest.raises(DiedError):
        site.backup()
    site.storage.revive()
    before = site.time.monotonic()
    point = site.backup()
    assert STALE_SECONDS <= site.time.monotonic() - before - 60 < STALE_SECONDS + 10
    site.check(point)
    found = point.stream("S")
    assert found is not None  # changes 2 to 11 were five segments, each with a note of it
    assert site.account.read == list(range(found.segments[4].last + 1, 1001))


def test_a_run_whose_lock_was_taken_over_writes_no_point() -> None:
    stream = FakeStream("S")
    stream.add(10)
    site = Site(stream)
    real = site.account.info

    def taken() -> dict[str, object]:
        site.storage.files["lock.json"] = b'{"token": "another"}'
        return real()

    site.account.info = taken  # type: ignore[method-assign]
    with pytest.raises(BackupLockedError, match="taken the lock over"):
        site.backup()
    assert PointCatalog(site.storage).names() == []
    assert site.storage.files["lock.json"] == b'{"token": "another"}'


@pytest.mark.parametrize("slow", ["look", "read", "delete"])
def test_a_slow_run_keeps_its_lock(slow: str) -> None:
    """Streams without new messages, a point that is read back, blobs that are removed: each call takes a second."""
    streams = [FakeStream(f"S{number}") for number in range(700)]
    streams[0].add(7000)
    site = Site(*streams)
    site.backup()
    if slow == "delete":
        for number in range(700):
            site.storage.files[Blob.of(b"%d" % number).path] = b"x"
    place = site.account if slow == "look" else site.storage
    real = getattr(place, slow)
    ages: list[float] = []

    def slowly(*given: str) -> object:
        site.time.advance(1)
        ages.append((site.time.time_ns() - json.loads(site.storage.files["lock.json"])["renewed"]) / 1e9)
        return real(*given)

    setattr(place, slow, slowly)
    site.backup(keep=1, verify=True)
    assert max(ages) < 2 * RENEW_SECONDS and len(ages) > 600


def test_progress_of_streams_that_are_gone_is_forgotten() -> None:
    site = Site(FakeStream("S"))
    site.storage.files["partial/GONE.json"] = b"{}"
    site.backup("S")
    assert "partial/GONE.json" in site.storage.files
    site.backup()
    assert "partial/GONE.json" not in site.storage.files


def test_random_lives() -> None:
    """Publishes, deletions, purges, new streams, backups that die: each point holds what the account held."""
    for seed in range(12):
        rng = random.Random(seed)
        site = Site(FakeStream("S"), FakeStream("T"))
        for step in range(25):
            stream = site.account.streams[rng.choice("ST")]
            choice = rng.random()
            if choice < 0.5:
                stream.add(rng.randrange(60))
            elif choice < 0.7 and stream.held:
                stream.delete(*rng.sample(sorted(stream.held), rng.randrange(len(stream.held))))
            elif choice < 0.75:
                site.account.streams[stream.name] = FakeStream(stream.name, created=f"{seed}-{step}")
            site.storage.changes = 0
            site.storage.die_at = rng.choice([0, 0, rng.randrange(1, 20)])
            try:
                point = site.backup(keep=rng.choice([0, 0, 1, 3]))
            except DiedError:
                site.storage.revive()
                continue
            site.storage.revive()
            site.check(point)
        for name in PointCatalog(site.storage).names():
            assert check_point(site.storage, PointCatalog(site.storage).point(name), site.said.append) == []


def test_names_of_points_ascend_whatever_the_clock_does() -> None:
    ns = 1_795_928_148_000_000_000
    names: list[str] = []
    for offset in (0, 0, 0, -60, 5):
        names.append(next_name(ns + offset * 1_000_000_000, names))
    assert names == sorted(set(names))
    assert names[1] == f"{names[0]}-002" and names[3] == f"{names[0]}-004"
    for _ in range(3000):
        names.append(next_name(ns - 1, names[-1:]))  # a clock that was far ahead, once
    assert names == sorted(set(names)) and all(map(NAME.fullmatch, names))
    assert next_name(ns, ["20261129T045548Z-999999"]) == "20261129T045548Z-999999000000"
