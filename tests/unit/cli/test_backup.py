"""The commands' words, exit codes and output; nothing here needs a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jetcluster.backup.folder import FolderStorage
from jetcluster.backup.run import BackupRun
from jetcluster.cli.main import main
from testkit.twins.time import ManualTime, SeededRng
from tests.unit.backup.accounts import FakeAccount, FakeStream

NOWHERE = ("-s", "nats://127.0.0.1:1", "--no-context")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with three points of a stream."""
    stream, time = FakeStream("S"), ManualTime()
    for _ in range(3):
        stream.add(50)
        BackupRun(FakeAccount(stream), FolderStorage(str(tmp_path)), time, SeededRng(1), lambda _: None).run()
        time.advance(3600)
    return tmp_path


def test_points_are_listed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backup", "list", str(place)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["POINT", "STREAMS", "MESSAGES", "SECONDS", "READ", "WRITTEN"]
    assert [line.split()[2] for line in lines[1:]] == ["50", "100", "150"]
    assert all(len(line) <= 80 for line in lines)
    assert main(["backup", "list", str(place), "--json"]) == 0
    assert [one["messages"] for one in json.loads(capsys.readouterr().out)["points"]] == [50, 100, 150]


def test_a_point_is_verified_and_a_damaged_one_is_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backup", "verify", str(place)]) == 0
    assert "S: 150 messages verified" in capsys.readouterr().out
    first = sorted(path.stem for path in (place / "points").iterdir())[0]
    when = f"{first[:4]}-{first[4:6]}-{first[6:8]}T{first[9:11]}:{first[11:13]}:59Z"
    assert main(["backup", "verify", str(place), "--point", when]) == 0
    assert "S: 50 messages verified" in capsys.readouterr().out
    for blob in (place / "blobs").glob("*/*"):
        blob.write_bytes(b"other")
    assert main(["backup", "verify", str(place)]) == 4
    assert "damaged" in capsys.readouterr().err


def test_old_points_are_removed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backup", "prune", str(place)]) == 1
    assert main(["backup", "prune", str(place), "--keep", "1"]) == 0
    assert "removed 2 points and" in capsys.readouterr().out
    assert main(["backup", "verify", str(place)]) == 0
    assert not (place / "lock.json").exists()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["backup", "list", "/not/there"], 2, "no folder"),
        (["backup", "verify", "DEST", "--point", "2001-01-01T00:00"], 1, "earlier than the points; there are: 2"),
        (["restore", "DEST", "--point", "yesterday", *NOWHERE], 1, "yesterday is no point"),
        (["restore", "DEST", "--point", "latest", *NOWHERE], 2, "no server could be reached"),
        (["restore", "DEST", "--skip", "T", *NOWHERE], 1, "no stream T"),
        (["restore", "DEST", "--skip", "S", *NOWHERE], 1, "is wanted"),
        (["restore", "DEST", "--missing", "--overwrite", *NOWHERE], 1, "left by --missing"),
        (["backup", "DEST", *NOWHERE], 2, "no server could be reached"),
        (["restore", "DEST", *NOWHERE], 2, "no server could be reached"),
        (["restore", "DEST", "--stream", "T", *NOWHERE], 1, "no stream T"),
        (["restore", "DEST", "--as", "T", *NOWHERE], 1, "for one stream"),
        (["backup", "ftp://there", *NOWHERE], 2, "only folders"),
        (["backup", "s3://", *NOWHERE], 2, "no bucket"),
    ],
)
def test_refusals(place: Path, words: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(place) if word == "DEST" else word for word in words]) == code
    assert text in capsys.readouterr().err


def test_words_that_are_none(place: Path) -> None:
    assert main(["backup", "show", str(place)]) == 2
    assert main(["backup", "list", str(place), "more"]) == 2


def test_an_empty_folder_has_no_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restore", str(tmp_path), *NOWHERE]) == 1
    assert "no restore point" in capsys.readouterr().err
