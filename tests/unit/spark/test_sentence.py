"""Errors begin with their sentence in what Spark shows (spark/sentence.py)."""

from __future__ import annotations

import io
import os
from typing import NoReturn

import pytest

pytest.importorskip("pyspark", reason="pip install 'jetcluster[spark]'")

from jetcluster.client.reply import ConnectionLostError
from jetcluster.spark import sentence
from jetcluster.spark.sentence import SentenceFirst


@SentenceFirst()
def fails() -> NoReturn:
    try:
        int("x")
    except ValueError as error:
        raise ConnectionLostError("n1: refused") from error


@SentenceFirst()
def fails_otherwise() -> NoReturn:
    raise KeyError("x")


def shown_by_a_worker(error: BaseException) -> list[str]:
    """The lines that the worker sends to Spark, behind two lengths."""
    from pyspark.util import handle_worker_exception

    out = io.BytesIO()
    handle_worker_exception(error, out)
    return out.getvalue()[8:].decode().splitlines()


def test_the_sentence_is_the_first_line_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence, "is_worker", lambda: True)
    monkeypatch.setattr(os, "environ", {})
    with pytest.raises(ConnectionLostError) as found:
        fails()
    lines = shown_by_a_worker(found.value)
    assert lines[0] == "jetcluster.client.reply.ConnectionLostError: n1: refused"
    assert "Traceback (most recent call last):" in lines and any("in fails" in line for line in lines)
    assert any("invalid literal for int" in line for line in lines)


def test_errors_of_others_and_other_processes_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    assert not sentence.is_worker()
    with pytest.raises(ConnectionLostError) as found:
        fails()
    assert shown_by_a_worker(found.value)[0] == "Traceback (most recent call last):"
    monkeypatch.setattr(sentence, "is_worker", lambda: True)
    with pytest.raises(KeyError):
        fails_otherwise()
    assert not os.environ
