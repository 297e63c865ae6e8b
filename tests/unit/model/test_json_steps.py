"""JSON in steps is what `json.loads` makes of it, and refused where that refuses it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.model import json_steps
from jetcluster.model.json_steps import decoding

pytestmark = pytest.mark.thorough

SIGNS = 'a,":{}[]\\ \u00e9'
TEXTS = st.text(st.sampled_from(SIGNS), max_size=6)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=12) | st.dictionaries(TEXTS, inner, max_size=8), max_leaves=60
)


def result(text: str) -> tuple[Any, int]:
    """The value and the number of steps."""
    steps, count = decoding(text), 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value, count
        count += 1


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_steps, "WHOLE_CHARS", 8)
    monkeypatch.setattr(json_steps, "PIECE_CHARS", 5)


@settings(max_examples=300)
@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_it_is_what_loads_makes(value: Any, indent: int | None, compact: bool) -> None:
    text = json.dumps(value, indent=indent, separators=(",", ":") if compact else None)
    assert result(text)[0] == value
    assert json.dumps(result(f" {text}\n")[0]) == json.dumps(value), "with its members in their order"


@settings(max_examples=300)
@given(VALUES, st.data())
def test_what_loads_refuses_is_refused(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    for broken in (
        text[:at] + data.draw(st.sampled_from(',":{}[]x')) + text[at:],
        text[:at],
        text[:at] + text[at + 1 :],
    ):
        try:
            expected = json.loads(broken)
        except ValueError:
            with pytest.raises(ValueError):
                result(broken)
        else:
            assert result(broken)[0] == expected


def test_a_page_of_subjects_takes_many_short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    subjects = {f'orders.{number}.",{{[': number for number in range(100_000)}
    answer = {"result": {"state": {"subjects": subjects, "deleted": list(range(50_000)), "lost": None}, "page": [1, 2]}}
    decoded: list[int] = []
    whole = json.loads

    def loads(text: str) -> Any:
        decoded.append(len(text))
        return whole(text)

    monkeypatch.setattr(json_steps.json, "loads", loads)
    for separators, least in (((",", ":"), 200), ((", ", ": "), 400)):
        found, steps = result(json.dumps(answer, separators=separators))
        assert found == answer
        assert steps > least and max(decoded, default=0) <= json_steps.WHOLE_CHARS


def test_many_members_that_cannot_be_cut_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that is refused costs as much as one that is taken, so none may be tried again and again."""
    monkeypatch.undo()
    value = {f"{number}": {"a": list(range(3000))} for number in range(100)}
    text = json.dumps(value)
    read = 0
    whole = json.loads

    def loads(piece: str) -> Any:
        nonlocal read
        read += len(piece)
        return whole(piece)

    monkeypatch.setattr(json_steps.json, "loads", loads)
    assert result(text)[0] == value
    assert read < 3 * len(text)


@pytest.mark.parametrize("level", ["[", '{"a":'])
def test_what_is_too_deep_takes_as_many_steps_whoever_calls(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server and its simulation are to do the same however much of the stack is left."""
    monkeypatch.undo()

    def steps(more: int) -> int:
        if more:
            return steps(more - 1)
        count = 0
        with pytest.raises(RecursionError):
            for _ in decoding(level * 100_000):
                count += 1
        return count

    assert steps(0) == steps(200) > 0


def test_levels_that_are_long_are_bounded() -> None:
    levels = json_steps.MAX_LEVELS
    assert result("[" * levels + "]" * levels + " " * 100)[0]
    with pytest.raises(RecursionError):
        result("[" * (levels + 20) + "]" * (levels + 20) + " " * 100)
