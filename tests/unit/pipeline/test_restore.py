"""The configuration of a stream that is made out of an archive."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.pipeline import main, restore
from jetcluster.pipeline.result import UsageError
from jetcluster.spark import stream_state

ARCHIVED: dict[str, Any] = {
    "name": "ORDERS", "subjects": ["orders.>"], "num_replicas": 3, "max_age": 10**9, "max_msgs": 5,
    "mirror": {"name": "X"}, "mirror_direct": True, "sealed": True, "republish": {"src": ">", "dest": "r.>"},
    "subject_transform": {"src": "a", "dest": "b"}, "metadata": {"a": "b"},
}  # fmt: skip


def config(*words: str) -> dict[str, Any]:
    args = main.parser_of("restore", restore).parse_args(["--from", "x", *words])  # type: ignore[arg-type]
    return restore.target_config(ARCHIVED, args, "NEW", 17)


def test_exact_keeps_all_but_ties_to_other_streams() -> None:
    assert config() == {
        "name": "NEW", "subjects": ["orders.>"], "num_replicas": 3, "max_age": 10**9, "max_msgs": 5,
        "republish": {"src": ">", "dest": "r.>"}, "subject_transform": {"src": "a", "dest": "b"},
        "metadata": {"a": "b"},
    }  # fmt: skip


def test_publishing_does_not_transform_twice() -> None:
    made = config("--mode", "fence")
    assert (made["first_seq"], made["allow_atomic"]) == (17, True)
    assert not {"subject_transform", "republish", "mirror", "sealed"} & made.keys()
    assert "allow_atomic" not in config("--mode", "msgid")


def test_changes() -> None:
    made = config("--replicas", "1", "--subjects", "a.>, b", "--no-limits")
    assert (made["num_replicas"], made["subjects"]) == (1, ["a.>", "b"])
    assert (made["max_age"], made["max_msgs"], made["max_msgs_per_subject"]) == (0, -1, -1)


@pytest.mark.parametrize("number", [10059, 10039])  # nats-server's, and the specification's
def test_a_stream_that_is_not_there_is_made(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    asked: list[str] = []

    def api(subject: str, *_: Any) -> dict[str, Any]:
        asked.append(subject)
        if "INFO" in subject:
            raise ApiError(404, number, "stream not found")
        return {}

    monkeypatch.setattr(stream_state, "ask", lambda _options, question: question(SimpleNamespace(api=api)))
    args = main.parser_of("restore", restore).parse_args(["--from", "x", "--create"])  # type: ignore[arg-type]
    plan: Any = SimpleNamespace(target="T", config={})
    restore._make_sure(plan, args)
    assert asked == ["STREAM.INFO.T", "STREAM.CREATE.T"]
    args.create = False
    with pytest.raises(UsageError, match="there is no stream T; --create"):
        restore._make_sure(plan, args)


@pytest.mark.parametrize("words", [["--upto-seq", "0"], ["--source-seq"], ["--start-after", "3"]])
def test_usage(words: list[str]) -> None:
    args = main.parser_of("restore", restore).parse_args(["--from", "x", *words])  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        restore.check(args)


def test_what_is_no_archive_is_told_before_spark_is_started(tmp_path: Path) -> None:
    args = main.parser_of("restore", restore).parse_args(["--from", str(tmp_path)])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no archive there"):
        restore.check(args)
