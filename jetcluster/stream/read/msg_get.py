"""STREAM.MSG.GET: request checks and the JSON answer; the `state` object of STREAM.INFO.

The caller ensures that this replica leads and has applied everything committed (`RaftGroup.read_index`), which makes
the answer linearizable; nats-server does not, and may return stale messages after an election.
"""

from __future__ import annotations

import json
import math
from binascii import b2a_base64
from collections.abc import Generator
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, Final

from jetcluster import errors
from jetcluster.budget import Steps, at_once
from jetcluster.model import times
from jetcluster.protocol import headers as header_block
from jetcluster.records import NamedTuple
from jetcluster.store.api import Msg
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.fields import REQUIRED_LEVEL, level_is_met
from jetcluster.stream.read import freshness
from jetcluster.stream.read.direct_get import find_one, start_of
from jetcluster.stream.read.freshness import FreshnessError
from jetcluster.stream.read.get_request import GetRequest, MalformedRequest

SUBJECTS_PAGE: Final = 100_000
"""Subjects in one answer; a client reads the others with `offset`."""
SUBJECTS_BYTES: Final = 8 << 20
"""Bytes of them as JSON, with 16 for each count: the answer must fit into a frame between nodes."""
MAX_DELETED_BYTES: Final = 15 << 20
"""The same of a list of deleted sequences, which has no pages."""


class SubjectsPage(NamedTuple):
    """The pagination that `subjects_filter` adds beside the state."""

    total: int
    offset: int
    limit: int


def state_object(
    store: BlockStore, *, consumers: int = 0, deleted_details: bool = False, subjects: dict[str, int] | None = None
) -> dict[str, Any]:
    """The `state` object, with keys in wire order; those that nats-server omits when zero are omitted here, too."""
    state = store.state
    found: dict[str, Any] = {
        "messages": state.messages,
        "bytes": state.bytes,
        "first_seq": state.first_seq if state.last_seq or state.first_seq > 1 else 0,  # a new stream shows 0
        "first_ts": times.rfc3339(state.first_ts if state.messages else 0),
        "last_seq": state.last_seq,
        "last_ts": times.rfc3339(state.last_ts),
    }
    if state.num_subjects:
        found["num_subjects"] = state.num_subjects
    if subjects:
        found["subjects"] = subjects
    if state.num_deleted:
        found["num_deleted"] = state.num_deleted
        if deleted_details:
            found["deleted"] = store.deleted(state.num_deleted)
    found["consumer_count"] = consumers
    return found


def check_deleted(store: BlockStore) -> None:
    """Raises ApiError 10023 when the list of deleted sequences is too long for an answer."""
    if store.state.num_deleted * (len(str(store.last_seq)) + 1) > MAX_DELETED_BYTES:
        raise errors.by_code(errors.INSUFFICIENT_RESOURCES)


def subjects_page(
    store: BlockStore, subject_filter: bytes, offset: int = 0
) -> Generator[None, None, tuple[dict[str, int], SubjectsPage]]:
    """Message counts of the subjects that match `subject_filter`, sorted, and the page's place, after steps of some
    milliseconds each. The store may change between steps; each reads its own moment."""
    found: dict[str, int] = {}
    offset = max(offset, 0)  # one after the end is echoed unchanged
    limit, total, size = SUBJECTS_PAGE, 0, 0
    cursor: bytes | None = b""
    while cursor is not None:
        subjects, cursor = store.slices.survey(subject_filter, cursor)
        first = max(offset - total, 0)
        for name in subjects[first : first + limit - len(found)]:
            text = name.decode(errors="replace")
            size += len(encode_basestring_ascii(text)) + 16
            if size > SUBJECTS_BYTES and found:
                limit = len(found)
                break
            found[text] = store.count_of(name)
        total += len(subjects)
        if cursor is not None:
            yield
    return found, SubjectsPage(total, offset, limit)


STEP_LINES: Final = 500
LONG_HEADER_BYTES: Final = 4096
"""Header lines converted to JSON per step, and bytes of headers above which it takes steps."""
MAX_REMOVED_LOOKS: Final = 256
"""Removed messages at a stream's end behind which the last one is looked for."""
RESPONSE_TYPE: Final = "io.nats.jetstream.api.v1.stream_msg_get_response"


def decode(payload: bytes, headers: bytes = b"", *, strict: bool = True) -> GetRequest:
    """Decodes and checks a request; `strict` refuses unknown keys. Raises ApiError."""
    if headers and not level_is_met(header_block.get(headers, REQUIRED_LEVEL)):
        raise errors.by_code(10185)
    if not payload or payload.translate(None, b" \t\r\n") == b"{}":
        raise errors.by_code(10003)
    try:
        request = GetRequest.decode(payload)
        request.fresh = request.fresh.stricter(freshness.of_headers(headers))
    except (MalformedRequest, FreshnessError) as error:
        raise errors.by_code(10025, err=error) from error
    if strict and request.unknown:
        raise errors.by_code(10025, err=f'json: unknown field "{request.unknown[0]}"')
    single = request.seq or request.last_by_subj or request.next_by_subj or request.start_time is not None
    if request.batch > 0 or request.max_bytes > 0 or not single or _conflicts(request):
        raise errors.by_code(10003)
    if request.msg_id_prefixes:
        from jetcluster.stream.read import id_search  # what few requests need does not slow down a start

        if not id_search.is_sound(request):
            raise errors.by_code(10003)
    return request


def answer(store: BlockStore, request: GetRequest) -> bytes:
    """The JSON response. Raises ApiError (10037 when there is no such message) and DamagedError."""
    return at_once(rendering(found(store, request), no_headers=request.no_hdr))


def found(store: BlockStore, request: GetRequest) -> Msg:
    """The message of a request. Raises ApiError and DamagedError, as `answer` does."""
    message = find_one(store, request)
    if message is None:
        raise errors.by_code(10037)
    return message


def search(store: BlockStore, request: GetRequest) -> Steps[bytes]:
    """The JSON response to a request with `msg_id_prefixes`. Raises DamagedError."""
    from jetcluster.stream.read import id_search

    found = yield from id_search.search(store, start_of(store, request), request)
    return b'{"type":"%b","msg_ids":%b}' % (RESPONSE_TYPE.encode(), found.encode())


def rendering(message: Msg, *, no_headers: bool) -> Steps[bytes]:
    """The JSON response, in steps, as there may be thousands of header lines."""
    if no_headers or not message.headers:
        return _plain(message)
    fields = yield from _fields(message.headers)
    response = {"type": RESPONSE_TYPE, "message": message_object(message, fields)}
    return json.dumps(response, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def with_freshness(response: bytes, last_seq: int, server: str, age: float | None) -> bytes:
    """Adds to a JSON response what `read_info` asks for. `age`: see `freshness_object`."""
    info = json.dumps(freshness_object(last_seq, server, age), separators=(",", ":"))
    return response[:-1] + b',"freshness":' + info.encode() + b"}"


def freshness_object(last_seq: int, server: str, age: float | None) -> dict[str, Any]:
    """The `freshness` object of a leader that has all of `age` seconds ago: since it began to prove that it leads, or,
    at a mirror, since its upstream was asked; None: unknown."""
    staleness = None if age is None else math.ceil(age * times.SECOND)
    return {"applied_seq": last_seq, "staleness": staleness, "answered_by": server, "answered_as": "leader"}


def last_message(store: BlockStore) -> int:
    """The last sequence that has a message, 0 for none: a copy that has all up to it lacks nothing. It is the last
    sequence when very many behind it were removed."""
    last = store.last_seq
    if not store.messages:
        return 0
    lowest = max(last - MAX_REMOVED_LOOKS, 0)
    return next((seq for seq in range(last, lowest, -1) if store.contains(seq)), last)


def message_object(message: Msg, fields: dict[str, str | list[str]]) -> dict[str, Any]:
    """The `message` object; `fields` are the parsed headers. Clients read `hdrs`; `headers` is our own. An empty
    payload has no `data`, as in nats-server: nats.c fails on an empty base64 text."""
    found: dict[str, Any] = {"subject": message.subject.decode(errors="replace"), "seq": message.seq}
    found["hdrs"] = _base64(message.headers)
    if message.payload:
        found["data"] = _base64(message.payload)
    found["time"] = times.rfc3339(message.ts)
    found["headers"] = fields
    return found


def _plain(message: Msg) -> bytes:
    """The JSON response without headers. Written as text, for a fifth of the time: it is the usual one."""
    subject = encode_basestring(message.subject.decode(errors="replace"))
    data = f',"data":"{_base64(message.payload)}"' if message.payload else ""
    time = times.rfc3339(message.ts)
    return (
        f'{{"type":"{RESPONSE_TYPE}","message":{{"subject":{subject},"seq":{message.seq}{data},"time":"{time}"}}}}'
    ).encode()


def _conflicts(request: GetRequest) -> bool:
    last, timed = request.last_by_subj, request.start_time is not None
    return bool((last and (request.seq or timed or request.next_by_subj)) or (timed and request.seq))


def _base64(raw: bytes) -> str:
    return b2a_base64(raw, newline=False).decode("ascii")


def _fields(block: bytes) -> Steps[dict[str, str | list[str]]]:
    fields: dict[str, str | list[str]] = {}
    for number, (key, value) in enumerate(header_block.parse(block), 1):
        if number % STEP_LINES == 0:
            yield
        name, text = key.decode(errors="replace"), value.decode(errors="replace")
        known = fields.get(name)
        if known is None:
            fields[name] = text
        elif isinstance(known, list):
            known.append(text)
        else:
            fields[name] = [known, text]
    return fields
