"""The base of the pydantic models: Go's JSON habits and error texts.

Importing pydantic costs 0.1 s, defining and building the models as much again. Only `api.models` imports this module,
once a client has come or a request needs it; `node.warm_up` builds each model unless it has been used before.

A request's decoded body has bounds, because models take microseconds per value and cannot be interrupted:
`check_bounds` visits each list and object once before they are built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from jetcluster.errors import invalid_config
from jetcluster.model import codec
from jetcluster.model.consumer_rules import MAX_BACKOFF_WAITS, MAX_FILTERS, MAX_GROUPS
from jetcluster.model.stream_rules import MAX_SUBJECTS

MAX_VALUES: Final = 50_000
"""Values of a body; 1,000 sources with all fields are 20,000."""
MAX_SOURCES: Final = 1_000
"""A limit of this server only: each source is a link with its own consumer, which is retried as long as it fails."""
MAX_TRANSFORMS: Final = 1_000
"""Transforms of all sources of a stream."""
MAX_METADATA_ENTRIES: Final = 10_000
MAX_TAGS: Final = 1_000

_MAX_ELEMENTS: Final[Mapping[str, tuple[str, int]]] = {
    "subjects": ("subjects", MAX_SUBJECTS),
    "sources": ("sources", MAX_SOURCES),
    "subject_transforms": ("subject transforms", MAX_TRANSFORMS),
    "filter_subjects": ("filter subjects", MAX_FILTERS),
    "backoff": ("backoff values", MAX_BACKOFF_WAITS),
    "priority_groups": ("priority groups", MAX_GROUPS),
    "metadata": ("metadata entries", MAX_METADATA_ENTRIES),
    "tags": ("placement tags", MAX_TAGS),
}
"""Key of lists and objects -> (name of their elements, the number of elements allowed in all of them)."""


def check_bounds(body: Any) -> None:
    """Raises ApiError: 10052 when elements with a bound of their own are too many, 10025 when all values are."""
    found = dict.fromkeys(_MAX_ELEMENTS, 0)
    total = 0
    open_ = [body]
    while open_:
        value = open_.pop()
        total += len(value) if isinstance(value, (list, dict)) else 1
        if total > MAX_VALUES:
            raise codec.invalid_json(f"request has more than {MAX_VALUES} values")
        if isinstance(value, dict):
            for key, item in value.items():
                if isinstance(item, (list, dict)):
                    _count(found, key.lower(), len(item))
                    open_.append(item)
        elif isinstance(value, list):
            open_.extend([item for item in value if isinstance(item, (list, dict))])


def _count(found: dict[str, int], key: str, size: int) -> None:
    if key not in found:
        return
    found[key] += size
    name, most = _MAX_ELEMENTS[key]
    if found[key] > most:
        raise invalid_config(f"too many {name}, maximum allowed is {most}")


Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
UInt64 = Annotated[int, Field(ge=0, lt=2**64)]
Duration = Int64
"""Nanoseconds."""

_TYPE_NAMES = {
    "int_type": "int64",
    "int_from_float": "int64",
    "greater_than_equal": "int64",
    "less_than": "int64",
    "string_type": "string",
    "bool_type": "bool",
    "list_type": "array",
    "dict_type": "object",
    "model_type": "object",
    "model_attributes_type": "object",
}


class WireModel(BaseModel):
    """The base of all models. Keys have no case, `null` counts as absent, types are not coerced."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)

    empty_is_absent: ClassVar[frozenset[str]] = frozenset()
    """Keys whose "" means the default: the specification has `"discard": ""`, which nats-server refuses."""
    words: ClassVar[frozenset[str]] = frozenset()
    """The keys among these whose "" and `null` `parse` refuses with `refuse_empty`."""

    @model_validator(mode="before")
    @classmethod
    def _fold(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        empty = cls.empty_is_absent
        folded: dict[str, Any] = {}
        strict = info.context is not None and "strict" in info.context
        kept = cls.words if info.context is not None and "empty" in info.context else ()
        for name, item in value.items():
            key = name.lower()
            if strict and key not in cls.model_fields:
                raise ValueError(f'json: unknown field "{name}"')
            if (item is not None and not (item == "" and key in empty)) or key in kept:
                folded[key] = item
        return folded

    @classmethod
    def parse(
        cls,
        payload: bytes,
        *,
        strict: bool = False,
        refuse_empty: bool = False,
    ) -> Self:
        """Returns the model of a request's payload; `null` is the empty object, as in Go. `strict` refuses unknown
        keys, `refuse_empty` refuses `words` that are "" or `null`. Raises ApiError 10025, and as `check_bounds`."""
        return cls.from_fields(codec.loads(payload), strict=strict, refuse_empty=refuse_empty)

    @classmethod
    def from_fields(cls, body: Any, *, strict: bool = False, refuse_empty: bool = False) -> Self:
        """Does the same as `parse` for a decoded body."""
        check_bounds(body)
        return cls.from_object(body, strict=strict, refuse_empty=refuse_empty)

    @classmethod
    def from_object(cls, value: Any, *, strict: bool = False, refuse_empty: bool = False) -> Self:
        """Does the same without `check_bounds`. Raises ApiError 10025."""
        context = {word for word, chosen in (("strict", strict), ("empty", refuse_empty)) if chosen}
        try:
            return cls.model_validate({} if value is None else value, context=context or None)
        except ValidationError as error:
            raise codec.invalid_json(_text(error)) from None
        except RecursionError:
            raise codec.invalid_json(codec.MAX_DEPTH_TEXT) from None


def models() -> Iterator[type[WireModel]]:
    """Yields all models that are defined by now, base classes before their subclasses."""
    waiting = [WireModel]
    while waiting:
        for model in waiting.pop().__subclasses__():
            waiting.append(model)
            yield model


def _text(error: ValidationError) -> str:
    """Returns the first error, close to the text of Go's decoder."""
    first = error.errors(include_url=False, include_context=False)[0]
    kind, value = first["type"], first["input"]
    field = ".".join(str(part) for part in first["loc"] if isinstance(part, str))
    if kind == "literal_error":
        return _bad_choice(field.rpartition(".")[2], value)
    if kind == "value_error":
        return str(first["msg"]).removeprefix("Value error, ")
    where = f"field {field}" if field else "value"
    wanted = _TYPE_NAMES.get(kind, kind)
    shown = (
        f"number {value}"[:64] if wanted == "int64" and codec.json_kind(value) == "number" else codec.json_kind(value)
    )
    return f"json: cannot unmarshal {shown} into {where} of type {wanted}"


def _bad_choice(key: str, value: Any) -> str:
    """Returns the error text, which in Go each enum has of its own."""
    match key:
        case "compression":
            return "unknown compression algorithm"
        case "priority_policy":
            return f"unknown priority policy: {codec.dumps(value).decode()}"
        case "action":
            return f'unknown consumer action: "{value}"'
        case _:
            shown = f'\\"{value}\\"' if isinstance(value, str) else codec.dumps(value).decode()
            return f'can not unmarshal "{shown}"'
