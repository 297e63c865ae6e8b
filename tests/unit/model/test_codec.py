"""JSON at the edge: lenient as Go's decoder, with its words for what is wrong; long answers in steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.budget import at_once
from jetcluster.errors import ApiError
from jetcluster.model import codec


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b" ", "unexpected end of JSON input"),
        (b'{"a"', "unexpected EOF"),
        (b'{"a": "b', "unexpected EOF"),
        (b"{a}", "invalid character 'a' looking for beginning of object key string at offset 2"),
        (b'{"a" 1}', "invalid character '1' after object key at offset 6"),
        (b'{"a":1 2}', "invalid character '2' after object key:value pair at offset 8"),
        (b"1 x", "invalid character 'x' after top-level value at offset 3"),
        (b'"\\x"', "in string escape code"),
        (b"NaN", "invalid character 'N' looking for beginning of value"),
        (b"[" * 100_000, codec.MAX_DEPTH_TEXT),
    ],
)
def test_what_is_no_json_is_refused_in_words_of_go(payload: bytes, text: str) -> None:
    with pytest.raises(ApiError) as raised:
        codec.loads(payload)
    assert raised.value.err_code == 10025
    assert text in raised.value.description


def test_text_that_is_no_text_becomes_the_replacement_character() -> None:
    assert codec.loads(b'"a\xff"') == "a\ufffd"
    assert codec.loads(b'{"\\ud800": ["\\udfff", "\\ud83d\\ude00", 1]}') == {"\ufffd": ["\ufffd", "\U0001f600", 1]}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_an_encoding_in_steps_is_that_of_one(indent: int | None, ensure_ascii: bool) -> None:
    value: dict[str, Any] = {"é": [{"n": n, "s": "ü"} for n in range(2000)], "none": None}
    steps = codec.encoding(value, indent=indent, ensure_ascii=ensure_ascii)
    separators = (",", ":") if indent is None else None
    wanted = json.dumps(value, indent=indent, separators=separators, ensure_ascii=ensure_ascii).encode()
    assert at_once(steps) == wanted
    assert sum(1 for _ in codec.encoding(value)) > 5, "a step is short"
    assert codec.dumps(value) == at_once(codec.encoding(value))


@pytest.mark.parametrize("key", ["subjects", "deleted"])
def test_only_an_answer_with_a_long_list_is_long(key: str) -> None:
    assert not codec.is_long({"state": {key: [0] * codec.LONG_LIST_ITEMS}})
    assert codec.is_long({"state": {key: [0] * (codec.LONG_LIST_ITEMS + 1)}})
    assert not codec.is_long({"state": None})
    assert not codec.is_long({key: [0] * (codec.LONG_LIST_ITEMS + 1)})
