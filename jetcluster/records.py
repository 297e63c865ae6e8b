"""`dataclass` with the standard library's meaning, whose methods are compiled on first use.

The standard library compiles four to six functions per class on import: a quarter of the processor time of a server's
start, mostly for methods that a run never calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

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
