"""No way of a message gets longer than its bound, and the page tells the ways as they are."""

from __future__ import annotations

import re

import pytest

from tests.path.counter import Call, Recorder, files
from tests.path.page import PAGE, lines
from tests.path.walks import walk_all
from tests.path.ways import WAYS, Way

SLACK = 3
"""Calls by which the page may differ: what happens by itself may be in between."""


@pytest.fixture(scope="module")
def ways() -> dict[str, list[Call]]:
    return walk_all()


@pytest.mark.parametrize("way", WAYS, ids=[way.key for way in WAYS])
def test_a_way_keeps_to_its_bound(ways: dict[str, list[Call]], way: Way) -> None:
    calls = ways[way.key]
    assert calls, "it was walked"
    assert len(calls) <= way.calls, "\n".join(lines(calls))
    assert len(files(calls)) <= way.files, files(calls)


@pytest.mark.parametrize("way", WAYS, ids=[way.key for way in WAYS])
def test_the_page_is_of_these_ways(ways: dict[str, list[Call]], way: Way) -> None:
    """Else: python -m tests.path --write"""
    row = re.search(rf"^\| {re.escape(way.title)} \| (\d+) \| \d+ \|", PAGE.read_text(), re.MULTILINE)
    assert row is not None
    assert abs(int(row[1]) - len(ways[way.key])) <= SLACK


def test_the_counter_counts() -> None:
    from jetcluster.protocol.subjects import is_valid_literal

    recorder = Recorder()
    recorder.install()
    try:
        recorder.begin()
        is_valid_literal(b"a.b")
        calls = recorder.end()
        is_valid_literal(b"a.b")
    finally:
        recorder.uninstall()
    assert calls[0] == Call("protocol/subjects.py", "is_valid_literal", 0)
    assert [call.depth for call in calls[1:]] == [1] * (len(calls) - 1)
    assert files(calls) == ["protocol/subjects.py"]
