"""Restore points as files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from jetcluster.backup.point import Blob, RestorePoint, Segment, StreamPoint
from jetcluster.backup.sequences import DamagedBackupError

STREAM = StreamPoint(
    "S", "2026-11-01T00:00:00Z", {"name": "S"}, {"messages": 3, "last_seq": 4}, Blob.of(b"live"),
    (Segment(Blob.of(b"a"), 1, 4, 3, 99),), Blob.of(b"consumers"), (4, "ab"),
)  # fmt: skip
POINT = RestorePoint(
    "20261129T045548Z", 5, 9, (STREAM, replace(STREAM, name="T", consumers=None)), {"limits": {}}, 7, 8
)


def test_a_point_comes_back() -> None:
    assert RestorePoint.from_json(POINT.to_json(), "there") == POINT
    assert POINT.path == "points/20261129T045548Z.json"
    assert POINT.stream("T") == POINT.streams[1] and POINT.stream("U") is None
    assert len(POINT.blobs) == 3


def test_a_blob_is_named_by_its_contents() -> None:
    assert Blob.of(b"").path == "blobs/e3/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_every_changed_byte_of_a_point_is_seen() -> None:
    data = POINT.to_json()
    for at in range(len(data)):
        if chr(data[at]).isspace():
            continue
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(DamagedBackupError):
            RestorePoint.from_json(changed, "there")


@pytest.mark.parametrize(
    ("change", "text"), [({"format": 2}, "format 2"), ({"name": "../x"}, "is named"), ({"streams": [1]}, "no restore"),
                         ({"streams": None}, "no restore")],
)  # fmt: skip
def test_a_point_with_a_right_checksum_and_wrong_fields_is_refused(change: dict[str, object], text: str) -> None:
    from jetcluster.backup.point import _checksum

    found = json.loads(POINT.to_json()) | change
    found.pop("sha256")
    with pytest.raises(DamagedBackupError, match=text):
        RestorePoint.from_json(json.dumps({**found, "sha256": _checksum(found)}).encode(), "there")
