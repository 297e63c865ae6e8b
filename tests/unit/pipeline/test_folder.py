"""Folders of an archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.pipeline.archive import planned_end
from jetcluster.pipeline.folder import open_folder
from jetcluster.pipeline.result import UsageError


def test_folders(tmp_path: Path) -> None:
    folder = open_folder(None, f"file://{tmp_path}")
    folder.create("a/b", "é")
    (tmp_path / "a" / "_SUCCESS").write_text("")
    (tmp_path / "a" / ".b.crc").write_text("")
    assert folder.list("a") == {"b": 2}
    assert folder.list("nowhere") == {}
    assert folder.read("a/b") == "é"
    folder.remove("a")
    folder.remove("a")
    assert folder.list("a") == {}
    with pytest.raises(OSError, match="only Spark reaches it"):
        open_folder(None, "s3a://bucket/x")


def test_planned_ends() -> None:
    metadata = '{"batchWatermarkMs":0,"conf":{}}'
    assert planned_end(f'v1\n{metadata}\n{{"ORDERS": {{"seq": 30001, "created": "x"}}}}', "ORDERS") == 30001
    assert planned_end(f'v1\n{metadata}\n{{"ORDERS": 7}}\n', "ORDERS") == 7
    with pytest.raises(UsageError, match="of another stream"):
        planned_end(f'v1\n{metadata}\n{{"OTHER": 7}}', "ORDERS")
    with pytest.raises(UsageError, match="of another kind"):
        planned_end("v1\n-\n-\n-", "ORDERS")
