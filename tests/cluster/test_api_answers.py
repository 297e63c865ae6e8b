"""Answers of `$JS.API` are made as nats-server's: every one, errors too, keys, their types and order. What differs is
in api_differences.py, with the reason, and nowhere else."""

from __future__ import annotations

import pytest

from jetcluster.api.endpoints import ALL
from tests.cluster import api_answers
from tests.cluster.api_differences import DIFFERENT

pytestmark = pytest.mark.cluster

OURS = {"ACCOUNT.INFO", "$OBJ", "SERVER.EVACUATE"}
"""Endpoints that nats-server does not have, or answers in another form."""


@pytest.mark.parametrize("size", [1, 3])
async def test_every_answer_is_made_as_the_recorded_one(server: str, size: int) -> None:
    found = await api_answers.converse(server, size)
    wanted = api_answers.recorded()[str(size)]
    assert found.keys() == wanted.keys(), "record them: python -m tests.cluster.api_answers"
    told = [(name, text) for name, shape in wanted.items() for text in api_answers.differences(shape, found[name])]
    if server == "nats-server":
        assert told == []
        return
    listed = [entry for entries in DIFFERENT.values() for entry in entries if entry[0] in ("", str(size))]
    unexplained = [(name, text) for name, text in told if not any(_is(entry, name, text) for entry in listed)]
    assert unexplained == []
    assert [entry for entry in listed if not any(_is(entry, *one) for one in told)] == [], (
        "they are gone: take them out"
    )


def _is(entry: tuple[str, str, str], name: str, text: str) -> bool:
    return entry[1] == name and (entry[2] == "*" or text.startswith(entry[2]))


def test_every_endpoint_is_asked() -> None:
    subjects = {asked.subject for asked in api_answers.requests(1)}
    missing = {each.name for each in ALL if not any(f"{subject}.".startswith(f"{each.name}.") for subject in subjects)}
    assert missing == OURS


def test_what_differs_is_reported_with_its_place() -> None:
    one = api_answers.shape({"a": 1, "b": {"c": "x"}, "l": [{"d": 1}, {"d": 1, "e": None}], "lag": 1})
    other = api_answers.shape({"b": {"c": 2, "f": 1}, "a": 1, "l": [{"e": None}]})
    assert api_answers.differences(one, one) == []
    told = {": order", ".b.f: not there", ".b.c: int for str", ".l[].d: missing"}
    assert set(api_answers.differences(one, other)) == told
    merged = api_answers.together(one, api_answers.shape({"a": 1, "l": [], "z": True}))
    assert api_answers.differences(merged, one) == []
    assert [name for name, _ in merged] == ["a", "b?", "l", "z?"]
    error, another = ({"error": {"code": 404, "err_code": number, "description": "d"}} for number in (10059, 10014))
    assert api_answers.differences(api_answers.shape(error), api_answers.shape(another)) == [
        ".error.err_code: 10014 for 10059"
    ]
