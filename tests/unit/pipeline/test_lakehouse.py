"""The arguments of `lakehouse`, without Spark and without a server."""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

import pytest

from jetcluster.pipeline import lakehouse
from jetcluster.pipeline.result import EnvironmentProblem, UsageError


def asked(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    lakehouse.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--stream S", "name a table"),
        ("--stream S --delta d --schema a", "is for --format json"),
        ("--stream S --delta d --max-per-batch 0", "must be 1 or more"),
        ("--stream S --delta d --every 0", "must be more than 0"),
        ("--stream S --iceberg a.b --catalog type", "expected key=value"),
    ],
)
def test_arguments_that_do_not_fit(words: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(UsageError, match=why):
        lakehouse.check(asked(*words.split()))


def test_a_stream_or_a_bucket() -> None:
    assert lakehouse.stream_of(asked("--stream", "S")) == "S"
    assert lakehouse.stream_of(asked("--bucket", "B")) == "KV_B"
    for words in ((), ("--stream", "S", "--bucket", "B")):
        with pytest.raises(SystemExit):
            asked(*words)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "deltalake" else find(name))
    with pytest.raises(EnvironmentProblem, match=r'needs deltalake.*pip install "jetcluster\[lakehouse\]"'):
        lakehouse.check(asked("--stream", "S", "--delta", "d"))
