"""The base of the models: Go's JSON habits, and its texts for what does not fit."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest

from jetcluster.errors import ApiError
from jetcluster.model.base import Int32, Int64, UInt64, WireModel, models


class Inner(WireModel):
    depth: Int32 = 0


class Sample(WireModel):
    empty_is_absent: ClassVar[frozenset[str]] = frozenset({"discard", "mode"})
    words: ClassVar[frozenset[str]] = frozenset({"mode"})

    name: str = "n"
    size: Int64 = 7
    seq: UInt64 = 0
    on: bool = False
    tags: list[str] | None = None
    inner: Inner | None = None
    discard: Literal["old", "new"] = "old"
    mode: Literal["a", "b"] = "a"
    compression: Literal["none", "s2"] = "none"


def refusal(payload: bytes, **how: bool) -> str:
    with pytest.raises(ApiError) as raised:
        Sample.parse(payload, **how)
    assert raised.value.err_code == 10025
    return raised.value.description


def test_keys_have_no_case_and_null_is_absent() -> None:
    found = Sample.parse(b'{"NAME": "x", "Size": null, "unknown": 1, "discard": ""}')
    assert (found.name, found.size, found.discard) == ("x", 7, "old")
    assert Sample.parse(b"null") == Sample()


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b'{"size": "1"}', "json: cannot unmarshal string into field size of type int64"),
        (b'{"size": 1.5}', "json: cannot unmarshal number 1.5 into field size of type int64"),
        (b'{"size": 9223372036854775808}', "json: cannot unmarshal number 9223372036854775808 into field size"),
        (b'{"seq": -1}', "json: cannot unmarshal number -1 into field seq of type int64"),
        (b'{"on": 1}', "json: cannot unmarshal number into field on of type bool"),
        (b'{"tags": {}}', "json: cannot unmarshal object into field tags of type array"),
        (b'{"inner": {"depth": true}}', "json: cannot unmarshal bool into field inner.depth of type int64"),
        (b'{"inner": {"depth": 2147483648}}', "number 2147483648 into field inner.depth"),
        (b"[]", "json: cannot unmarshal array into value of type object"),
        (b'{"discard": "other"}', 'can not unmarshal "\\"other\\""'),
        (b'{"compression": "zip"}', "unknown compression algorithm"),
    ],
)
def test_what_does_not_fit_is_refused_in_words_of_go(payload: bytes, text: str) -> None:
    assert text in refusal(payload)


def test_a_strict_reader_refuses_unknown_keys() -> None:
    assert 'json: unknown field "Other"' in refusal(b'{"Other": 1}', strict=True)
    assert Sample.parse(b'{"NAME": "x"}', strict=True).name == "x"


@pytest.mark.parametrize("value", [b'""', b"null"])
def test_empty_words_are_refused_only_when_asked_for(value: bytes) -> None:
    payload = b'{"mode": %b, "discard": ""}' % value
    assert Sample.parse(payload).mode == "a"
    assert "unmarshal" in refusal(payload, refuse_empty=True)
    assert Sample.parse(b'{"discard": ""}', refuse_empty=True).discard == "old"


def test_all_models_are_known() -> None:
    assert {Inner, Sample} <= set(models())
