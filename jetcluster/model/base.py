"""The base of the models of requests: Go's JSON habits (streams.md L8) and error texts.

An own base and not pydantic's: importing pydantic and building the models cost 0.16 s of processor time, more than a
third of a start, and a server that said it was ready let its first request pay for it. Here a field's type is looked at
when its model is first used, which takes less than a millisecond.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, dataclass_transform, get_args, get_origin, get_type_hints

from jetcluster.model import codec

Int64 = Annotated[int, range(-(2**63), 2**63)]
Int32 = Annotated[int, range(-(2**31), 2**31)]
UInt64 = Annotated[int, range(2**64)]
Duration = Int64
"""Nanoseconds."""

Reader = Callable[[Any, bool], Any]
"""From a decoded JSON value, strictly or not, to a field's value. Raises _Refusal."""

_NAMES: Mapping[Any, str] = {int: "int64", str: "string", bool: "bool", list: "array", dict: "object"}
"""Types as Go's decoder calls them."""


class _Refusal(Exception):
    """A value that a field does not take. `path` is complete when it arrives at the outermost model."""

    def __init__(self, value: Any, wanted: str = "", text: str = "") -> None:
        """`wanted` is the type that was expected; or the `text` says what is wrong."""
        super().__init__(value, wanted, text)
        self.value = value
        self.wanted = wanted
        self.text = text
        self.path: list[str] = []
        """Names of fields, the innermost first."""

    def say(self) -> str:
        """Close to the words of Go's decoder."""
        if self.text:
            return self.text
        if not self.wanted:
            return _bad_choice(self.path[0] if self.path else "", self.value)
        where = f"field {'.'.join(reversed(self.path))}" if self.path else "value"
        kind = _json_kind(self.value)
        shown = f"number {self.value}"[:64] if self.wanted == "int64" and kind == "number" else kind
        return f"json: cannot unmarshal {shown} into {where} of type {self.wanted}"


class _Factory:
    """A default that each object gets its own of."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def Field(*, default_factory: Callable[[], Any]) -> Any:
    """The default of a field that is a list, a dictionary or a model."""
    return _Factory(default_factory)


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
class WireModel:
    """One JSON object of a request. Keys are matched without case, `null` is as if absent, types are not coerced;
    unknown keys are ignored, unless `parse` is told to be strict. Fields are annotated with `bool`, `str`, the integers
    above, Literal, `list[...]`, `dict[str, ...]`, another model, or one of them `| None`; every field has a default.
    Further annotations of a type are what is called with its values; they raise ValueError."""

    empty_is_absent: ClassVar[frozenset[str]] = frozenset()
    """Keys whose "" means the default: the seeds write `"discard": ""`, which nats-server refuses (R23)."""
    model_fields: ClassVar[dict[str, Any]] = {}
    """Defaults by name, in wire order."""
    _readers: ClassVar[dict[str, Reader] | None] = None

    def __init_subclass__(cls) -> None:
        cls.model_fields = dict(cls.model_fields)
        for name, hint in cls.__annotations__.items():
            if not hint.startswith("ClassVar"):
                cls.model_fields[name] = cls.__dict__[name]
        cls._readers = None

    def __init__(self, **given: Any) -> None:
        """Raises ApiError 10025 like `from_object`."""
        self.__dict__.update(self._checked(given, strict=False))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment] # fields can be changed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    @classmethod
    def parse(cls, payload: bytes, *, strict: bool = False) -> Self:
        """From a request's payload. Raises ApiError 10025, when `strict` also for a key that the model does not have.
        `null` is the empty object, as in Go."""
        return cls.from_object(codec.loads(payload), strict=strict)

    @classmethod
    def from_object(cls, value: Any, *, strict: bool = False) -> Self:
        """From decoded JSON. Raises ApiError 10025."""
        made = cls.__new__(cls)
        made.__dict__.update(cls._checked({} if value is None else value, strict=strict))
        return made

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        return cls.from_object(value)

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """The same with other values, which nobody checks."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__, **update)
        return made

    def model_dump(self) -> dict[str, Any]:
        """As plain dictionaries and lists."""
        return {name: _plain(getattr(self, name)) for name in self.model_fields}

    @classmethod
    def _checked(cls, value: Any, *, strict: bool) -> dict[str, Any]:
        try:
            return cls._read(value, strict)
        except _Refusal as refusal:
            raise codec.invalid_json(refusal.say()) from None

    @classmethod
    def _read(cls, value: Any, strict: bool) -> dict[str, Any]:
        """Every field's value. Raises _Refusal for the first field, in wire order, that refuses its value."""
        if not isinstance(value, dict):
            raise _Refusal(value, "object")
        given = cls._folded(value, strict)
        readers = cls._readers
        if readers is None:
            hints = get_type_hints(cls, include_extras=True)
            readers = cls._readers = {name: _reader(hints[name]) for name in cls.model_fields}
        values: dict[str, Any] = {}
        for name, default in cls.model_fields.items():
            if name in given:
                try:
                    values[name] = readers[name](given[name], strict)
                except _Refusal as refusal:
                    refusal.path.append(name)
                    raise
            else:
                values[name] = default.make() if type(default) is _Factory else default
        return values

    @classmethod
    def _folded(cls, value: dict[str, Any], strict: bool) -> dict[str, Any]:
        empty = cls.empty_is_absent
        folded: dict[str, Any] = {}
        for name, item in value.items():
            key = name.lower()
            if strict and key not in cls.model_fields:
                raise _Refusal(value, text=f'json: unknown field "{name}"')
            if item is not None and not (item == "" and key in empty):
                folded[key] = item
        return folded


def _plain(value: Any) -> Any:
    if isinstance(value, WireModel):
        return value.model_dump()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, dict) else value


def _reader(hint: Any) -> Reader:
    """Of a field's type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _narrowed(args[0], args[1])
    if origin is types.UnionType:
        return _reader(args[0])  # `X | None`: a null does not come this far
    if origin is Literal:
        return _one_of(args)
    if origin is list:
        return _list_of(_reader(args[0]))
    if origin is dict:
        return _dict_of(_reader(args[1]))
    if hint is Any:
        return _anything
    if isinstance(hint, type) and issubclass(hint, WireModel):
        return _model(hint)
    assert hint in (str, bool), hint
    return _exactly(hint)


def _anything(value: Any, strict: bool) -> Any:
    return value


def _exactly(wanted: type) -> Reader:
    """Of that type and none derived from it: `true` is no number."""

    def read(value: Any, strict: bool) -> Any:
        if type(value) is not wanted:
            raise _Refusal(value, _NAMES[wanted])
        return value

    return read


def _narrowed(wanted: type, narrower: range | Callable[[Any], Any]) -> Reader:
    """Integers of a range, or what a function makes of a value."""
    exactly = _exactly(wanted)
    if isinstance(narrower, range):
        allowed = narrower

        def read_number(value: Any, strict: bool) -> Any:
            if exactly(value, strict) not in allowed:
                raise _Refusal(value, _NAMES[wanted])
            return value

        return read_number
    convert = narrower

    def read(value: Any, strict: bool) -> Any:
        try:
            return convert(exactly(value, strict))
        except ValueError as error:
            raise _Refusal(value, text=str(error)) from None

    return read


def _one_of(choices: tuple[Any, ...]) -> Reader:
    def read(value: Any, strict: bool) -> Any:
        if type(value) is not str or value not in choices:
            raise _Refusal(value)
        return value

    return read


def _list_of(item: Reader) -> Reader:
    def read(value: Any, strict: bool) -> Any:
        if type(value) is not list:
            raise _Refusal(value, "array")
        return [item(one, strict) for one in value]

    return read


def _dict_of(item: Reader) -> Reader:
    def read(value: Any, strict: bool) -> Any:
        if type(value) is not dict:
            raise _Refusal(value, "object")
        found = {}
        for key, one in value.items():
            try:
                found[key] = item(one, strict)
            except _Refusal as refusal:
                refusal.path.append(key)
                raise
        return found

    return read


def _model(model: type[WireModel]) -> Reader:
    def read(value: Any, strict: bool) -> Any:
        if type(value) is model:
            return value
        made = model.__new__(model)
        made.__dict__.update(model._read(value, strict))
        return made

    return read


def _bad_choice(key: str, value: Any) -> str:
    """Each of Go's enums has words of its own."""
    match key:
        case "compression":
            return "unknown compression algorithm"
        case "priority_policy":
            return f'unknown priority policy: "{value}"'
        case "action":
            return f'unknown consumer action: "{value}"'
        case _:
            shown = f'\\"{value}\\"' if isinstance(value, str) else codec.dumps(value).decode()
            return f'can not unmarshal "{shown}"'


def _json_kind(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "null"
