"""Bounds on a request's body, applied to what JSON made of it and before models are built, which is the dear part.

Models take microseconds for each value and cannot stop in between; this looks once at each list and object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jetcluster.errors import invalid_config
from jetcluster.model import codec
from jetcluster.model.consumer_rules import MAX_BACKOFF, MAX_FILTERS, MAX_GROUPS
from jetcluster.model.stream_rules import MAX_SUBJECTS

MAX_VALUES: Final = 50_000
"""All of a body's values together; 1,000 sources with all that they can say are 20,000."""
MAX_SOURCES: Final = 1_000
"""Ours, of a new configuration: each is a link with a consumer of its own, which asks again as long as it fails."""
MAX_TRANSFORMS: Final = 1_000
"""Transforms of all sources of a stream together."""
MAX_METADATA: Final = 10_000
MAX_TAGS: Final = 1_000

_MOST: Final[Mapping[str, tuple[str, int]]] = {
    "subjects": ("subjects", MAX_SUBJECTS),
    "sources": ("sources", MAX_SOURCES),
    "subject_transforms": ("subject transforms", MAX_TRANSFORMS),
    "filter_subjects": ("filter subjects", MAX_FILTERS),
    "backoff": ("backoff values", MAX_BACKOFF),
    "priority_groups": ("priority groups", MAX_GROUPS),
    "metadata": ("metadata entries", MAX_METADATA),
    "tags": ("placement tags", MAX_TAGS),
}
"""By key: what the elements of all such lists and objects are called, and how many they may be."""


def check_bounds(body: Any) -> None:
    """`allowed` raises the bounds of keys, for a configuration that already has more. Raises ApiError: 10052 for what
    has a bound of its own, 10025 when all is too much."""
    found = dict.fromkeys(_MOST, 0)
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
    name, most = _MOST[key]
    if found[key] > most:
        raise invalid_config(f"too many {name}, maximum allowed is {most}")
