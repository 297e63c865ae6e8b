"""STREAM.MSG.GET: request checks and the JSON answer.

The caller has made sure that this replica leads and has applied everything committed (`RaftGroup.read_index`), which
makes the answer linearizable; nats-server skips that and may answer stale after an election.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from typing import Any, Final

from jetcluster import errors
from jetcluster.model import times
from jetcluster.protocol import headers as header_block
from jetcluster.store.api import Msg
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.direct_get import find_one, level_is_met
from jetcluster.stream.get_request import GetRequest, MalformedRequest

RESPONSE_TYPE: Final = "io.nats.jetstream.api.v1.stream_msg_get_response"


def decode(payload: bytes, headers: bytes = b"", *, strict: bool = True) -> GetRequest:
    """The checked request; `strict` refuses unknown keys. Raises ApiError."""
    if headers and not level_is_met(headers):
        raise errors.by_code(10185)
    if not payload or payload.translate(None, b" \t\r\n") == b"{}":
        raise errors.by_code(10003)
    try:
        request = GetRequest.decode(payload)
    except MalformedRequest as error:
        raise errors.by_code(10025, err=error) from error
    if strict and request.unknown:
        raise errors.by_code(10025, err=f'json: unknown field "{request.unknown[0]}"')
    single = request.seq or request.last_by_subj or request.next_by_subj or request.start_time is not None
    if request.batch > 0 or request.max_bytes > 0 or not single or _conflicts(request):
        raise errors.by_code(10003)
    return request


def answer(store: BlockStore, request: GetRequest) -> bytes:
    """The JSON response. Raises ApiError (10037 when there is no such message) and DamagedError."""
    message = find_one(store, request)
    if message is None:
        raise errors.by_code(10037)
    response = {"type": RESPONSE_TYPE, "message": message_object(message, no_headers=request.no_hdr)}
    return json.dumps(response, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def message_object(message: Msg, *, no_headers: bool = False) -> dict[str, Any]:
    """`hdrs` is what clients read; `headers` is ours beside it. An empty payload has no `data`, as in
    nats-server: nats.c fails on an empty base64 text."""
    found: dict[str, Any] = {"subject": message.subject.decode(errors="replace"), "seq": message.seq}
    if message.headers and not no_headers:
        found["hdrs"] = _base64(message.headers)
    if message.payload:
        found["data"] = _base64(message.payload)
    found["time"] = times.rfc3339(message.ts)
    if message.headers and not no_headers:
        found["headers"] = _fields(message.headers)
    return found


def _conflicts(request: GetRequest) -> bool:
    last, timed = request.last_by_subj, request.start_time is not None
    return bool((last and (request.seq or timed or request.next_by_subj)) or (timed and request.seq))


def _base64(raw: bytes) -> str:
    return b2a_base64(raw, newline=False).decode("ascii")


def _fields(block: bytes) -> dict[str, str | list[str]]:
    fields: dict[str, str | list[str]] = {}
    for key, value in header_block.parse(block):
        name, text = key.decode(errors="replace"), value.decode(errors="replace")
        known = fields.get(name)
        if known is None:
            fields[name] = text
        elif isinstance(known, list):
            known.append(text)
        else:
            fields[name] = [known, text]
    return fields
