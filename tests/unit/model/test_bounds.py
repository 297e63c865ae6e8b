from __future__ import annotations

import json
import time
from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.model.api import StreamConfigRequest
from jetcluster.model.base import MAX_SOURCES, MAX_VALUES, check_bounds


def sources(count: int) -> dict[str, Any]:
    return {"name": "S", "sources": [{"name": f"s{i}"} for i in range(count)]}


TRANSFORM = {"src": "a", "dest": "b"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (sources(MAX_SOURCES + 1), "too many sources, maximum allowed is 1000"),
        ({"SOURCES": [{}] * (MAX_SOURCES + 1)}, "too many sources"),
        ({"config": sources(MAX_SOURCES + 1)}, "too many sources"),
        ({"sources": [{"subject_transforms": [TRANSFORM] * 600}] * 2}, "too many subject transforms"),
        ({"mirror": {"subject_transforms": [TRANSFORM] * 1001}}, "too many subject transforms"),
        ({"subjects": ["s"] * 10_001}, "too many subjects"),
        ({"config": {"filter_subjects": ["s"] * 4097}}, "too many filter subjects"),
        ({"metadata": {str(i): "" for i in range(10_001)}}, "too many metadata entries"),
        ({"placement": {"tags": ["t"] * 1001}}, "too many placement tags"),
    ],
)
def test_too_many(body: Any, text: str) -> None:
    with pytest.raises(ApiError, match=text) as caught:
        check_bounds(body)
    assert caught.value.err_code == 10052


@pytest.mark.parametrize(
    "body", [{"a": [{}] * MAX_VALUES}, [[]] * (MAX_VALUES + 1), {str(i): 1 for i in range(50_001)}]
)
def test_too_much_of_anything(body: Any) -> None:
    with pytest.raises(ApiError, match="values") as caught:
        check_bounds(body)
    assert caught.value.err_code == 10025


@pytest.mark.parametrize("body", [None, 1, "x", [], sources(MAX_SOURCES), {"subjects": ["s"] * 10_000}])
def test_what_is_allowed(body: Any) -> None:
    check_bounds(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"name":"N","sources":[' + b",".join([b"{}"] * 300_000) + b"]}",
        b'{"name":"N","metadata":' + json.dumps({f"k{i}": "v" for i in range(50_000)}).encode() + b"}",
        b'{"name":"N","sources":[{"name":"s","subject_transforms":['
        + b",".join([b'{"src":"a","dest":"b"}'] * 19_000)
        + b"]}]}",
    ],
)
def test_a_refusal_takes_little_more_than_the_decoding(body: bytes) -> None:
    StreamConfigRequest.parse(b'{"name":"N"}')  # builds the model
    begin = time.process_time()
    json.loads(body)
    decoding = time.process_time() - begin
    begin = time.process_time()
    with pytest.raises(ApiError):
        StreamConfigRequest.parse(body)
    assert time.process_time() - begin < 3 * decoding + 0.03
