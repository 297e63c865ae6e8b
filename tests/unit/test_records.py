"""`records.dataclass` beside the standard library's: the same meaning, compiled later."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

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


def named(base: Any) -> Any:
    class Named(base):  # type: ignore[misc]
        """Three fields."""

        first: int
        second: tuple[int, ...] = (3,)
        third: str = "c"

        @property
        def both(self) -> Any:
            return self.first, self.second

        def longer(self) -> Any:
            return len(self) + 1

    return Named


NAMED_ACTS: tuple[Callable[[Any], Any], ...] = (
    lambda made: repr(made(1, third="d")),
    lambda made: made(1) == (1, (3,), "c"),
    lambda made: (made(1).first, made(1, [2]).both, made(1)[-1], made(1).longer()),
    lambda made: made(),
    lambda made: made(1, 2, 3, 4),
    lambda made: made(1, fourth=2),
    lambda made: made(1)._replace(second=[4], third="e"),
    lambda made: made(1)._replace(fourth=4),
    lambda made: made(1)._asdict(),
    lambda made: made._make([1, 2, 3]),
    lambda made: made._make([1, 2]),
    lambda made: made(second=(), first=3),
    lambda made: len({made(1, (), "a"), made(1, (), "a"), made(2, (), "a")}),
    lambda made: setattr(made(1), "first", 2),
    lambda made: setattr(made(1), "fourth", 2),
    lambda made: (made._fields, made._field_defaults, made.__match_args__, made.__doc__, made.__name__),
    lambda made: copy.deepcopy(made(1)) == made(1),
    lambda made: issubclass(made, tuple) and made.__module__,
    lambda made: list(inspect.signature(made).parameters),
)


@pytest.mark.parametrize("act", NAMED_ACTS)
def test_a_named_tuple_is_typings(act: Callable[[Any], Any]) -> None:
    ours, wanted = outcome(act, named(records.NamedTuple)), outcome(act, named(NamedTuple))
    if isinstance(wanted, tuple) and wanted[0] is TypeError:
        wanted = (TypeError, wanted[1].replace("Named.", "").replace("<lambda>", "__new__"))
        ours = (ours[0], ours[1].replace("Named.", "").replace("<lambda>", "__new__"))
    assert ours == wanted


class Point(records.NamedTuple):
    x: int
    y: int = 2


def test_a_named_tuple_is_pickled_matched_and_refused_as_typings() -> None:
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1) and type(pickle.loads(pickle.dumps(Point(1)))) is Point
    match Point(3):
        case Point(x, y=2):
            assert x == 3
        case _:
            pytest.fail("not matched")
    with pytest.raises(TypeError):

        class Wrong(records.NamedTuple):  # type: ignore[misc]
            x: int = 1
            y: int  # type: ignore[misc]

    with pytest.raises(TypeError):
        records.NamedTuple("Other", [("x", int)])
