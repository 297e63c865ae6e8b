"""Restores that are started again, and streams that are there already."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.backup.journal import RestoreJournal, lock_of, path_of
from jetcluster.backup.lock import REMOVAL, BackupLock, BackupLockedError
from jetcluster.backup.restore import RestoredStream
from jetcluster.backup.restore_options import RestoreRefusedError
from jetcluster.backup.sequences import DamagedBackupError
from jetcluster.backup.storage import BackupStorageError
from jetcluster.client.reply import ConnectionLostError
from testkit.twins.backup_storage import DiedError
from testkit.twins.time import SeededRng
from tests.unit.backup.accounts import FakeStream
from tests.unit.backup.restoring import Site
from tests.unit.backup.site import Site as BackupSite

pytestmark = pytest.mark.usefixtures("transfers")


def several() -> Site:
    """The stream S with a consumer, and A, B and T, of which T is sealed."""
    streams = [FakeStream(name) for name in "ABT"]
    for one in streams:
        one.add(5)
    streams[2].config["sealed"] = True
    return Site(*streams)


def use(site: Site) -> None:
    """Clients publish to all streams that are there, and take from S."""
    for stream in site.servers.streams.values():
        if not stream.config.get("sealed"):
            stream.add(3)
        for one in stream.consumers.values():
            one["state"] = {"ack_floor": {"consumer_seq": 9, "stream_seq": 9}, "delivered": {"consumer_seq": 9}}


def at(seq: int) -> dict[str, Any]:
    """The state of a consumer."""
    return {key: {"consumer_seq": seq, "stream_seq": seq} for key in ("ack_floor", "delivered")}


def whole(site: Site) -> bool:
    """Every stream has what the point has, and what came since."""
    return all(len(found.held) == found.last for found in site.servers.streams.values()) and (
        set(site.servers.streams) == {"S", "A", "B", "T"} and site.servers.streams["T"].config["sealed"] is True
        and set(site.servers.streams["S"].consumers) == {"c"}
    )  # fmt: skip


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["die_at", "die_after"])
def test_a_restore_that_died_goes_on_with_what_is_missing(kind: str, overwrite: bool) -> None:
    """At every change of the destination; clients use what was restored before the second one."""
    number, died = 0, True
    while died:
        number += 1
        site = several()
        if overwrite:
            for one in site.servers.streams.values():
                one.held.pop(2)
        else:
            site.servers.streams.clear()
        old = {name: one.created for name, one in site.servers.streams.items()}
        site.storage.changes = 0
        setattr(site.storage, kind, number)
        try:
            site.restore(overwrite=overwrite)
            died = False
        except DiedError:
            site.storage.revive()
        ended = not any(path.startswith("restores/") and path.endswith(".json") for path in site.storage.files)
        if not died or (ended and whole(site)):
            break
        before = {name: one.created for name, one in site.servers.streams.items()}
        use(site)
        counts = {name: one.last for name, one in site.servers.streams.items() if before[name] != old.get(name)}
        site.restore(overwrite=overwrite)
        assert whole(site), number
        for name, last in counts.items():
            assert (site.servers.streams[name].created, site.servers.streams[name].last) == (before[name], last), number
        assert not [path for path in site.storage.files if path.startswith("restores/")]
    assert number > 10


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_restore_that_died_while_it_sent_goes_on(overwrite: bool) -> None:
    """The stream is there, and the journal does not know of it."""
    site = several()
    if overwrite:
        site.servers.streams["A"].add(1)
    else:
        site.servers.streams.clear()
    site.servers.failing = [DiedError()]
    with pytest.raises(DiedError):
        site.restore(overwrite=overwrite)
    use(site)
    (name,) = [name for name, one in site.servers.streams.items() if one.created.startswith("made")]
    last = site.servers.streams[name].last
    site.servers.streams = {name: site.servers.streams[name]}
    made = site.restore(overwrite=overwrite)
    assert whole(site) and site.servers.streams[name].last == last
    assert RestoredStream(name, last - 3, was_there=True, left=True) in made


def test_a_stream_that_was_made_in_between_is_not_mistaken_for_a_restored_one() -> None:
    site = several()
    site.servers.streams.clear()
    site.servers.failing = [DiedError()]
    with pytest.raises(DiedError):
        site.restore()
    (name,) = site.servers.streams
    other = FakeStream(name)
    other.add(30, size=2)
    site.servers.streams[name] = other
    with pytest.raises(RestoreRefusedError, match=f"not as in the backup: {name}"):
        site.restore()
    site.restore(missing=True)
    assert site.servers.streams[name] is other and len(site.servers.streams) == 4
    site.servers.streams[name] = other
    site.restore(overwrite=True, anew=True)
    assert site.servers.streams[name].created.startswith("made")


def test_after_a_restore_that_ended_another_one_begins_anew() -> None:
    site = several()
    site.servers.streams.clear()
    site.restore()
    use(site)
    with pytest.raises(RestoreRefusedError, match="already there"):
        site.restore()
    site.restore(overwrite=True)
    assert site.servers.streams["A"].last == 5


def test_a_restore_of_one_stream_leaves_the_journal_of_all() -> None:
    site = several()
    site.servers.streams.clear()
    site.servers.failing = [DiedError()]
    with pytest.raises(DiedError):
        site.restore()
    site.restore(streams=("B",))
    use(site)
    last = site.servers.streams["B"].last
    site.restore(overwrite=True)
    assert whole(site) and site.servers.streams["B"].last == last


def test_what_is_there_is_left_if_that_is_wanted() -> None:
    site = several()
    kept = site.servers.streams["A"]
    kept.add(7)
    site.servers.streams = {"A": kept}
    made = {one.name: one for one in site.restore(missing=True)}
    assert made["A"] == RestoredStream("A", 5, was_there=True, left=True)
    assert site.servers.streams["A"] is kept and kept.last == 12
    assert whole(site) and "A: is there: it is left as it is" in site.said
    with pytest.raises(RestoreRefusedError, match="--missing"):
        site.restore(missing=True, overwrite=True)


def test_a_source_that_is_only_read_is_restored_from(monkeypatch: pytest.MonkeyPatch) -> None:
    site = several()
    site.servers.streams.clear()

    def refused(path: str, data: bytes) -> None:
        raise BackupStorageError("Read-only file system")

    monkeypatch.setattr(site.storage, "write", refused)
    monkeypatch.setattr(site.storage, "create", refused)
    site.restore()
    assert whole(site)
    told = [line for line in site.said if "Read-only" in line]
    assert len(told) == 2 and "no lock is held" in told[0] and "--missing" in told[1]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_stream_that_was_left_torn_is_made_anew(overwrite: bool) -> None:
    """As by nats-server: after the tool was killed, and after a lost connection."""
    site = several()
    if overwrite:
        site.servers.streams["S"].add(1)
    else:
        site.servers.streams.clear()
    site.servers.tearing = [ConnectionLostError("gone"), DiedError()]
    with pytest.raises(DiedError):
        site.restore(overwrite=overwrite)
    assert min(one.last for one in site.servers.streams.values()) == 3
    site.restore(overwrite=overwrite)
    assert whole(site) and site.servers.streams["S"].held == site.held


def test_a_stream_that_somebody_made_after_a_lost_connection_is_left() -> None:
    site = several()
    site.servers.streams.clear()
    other = FakeStream("S")
    other.add(1, size=3)

    class Lost(ConnectionLostError):
        def __init__(self) -> None:
            super().__init__("gone")

        @property
        def retriable(self) -> bool:
            for name, one in site.servers.streams.items():
                other.name, other.config = name, one.config
                site.servers.streams[name] = other
            return True

    site.servers.tearing = [Lost()]
    with pytest.raises(RestoreRefusedError, match="somebody made it meanwhile"):
        site.restore()
    assert list(site.servers.streams.values()) == [other]


def test_an_answer_that_is_lost_is_no_reason_to_fail() -> None:
    site = several()
    site.servers.streams.clear()
    site.servers.failing = [ConnectionLostError("gone")]
    assert len(site.restore()) == 4
    assert whole(site)


# ---- what is not right of streams that are there


def test_consumers_that_are_not_there_are_made_at_their_ack_floors() -> None:
    site = several()
    stream = site.servers.streams["S"]
    stream.consumers.clear()
    site.servers.streams["T"].config = {**site.servers.streams["T"].config, "sealed": False}
    assert all(one.was_there for one in site.restore())
    assert stream.consumers["c"] == {
        "config": {"durable_name": "c"},
        "state": {key: {"consumer_seq": 0, "stream_seq": 3} for key in ("ack_floor", "delivered")},
    }
    assert "S: consumer c is made and set behind its ack floor 3" in site.said
    assert site.servers.streams["T"].config["sealed"] is True and "T: sealed" in site.said
    stream.consumers["c"]["state"] = at(0)
    site.restore()
    assert "S: consumer c was set behind its ack floor 3" in site.said
    site.servers.asked_for.clear()
    site.restore()
    assert site.servers.asked_for == []


def test_a_consumer_that_was_used_since_is_told_and_made_anew_with_its_stream() -> None:
    site = several()
    stream = site.servers.streams["S"]
    used = at(2)
    stream.consumers["c"]["state"] = used
    with pytest.raises(RestoreRefusedError, match="consumer c is at 2, in the backup at 3, and was used since"):
        site.restore()
    assert stream.consumers["c"]["state"] == used
    site.restore(overwrite=True)
    assert site.servers.streams["S"] is not stream
    assert site.servers.streams["S"].consumers["c"]["state"]["pending"]


def test_a_consumer_that_the_servers_do_not_place_is_not_left_at_its_beginning() -> None:
    site = several()
    site.servers.streams["S"].consumers.clear()
    site.servers.refused = "not for this deliver policy"
    with pytest.raises(RestoreRefusedError, match="cannot be put right: not for this deliver policy"):
        site.restore()
    assert site.servers.streams["S"].consumers == {}


# ---- beside others


def test_two_restores_into_one_account_are_refused() -> None:
    site = several()
    first = BackupLock(site.storage, site.time, SeededRng(5), path=lock_of(site.servers.info()))
    first.__enter__()
    real = site.time.advance

    def advance(seconds: float) -> None:
        real(seconds)
        first.renew()

    site.time.advance = advance  # type: ignore[method-assign]
    with pytest.raises(BackupLockedError, match="is at work"):
        site.restore(overwrite=True)
    first.__exit__(None, None, None)
    site.restore()


def test_no_restore_begins_while_blobs_are_removed() -> None:
    site = several()
    removal = BackupLock(site.storage, site.time, SeededRng(5), work=REMOVAL)
    with removal, pytest.raises(BackupLockedError, match="wait until it has ended"):
        site.restore()
    with BackupLock(site.storage, site.time, SeededRng(5)):
        site.restore()


def test_a_backup_beside_a_restore_removes_nothing_and_makes_no_point_of_the_same_account() -> None:
    stream = FakeStream("S")
    site = BackupSite(stream)
    for _ in range(3):
        stream.add(10)
        site.backup()
    site.account.cluster = "elsewhere"
    with BackupLock(site.storage, site.time, SeededRng(5), path=lock_of(site.account.info()), work="restore"):
        with pytest.raises(BackupLockedError, match="restores into the account"):
            site.backup()
        site.account.cluster = ""
        site.backup(keep=1)
        assert len([path for path in site.storage.files if path.startswith("points/")]) == 4
        assert "so nothing is removed; the next run does it" in site.said[-1]
    site.backup(keep=1)
    assert len([path for path in site.storage.files if path.startswith("points/")]) == 1


def test_a_stream_that_somebody_made_anew_meanwhile_is_not_deleted() -> None:
    site = several()
    site.servers.streams["S"].add(1)
    other = FakeStream("S", "another time")
    other.add(50)
    real = site.storage.write

    def write(path: str, data: bytes) -> None:
        real(path, data)
        found = json.loads(data).get("streams", {}).get("S") if path.endswith(".json") else None
        if found:
            site.servers.streams["S"] = other

    site.storage.write = write  # type: ignore[method-assign]
    with pytest.raises(RestoreRefusedError, match="made it anew meanwhile"):
        site.restore(overwrite=True)
    assert site.servers.streams["S"] is other


def test_a_damaged_blob_is_no_matter_for_streams_that_are_done() -> None:
    site = several()
    site.servers.streams.clear()
    site.servers.failing = []
    site.restore()
    journal = RestoreJournal(site.storage, path_of(site.servers.info()), site.point.name, site.said.append)
    journal.want(["S", "A", "B", "T"])
    for name, one in site.servers.streams.items():
        journal.done(name, one.created)
    for blob in site.point.blobs:
        found = site.point.stream("A")
        if found is not None and blob in [one.blob for one in found.segments]:
            del site.storage.files[blob.path]
    site.restore()
    del site.servers.streams["A"]
    journal.want(["S", "A", "B", "T"])
    for name, one in site.servers.streams.items():
        journal.done(name, one.created)
    with pytest.raises(DamagedBackupError, match="missing"):
        site.restore()
