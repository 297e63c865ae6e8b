"""Arguments of a restore that are refused before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.pipeline import main, restore
from jetcluster.pipeline.result import UsageError


@pytest.mark.parametrize("words", [["--upto-seq", "0"], ["--source-seq"], ["--start-after", "3"]])
def test_usage(words: list[str]) -> None:
    args = main.parser_of("restore", restore).parse_args(["--from", "x", *words])  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        restore.check(args)


def test_what_is_no_archive_is_reported_before_spark_is_started(tmp_path: Path) -> None:
    args = main.parser_of("restore", restore).parse_args(["--from", str(tmp_path)])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no archive there"):
        restore.check(args)
