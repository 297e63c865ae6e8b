"""Requests to `$OBJ.<bucket>`, decoded."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from jetcluster.errors import OBJECT_DELIVER_SUBJECT, by_code
from jetcluster.objects.metadata import MAX_NAME, invalid, load
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.subjects import is_valid_literal

OPERATION: Final = b"Nats-Object-Operation"
_ACTIONS: Final = ("list", "get", "info", "delete")
_FORBIDDEN: Final = (b"$JS.", b"$OBJ.", b"$O.", b"$KV.", b"$SYS.", b"$NRG.", b"_GR_.", b"_R_.")
"""Subjects to which no chunks are sent."""


class ObjectRequest(NamedTuple):
    """A request to a bucket. `action` is list, get, info or delete."""

    action: str
    name: str
    deliver: str
    offset: int
    limit: int


def decode(payload: bytes, headers: bytes) -> ObjectRequest:
    """Decode a request. Raises ApiError 11005, or 11007 for an impossible deliver_subject."""
    try:
        fields = load(payload) if payload.strip() else {}
    except (ValueError, RecursionError):
        raise invalid("no JSON object") from None
    name, deliver = fields.get("name") or "", fields.get("deliver_subject") or ""
    said = (header_block.get(headers, OPERATION) or b"").decode("utf-8", "replace")
    action = said or fields.get("action") or fields.get("op") or _implied(name, deliver)
    if action not in _ACTIONS:
        raise invalid("action")
    if action != "list" and (not isinstance(name, str) or not 0 < len(name.encode("utf-8", "replace")) <= MAX_NAME):
        raise invalid("name")
    if action == "get" and not _may_deliver(deliver):
        raise by_code(OBJECT_DELIVER_SUBJECT)
    return ObjectRequest(action, name, deliver, _count(fields, "offset"), _count(fields, "limit"))


def _implied(name: object, deliver: object) -> str:
    """Return the action of a request without one, which never changes anything."""
    if not name:
        return "get" if deliver else "list"
    return "get" if deliver else "info"


def _may_deliver(deliver: object) -> bool:
    if not isinstance(deliver, str):
        return False
    subject = deliver.encode("utf-8", "replace")
    return is_valid_literal(subject) and not subject.startswith(_FORBIDDEN)


def _count(fields: dict[str, Any], key: str) -> int:
    value = fields.get(key) or 0
    if type(value) is not int or value < 0:
        raise invalid(key)
    return value
