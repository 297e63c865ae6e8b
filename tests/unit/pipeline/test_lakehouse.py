"""The arguments of `lakehouse`, without Spark and without a server."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
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
        ("--stream S --delta d --format avro --schema a", "--schema is for --format json"),
        ("--stream S --delta d --format json --schema-file a", "--schema-file is for --format avro and protobuf"),
        ("--stream S --delta d --format avro", "--format avro needs --schema-file"),
        ("--stream S --delta d --format avro --schema-file /none --message M", "--message is for --format protobuf"),
        ("--stream S --delta d --format protobuf --schema-file /none", "--message is for --format protobuf"),
        (
            "--stream S --delta d --format protobuf --schema-file a --schema-file b --message M",
            "takes one --schema-file",
        ),
        ("--stream S --delta d --format avro --schema-file /none", "--schema-file: .*/none"),
        ("--stream S --delta d --format protobuf --schema-file /none --message M", "--schema-file: .*/none"),
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


@pytest.mark.parametrize(("form", "package"), [("avro", "fastavro"), ("protobuf", "google.protobuf")])
def test_what_a_form_of_payloads_needs_is_named(form: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find: Any = importlib.util.find_spec
    words = ["--stream", "S", "--delta", "d", "--format", form, "--schema-file", "f"]
    words += ["--message", "M"] if form == "protobuf" else []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(EnvironmentProblem, match=rf'needs {package}.*pip install "jetcluster\[{form}\]"'):
        lakehouse.check(asked(*words))


def test_a_schema_is_looked_at_before_spark_starts(tmp_path: Path) -> None:
    """Also for names that the table itself has: they are others for a bucket."""
    file = tmp_path / "order.avsc"
    file.write_text('{"type": "record", "name": "R", "fields": [{"name": "_key", "type": "int"}]}')
    words = ("--bucket", "B", "--delta", "d", "--format", "avro", "--schema-file", str(file))
    with pytest.raises(UsageError, match=r"order.avsc: _key cannot be a column: there is one of that name"):
        lakehouse.check(asked(*words))
    file.write_text("{")
    with pytest.raises(UsageError, match=r"order.avsc: it is no Avro schema"):
        lakehouse.check(asked(*words))
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"--schema-file: .*utf-8"):
        lakehouse.check(asked(*words))
