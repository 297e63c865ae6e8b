"""What every field of a request's model takes and refuses, whatever a client writes there."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal

import pytest

from jetcluster.errors import ApiError
from jetcluster.model import api, base, consumer, stream
from jetcluster.model.base import Field, Int32, Int64, UInt64, WireModel


def even(text: str) -> str:
    if len(text) % 2:
        raise ValueError(f"{text} is odd")
    return text.upper()


class Inner(WireModel):
    empty_is_absent = frozenset({"choice"})

    choice: Literal["one", "two"] = "one"
    numbers: list[Int64] = Field(default_factory=list)


class Outer(WireModel):
    text: str = ""
    flag: bool = False
    small: Int32 = 0
    count: UInt64 = 0
    pairs: dict[str, str] = Field(default_factory=dict)
    inner: Inner | None = None
    inners: list[Inner] = Field(default_factory=list)
    even: Annotated[str, even] = ""
    anything: dict[str, Any] | None = None


class Wider(Outer):
    more: bool = False


def refused(value: Any, *, strict: bool = False) -> str:
    with pytest.raises(ApiError) as caught:
        Outer.from_object(value, strict=strict)
    assert (caught.value.code, caught.value.err_code) == (400, 10025)
    return caught.value.description.removeprefix("invalid JSON: ").removeprefix("json: cannot unmarshal ")


def test_defaults_are_each_objects_own() -> None:
    one, other = Outer(), Outer()
    one.pairs["a"] = "b"
    assert other.pairs == {}
    assert Outer.from_object(None) == other != one
    assert list(Wider.model_fields) == [*Outer.model_fields, "more"]


def test_what_is_given_is_read_whatever_the_case_of_its_key() -> None:
    got = Wider.from_object(
        {"TEXT": "x", "Small": -(2**31), "inner": {"Choice": ""}, "inners": [{"numbers": [1]}], "more": True,
         "even": "ab", "anything": {"a": [None]}, "flag": None, "other": 1}
    )  # fmt: skip
    assert got.model_dump() == {
        "text": "x", "flag": False, "small": -(2**31), "count": 0, "pairs": {},
        "inner": {"choice": "one", "numbers": []}, "inners": [{"choice": "one", "numbers": [1]}],
        "even": "AB", "anything": {"a": [None]}, "more": True,
    }  # fmt: skip
    assert Wider.from_object(got.model_dump() | {"even": "ab"}) == got


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "array into value of type object"),
        ({"small": True}, "bool into field small of type int64"),
        ({"small": 2**31}, "number 2147483648 into field small of type int64"),
        ({"small": 1.0}, "number 1.0 into field small of type int64"),
        ({"count": -1}, "number -1 into field count of type int64"),
        ({"count": 10**90}, f"number 1{'0' * 56} into field count of type int64"),
        ({"flag": 0}, "number into field flag of type bool"),
        ({"text": {}}, "object into field text of type string"),
        ({"pairs": []}, "array into field pairs of type object"),
        ({"pairs": {"a": None}}, "null into field pairs.a of type string"),
        ({"inner": 7}, "number into field inner of type object"),
        ({"inner": {"numbers": ["x"]}}, "string into field inner.numbers of type int64"),
        ({"inners": [None]}, "null into field inners of type object"),
        ({"inners": [{"choice": ["two"]}]}, 'can not unmarshal "["two"]"'),
        ({"inners": {}}, "object into field inners of type array"),
        ({"even": "odd"}, "odd is odd"),
        ({"even": 1}, "number into field even of type string"),
        ({"text": 1, "flag": 1}, "number into field text of type string"),
        ({"flag": 1, "text": 1}, "number into field text of type string"),
    ],
)
def test_what_is_refused_and_the_first_field_in_wire_order_says_so(given: Any, text: str) -> None:
    assert refused(given) == text


def test_strict_goes_all_the_way_down() -> None:
    assert refused({"inners": [{"x": 1}]}, strict=True) == 'json: unknown field "x"'
    assert refused({"y": 1, "text": 1}, strict=True) == 'json: unknown field "y"'
    assert Outer.from_object({"inners": [{"x": 1}], "anything": {"z": 1}}).inners == [Inner()]


def test_a_copy_leaves_the_original_alone() -> None:
    one = Outer(text="a")
    assert (one.model_copy(update={"text": "b"}).text, one.text) == ("b", "a")


ALL = [
    model
    for module in (api, consumer, stream)
    for model in vars(module).values()
    if isinstance(model, type) and issubclass(model, base.WireModel) and model is not base.WireModel
]
VALUES = ("", "a", "none", "2026-01-01T00:00:00Z", 0, 1, -1, 2**63, -(2**63) - 1, 2**64, 1.5, True, None)


def any_value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(8) if depth else 0
    if kind == 6:
        return [any_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    if kind == 7:
        return {str(rng.choice(VALUES)): any_value(rng, depth - 1) for _ in range(rng.randrange(3))}
    return rng.choice(VALUES)


@pytest.mark.parametrize("model", ALL)
def test_every_model_reads_a_value_or_refuses_it(model: type[WireModel]) -> None:
    rng = random.Random(5)
    read = 0
    for _ in range(200):
        value = {rng.choice(list(model.model_fields)): any_value(rng, 3) for _ in range(rng.randrange(3))}
        try:
            got = model.from_object(value)
        except ApiError as error:
            assert error.err_code == 10025
        else:
            read += 1
            assert model.from_object(got.model_dump()) == got
    assert 0 < read < 200
