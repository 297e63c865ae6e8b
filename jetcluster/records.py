"""`dataclass` and `NamedTuple` with the standard library's meaning, which cost less at an import.

The standard library compiles four to six functions per dataclass: a quarter of the processor time of a server's start,
mostly for methods that a run never calls. Here they are compiled on first use. It compiles a constructor and each
annotation per NamedTuple (0.12 ms); here the constructor of all with as many fields is compiled once (0.03 ms).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

try:
    from _collections import _tuplegetter as getter  # type: ignore[import-not-found]
except ImportError:  # another Python than CPython, as `collections` has it

    def getter(index: int, doc: str) -> property:
        return property(lambda self: self[index], doc=doc)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from typing import NamedTuple as NamedTuple
else:

    class _NamedTupleMeta(type):
        def __new__(cls, name, bases, namespace):
            return _named_tuple(name, namespace)

    _BASE = type.__new__(_NamedTupleMeta, "NamedTuple", (), {})

    def NamedTuple(*_given):
        """Be a base of classes, as `typing.NamedTuple` is, with nothing else among the bases."""
        raise TypeError("only a base of classes")

    NamedTuple.__mro_entries__ = lambda bases: (_BASE,)

    def dataclass(cls=None, /, *, eq=True, frozen=False, slots=False, kw_only=False):
        """Do as `dataclasses.dataclass`, without InitVar and a meaningful `__dataclass_params__`."""

        def decorate(cls):
            return _decorated(cls, eq, frozen, slots, kw_only)

        return decorate if cls is None else decorate(cls)


def _decorated(cls: Any, eq: bool, frozen: bool, slots: bool, kw_only: bool) -> Any:
    own = frozenset(cls.__dict__)
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # else the standard library renders the signature, which costs as much
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
    lazy = ["__init__", "__repr__"]
    if eq:
        lazy.append("__eq__")
        if "__hash__" not in own and not frozen:
            made.__hash__ = None
        elif frozen:
            lazy.append("__hash__")
    for name in lazy:
        if name not in own:
            setattr(made, name, _placeholder(made, name, frozen, slots))
    if frozen:
        made.__setattr__ = _refuse_to_set
        made.__delattr__ = _refuse_to_delete
        if slots:
            made.__getstate__ = _state
            made.__setstate__ = _set_state
    return made


def _placeholder(cls: type, name: str, frozen: bool, slots: bool) -> Callable[..., Any]:
    def first(self: object, *args: Any, **given: Any) -> Any:
        method = _compiled(cls, name, frozen, slots)
        setattr(cls, name, method)
        return method(self, *args, **given)

    return first


def _compiled(cls: Any, name: str, frozen: bool, slots: bool) -> Callable[..., Any]:
    """Return the standard library's method, taken from a twin class with the same fields and nothing else."""
    namespace: dict[str, Any] = {"__annotations__": {}, "__module__": cls.__module__, "__doc__": "of `records`"}
    if name == "__init__" and hasattr(cls, "__post_init__"):
        namespace["__post_init__"] = cls.__post_init__
    for one in dataclasses.fields(cls):
        namespace["__annotations__"][one.name] = one.type
        namespace[one.name] = dataclasses.field(
            default=one.default, default_factory=one.default_factory, init=one.init, repr=one.repr, hash=one.hash,
            compare=one.compare, kw_only=one.kw_only,
        )  # fmt: skip
    twin: Any = dataclasses.dataclass(
        init=name == "__init__",
        repr=name == "__repr__",
        eq=name in ("__eq__", "__hash__"),
        unsafe_hash=name == "__hash__",
        frozen=frozen and name == "__init__",
        slots=slots and name == "__init__",  # with slots a default is no class attribute: `__init__` sets it
    )(type(cls.__name__, (), namespace))
    method: Callable[..., Any] = twin.__dict__[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    return method


def _refuse_to_set(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


class _Fields:
    """The methods of all classes with `NamedTuple`; `_fields` differs."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    @classmethod
    def _make(cls, values: Any) -> Any:
        made: Any = tuple.__new__(cls, values)  # type: ignore[type-var]
        if len(made) != len(cls._fields):
            raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
        return made

    def _replace(self: Any, /, **given: Any) -> Any:
        made = self._make(map(given.pop, self._fields, self))
        if given:
            raise ValueError(f"Got unexpected field names: {list(given)!r}")
        return made

    def _asdict(self: Any) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self: Any) -> str:
        return f"{type(self).__name__}({', '.join(map('%s=%r'.__mod__, zip(self._fields, self, strict=True)))})"

    def __getnewargs__(self: Any) -> tuple[Any, ...]:
        return tuple(self)


_METHODS = {name: vars(_Fields)[name] for name in ("_make", "_replace", "_asdict", "__repr__", "__getnewargs__")}


def _named_tuple(name: str, given: dict[str, Any]) -> type:
    """Return the class of a `NamedTuple` statement."""
    fields = tuple(given.get("__annotations__", ()))
    defaults = {field: given.pop(field) for field in fields if field in given}
    if tuple(defaults) != fields[len(fields) - len(defaults) :]:
        raise TypeError("a field without a default cannot follow one that has a default")
    template = _constructor(len(fields))
    code = template.__code__.replace(co_varnames=("_cls", *fields))
    new = FunctionType(code, template.__globals__, "__new__", tuple(defaults.values()))
    return type(
        name,
        (tuple,),
        {
            "__slots__": (),
            "__new__": new,
            "__match_args__": fields,
            "_fields": fields,
            "_field_defaults": defaults,
            **_METHODS,
            **{field: getter(at, "") for at, field in enumerate(fields)},
            **given,
        },
    )


@functools.cache
def _constructor(count: int) -> FunctionType:
    names = "".join([f"_{at}, " for at in range(count)])
    made: FunctionType = eval(f"lambda _cls, {names}: _new(_cls, ({names}))", {"_new": tuple.__new__})  # noqa: S307 - of numbers
    return made
