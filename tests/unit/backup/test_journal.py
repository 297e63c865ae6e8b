"""Journals of restores: what counts, and when they go."""

from __future__ import annotations

import json

import pytest

from jetcluster.backup.journal import JournalEntry, RestoreJournal, lock_of, path_of
from jetcluster.backup.storage import BackupStorageError
from testkit.twins.backup_storage import MemoryStorage

ACCOUNT = {"cluster": "C", "account": "A"}
PATH = path_of(ACCOUNT)


def journal(storage: MemoryStorage, point: str = "P", said: list[str] | None = None) -> RestoreJournal:
    made = RestoreJournal(storage, PATH, point, (said if said is not None else []).append)
    made.load()
    return made


def test_each_account_has_its_own() -> None:
    assert PATH.startswith("restores/") and lock_of(ACCOUNT) == f"{PATH}.lock"
    assert len({path_of(one) for one in (ACCOUNT, {"cluster": "C"}, {"account": "A"}, {})}) == 4


def test_it_is_there_until_every_wanted_stream_is_done() -> None:
    storage = MemoryStorage()
    first = journal(storage)
    first.want(["S", "T"])
    first.begin("S", "old")
    first.made("S", "new")
    assert journal(storage).entry("S") == JournalEntry("old", "new")
    first.done("S", "new")
    first.end()
    second = journal(storage)
    assert second.entry("S") == JournalEntry("old", "new", done=True) and second.entry("T") is None
    second.want(["T"])
    second.done("T", "newer")
    second.end()
    assert storage.files == {}


def test_what_is_noted_again_is_not_written_again() -> None:
    storage = MemoryStorage()
    first = journal(storage)
    first.done("S", "new")
    before = storage.changes
    first.done("S", "new")
    assert storage.changes == before


@pytest.mark.parametrize(
    "data", [b"half", b"[]", b'{"format": 1, "point": "P", "streams": {"S": 7}}', b'{"format": 9}']
)
def test_a_damaged_one_counts_for_nothing(data: bytes) -> None:
    storage = MemoryStorage()
    storage.files[f"{PATH}.json"] = data
    found = journal(storage)
    assert found.entry("S") is None
    found.want(["S"])
    assert json.loads(storage.files[f"{PATH}.json"])["streams"] == {"S": None}


def test_one_of_another_point_counts_for_nothing() -> None:
    storage = MemoryStorage()
    journal(storage).made("S", "new")
    assert journal(storage, "Q").entry("S") is None
    journal(storage, "Q").want(["T"])
    assert journal(storage).entry("S") is None


def test_a_destination_that_cannot_be_written_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, said = MemoryStorage(), list[str]()

    def refused(path: str, data: bytes) -> None:
        raise BackupStorageError("Read-only file system")

    monkeypatch.setattr(storage, "write", refused)
    first = journal(storage, said=said)
    first.want(["S"])
    first.done("S", "new")
    first.end()
    assert len(said) == 1 and "--missing" in said[0]
    assert RestoreJournal(storage, "", "P", said.append).entry("S") is None
