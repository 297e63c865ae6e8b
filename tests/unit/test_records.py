"""`records.dataclass` beside the standard library's: the same meaning, compiled later."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from jetcluster import records

OPTIONS = (
    {}, {"slots": True}, {"frozen": True}, {"slots": True, "frozen": True}, {"slots": True, "eq": False},
    {"kw_only": True}, {"frozen": True, "kw_only": True},
)  # fmt: skip


def made(decorator: Callable[..., Any], options: dict[str, bool]) -> Any:
    class Made:
        constant: ClassVar[int] = 7
        first: int
        second: list[int] = dataclasses.field(default_factory=list)
        third: str = "c"
        hidden: int = dataclasses.field(default=1, repr=False, compare=False)
        later: int = dataclasses.field(init=False, default=0)

    return decorator(**options)(Made)


def outcome(act: Callable[[Any], Any], made: Any) -> Any:
    try:
        return act(made)
    except Exception as error:
        return type(error), str(error)


ACTS: tuple[Callable[[Any], Any], ...] = (
    lambda made: repr(made(first=1)).partition("Made")[2],
    lambda made: dataclasses.asdict(made(first=1, second=[2], third="d", hidden=9)),
    lambda made: made(first=1) == made(first=1, hidden=5),
    lambda made: made(first=1) == made(first=2),
    lambda made: made(first=1) == 1,
    lambda made: made(1, [2]).second,
    lambda made: made(),
    lambda made: made(first=1, later=2),
    lambda made: made(first=1).second is made(first=1).second,
    lambda made: dataclasses.asdict(dataclasses.replace(made(first=1), third="z")),
    lambda made: isinstance(hash(dataclasses.replace(made(first=1), second=())), int),
    lambda made: len({made(first=1, second=()), made(first=1, second=(), hidden=3)}),
    lambda made: setattr(made(first=1), "first", 2),
    lambda made: delattr(made(first=1), "first"),
    lambda made: [one.name for one in dataclasses.fields(made)],
    lambda made: made.__match_args__,
    lambda made: made.constant,
    lambda made: dataclasses.asdict(copy.deepcopy(made(first=1, second=[3]))),
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_the_standard_librarys(options: dict[str, bool]) -> None:
    for number, act in enumerate(ACTS):
        ours, theirs = made(records.dataclass, options), made(dataclasses.dataclass, options)
        wanted = outcome(act, theirs)
        assert outcome(act, ours) == wanted, number
        assert outcome(act, ours) == wanted, f"{number}, once more"


@records.dataclass(slots=True, frozen=True)
class Base:
    number: int = 1

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("negative")


@records.dataclass(slots=True, frozen=True)
class Derived(Base):
    text: str = ""

    def __repr__(self) -> str:
        return "its own"


def test_classes_build_on_each_other() -> None:
    one = Derived(2, "a")
    assert (repr(one), repr(Base(2)), one == Derived(2, "a"), one == Base(2)) == (
        "its own",
        "Base(number=2)",
        True,
        False,
    )
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(ValueError, match="negative"):
        Derived(-1)


def test_nothing_is_compiled_before_it_is_used() -> None:
    @records.dataclass
    class Made:
        number: int

    before = dict(vars(Made))
    assert Made(1).number == 1
    changed = {name for name, value in vars(Made).items() if before[name] is not value}
    assert changed == {"__init__"}
