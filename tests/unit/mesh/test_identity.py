"""A node's identity (mesh/identity.py)."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from jetcluster.mesh.identity import (
    BASE62,
    FILE_NAME,
    LEFT_OUT_FILE,
    MARKER_NAME,
    IdentityError,
    is_peer_id,
    left_out_advice,
    left_out_reason,
    load_identity,
    mark_left_out,
    new_id,
    save_identity,
)
from testkit.twins.time import ManualTime, SeededRng

PARTS = ("journal", "data")


def test_made_once_and_kept(tmp_path: Path) -> None:
    first = load_identity(tmp_path / "store", "n1", clock=ManualTime(epoch_ns=5_000_000_000_000))
    assert is_peer_id(first.peer_id)
    assert first.created == 5_000_000_000_000
    assert load_identity(tmp_path / "store", "n1") == first


def test_a_wiped_store_is_a_new_peer(tmp_path: Path) -> None:
    first = load_identity(tmp_path, "n1")
    (tmp_path / FILE_NAME).unlink()
    assert load_identity(tmp_path, "n1").peer_id != first.peer_id


def test_the_parts_of_a_store_belong_together(tmp_path: Path) -> None:
    first = load_identity(tmp_path, "n1", guarded=PARTS)
    assert {(tmp_path / part / MARKER_NAME).read_text().strip() for part in PARTS} == {first.store}
    assert load_identity(tmp_path, "n1", guarded=PARTS) == first


@pytest.mark.parametrize("part", PARTS)
def test_a_store_without_one_of_its_parts_is_refused(tmp_path: Path, part: str) -> None:
    load_identity(tmp_path, "n1", guarded=PARTS)
    (tmp_path / part / "0000000000000001.wal").write_bytes(b"votes")
    shutil.rmtree(tmp_path / part)
    with pytest.raises(IdentityError, match=f"{part} was deleted or replaced.*move {tmp_path} away"):
        load_identity(tmp_path, "n1", guarded=PARTS)
    (tmp_path / part).mkdir()  # as somebody may try
    with pytest.raises(IdentityError):
        load_identity(tmp_path, "n1", guarded=PARTS)


def test_a_part_of_another_store_is_refused(tmp_path: Path) -> None:
    for store in ("one", "other"):
        load_identity(tmp_path / store, "n1", guarded=PARTS)
    shutil.rmtree(tmp_path / "one" / "journal")
    shutil.copytree(tmp_path / "other" / "journal", tmp_path / "one" / "journal")
    with pytest.raises(IdentityError, match="belongs to another store"):
        load_identity(tmp_path / "one", "n1", guarded=PARTS)


def test_a_store_without_its_identity_gets_no_new_one(tmp_path: Path) -> None:
    load_identity(tmp_path, "n1", guarded=PARTS)
    (tmp_path / FILE_NAME).unlink()
    assert load_identity(tmp_path, "n1", guarded=PARTS)  # nothing was written yet: a crash in the first start
    (tmp_path / FILE_NAME).unlink()
    (tmp_path / "journal" / "0000000000000001.wal").write_bytes(b"votes")
    with pytest.raises(IdentityError, match=r"is missing, but .*journal holds data"):
        load_identity(tmp_path, "n1", guarded=PARTS)


def test_the_cluster_is_kept(tmp_path: Path) -> None:
    first = load_identity(tmp_path, "n1", guarded=PARTS)
    save_identity(tmp_path, dataclasses.replace(first, cluster="X", member=True))
    again = load_identity(tmp_path, "n2", guarded=PARTS)
    assert (again.peer_id, again.name, again.cluster, again.member) == (first.peer_id, "n2", "X", True)
    assert load_identity(tmp_path, "n2", guarded=PARTS) == again


def test_a_rename_keeps_the_peer_id(tmp_path: Path) -> None:
    first = load_identity(tmp_path, "n1")
    renamed = load_identity(tmp_path, "n2")
    assert (renamed.peer_id, renamed.created, renamed.name) == (first.peer_id, first.created, "n2")
    assert json.loads((tmp_path / FILE_NAME).read_text())["name"] == "n2"


def test_without_a_store_it_lives_in_memory() -> None:
    assert load_identity(None, "n1").peer_id != load_identity(None, "n1").peer_id


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b'{"format": 2, "peer_id": "abcdefgh", "name": "n", "created": 1}',
        b'{"format": 1, "peer_id": "short", "name": "n", "created": 1}',
        b'{"format": 1, "peer_id": "abcdefgh", "name": 7, "created": 1}',
        b'{"format": 1, "peer_id": "abcdefgh", "name": "n", "created": 1, "member": "yes"}',
    ],
)
def test_a_damaged_file_is_refused_not_replaced(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(damage)
    with pytest.raises(IdentityError):
        load_identity(tmp_path, "n1")
    assert (tmp_path / FILE_NAME).read_bytes() == damage


def test_file_and_directory_are_synced_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        events.append(f"sync {name}")
        real_sync(descriptor)

    def replace(src: Path, dst: Path) -> None:
        events.append(f"replace {src.name}")
        real_replace(src, dst)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    load_identity(tmp_path, "n1")
    assert events == [f"sync {FILE_NAME}.tmp", f"replace {FILE_NAME}.tmp", f"sync {tmp_path.name}"]


def test_a_left_over_temporary_file_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / (FILE_NAME + ".tmp")).write_bytes(b"torn and longer than the identity that replaces it" * 10)
    first = load_identity(tmp_path, "n1")
    assert load_identity(tmp_path, "n1") == first


def test_ids_use_the_whole_alphabet_evenly() -> None:
    rng = SeededRng(1)
    counts = dict.fromkeys(BASE62, 0)
    for _ in range(2000):
        for character in new_id(rng):
            counts[character] += 1
    assert min(counts.values()) > 16000 / 62 * 0.7
    assert max(counts.values()) < 16000 / 62 * 1.3


@pytest.mark.parametrize("text", ["", "abcdefg", "abcdefghi", "abcdefg-", "abcdefgé", None, 12345678])
def test_what_is_no_peer_id(text: object) -> None:
    assert not is_peer_id(text)


def test_a_mark_stays(tmp_path: Path) -> None:
    assert left_out_reason(tmp_path) == ""
    text = left_out_advice(tmp_path, "rescued without n3")
    mark_left_out(tmp_path, text)
    assert left_out_reason(tmp_path) == text
    assert "rescued without n3" in text and f"Move {tmp_path} away" in text
    assert [path.name for path in tmp_path.iterdir()] == [LEFT_OUT_FILE]
