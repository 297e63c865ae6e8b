"""JSON objects in the log: read alike by all replicas.

How deep Python's decoder can go depends on the calls that it is in, so two replicas could judge very deep JSON
differently. Nothing that the server writes is deeper than MAX_DEPTH; deeper text is refused unread.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

MAX_DEPTH: Final = 100

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_BRACKETS: Final = re.compile(rb"[\[\]{}]")


def load_object(raw: bytes) -> dict[str, Any]:
    """Raises ValueError for all that is no JSON object in UTF-8, and for one that is too deep."""
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _depth(raw) > MAX_DEPTH:
        raise ValueError(f"JSON deeper than {MAX_DEPTH}")
    found = json.loads(raw.decode())
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def _depth(raw: bytes) -> int:
    """An upper bound of how deep the decoder goes before it is through or finds an error."""
    depth = deepest = 0
    for bracket in _BRACKETS.findall(_STRING.sub(b"", raw)):
        if bracket in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest
