"""The bytes between nodes: a strict, versioned binary codec without I/O.

A frame is `u32 length | u8 kind | body`, big endian; `length` counts kind and body. There is no pickle, and no JSON in
frames with messages or Raft traffic. Decoders raise `FrameError` for anything that they do not fully understand, and
the link is then closed: two nodes that disagree about one frame would disagree about all later ones. Clients' choices
(the characters of subjects and queues) are *not* judged here: a client must not be able to cut a link.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate, chain, pairwise

from jetcluster import native
from jetcluster.errors import PeerError
from jetcluster.protocol.bus import Outgoing

VERSION = 2
"""Version of the handshake and of every frame layout below; nodes of different versions refuse each other."""

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Default upper bound of `length`. A message with subject, headers and payload must fit."""

MAX_DELIVER_BYTES = 128 * 1024
"""Bytes of a frame of several messages; a single message may be larger."""

MAX_HANDSHAKE_BYTES = 8 * 1024
"""Bound of `length` until the other side has proven that it belongs to the cluster."""

MAX_CACHED_ACCOUNTS = 4096


class Kind(IntEnum):
    """Kinds of frames by their byte on the wire. Numbers are never reused; an unknown one closes the link."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    REFUSED = 4
    INFO = 5
    GOSSIP = 6
    SUB = 7
    MSG = 8
    RAFT = 9
    CALL = 10
    REPLY = 11
    ERROR = 12
    NOTICE = 13
    PING = 14
    PONG = 15
    DELIVER = 16
    ASK_BACKLOG = 17
    BACKLOG = 18
    MSGS = 19


# Plain ints for the per-frame loop: comparing an IntEnum member costs five times as much.
MSG = int(Kind.MSG)
RAFT = int(Kind.RAFT)
DELIVER = int(Kind.DELIVER)
MSGS = int(Kind.MSGS)
_LOWEST = int(min(Kind))
_HIGHEST = int(max(Kind))


class FrameError(PeerError):
    """Malformed bytes from a peer; the text is safe to log."""


_HEAD = struct.Struct("!IB")  # length, kind
_RAFT = struct.Struct("!IBI")  # length, kind, gid
_MSG = struct.Struct("!IBHHHHI")  # length, kind, then as _MSG_BODY
_MSG_BODY = struct.Struct("!HHHHI")  # lengths of account, subject, reply; number of queues; length of headers
_DELIVER_BODY = struct.Struct("!HHHI")  # lengths of account and target; number of queues; number of messages
_MSGS_BODY = struct.Struct("!HI")  # length of account; number of messages
_SAME = struct.Struct("!BI")  # 1, length
_BACKLOG_BODY = struct.Struct("!HQQ")  # length of account; mark; bytes that wait
_SUB_BODY = struct.Struct("!HHHI")  # lengths of account, subject, queue (_NO_QUEUE: none); count
_CALL_BODY = struct.Struct("!IH")  # id, length of the method
_U16 = struct.Struct("!H")
_U32 = struct.Struct("!I")
_U64 = struct.Struct("!Q")

_HEAD_SIZE = _HEAD.size
_MSG_BODY_SIZE = _MSG_BODY.size
_MSG_EXTRA = _MSG_BODY_SIZE + 1
MSGS_HEAD_BYTES = _HEAD_SIZE + _MSGS_BODY.size + 4 * _SAME.size
"""Most bytes of MSGS without account and messages."""
_PAYLOAD_COLUMN = 3
"""Index of the last column of MSGS."""
MSGS_LENGTH_BYTES = 16
"""Most bytes of MSGS per message, without its parts."""
_NO_QUEUE = 0xFFFF

_unpack_head = _HEAD.unpack_from
_unpack_msg = _MSG_BODY.unpack_from
_unpack_u32 = _U32.unpack_from
_pack_msg = _MSG.pack
RAFT_EXTRA_BYTES = 5
"""Kind and group id: a RAFT's length without its Raft frame."""
pack_raft = _RAFT.pack
"""(length of a Raft frame + RAFT_EXTRA_BYTES, RAFT, group id) -> the head of the RAFT that carries it."""
unpack_gid = _U32.unpack_from
"""(buffer, start) -> (group id,) of the RAFT whose body starts there; the Raft frame follows after 4 bytes."""

Span = tuple[int, int, int]
"""(kind, start, end): a frame's kind and the place of its body in `FrameReader.buffer`."""


class FrameReader:
    """Cuts a byte stream into frames. Any split of the stream gives the same frames.

    `feed` does not raise: frames before a malformed one are still returned, and `error` then has the reason. Holds at
    most one incomplete frame of `max_frame` bytes and the last read.
    """

    __slots__ = ("_chunks", "_have", "_need", "buffer", "error", "max_frame")

    def __init__(self, max_frame: int = MAX_FRAME_BYTES) -> None:
        self.max_frame = max_frame
        self.buffer = b""
        self.error: str | None = None
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0

    def feed(self, data: bytes) -> list[Span]:
        """Returns the frames that `data` completes; their bodies are in `self.buffer` until the next call."""
        if self._chunks:
            # Chunks of a large frame are joined once, when it is complete: joining per read would be quadratic.
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        self.buffer = data
        spans: list[Span] = []
        append = spans.append
        unpack = _unpack_head
        limit = self.max_frame
        size = len(data)
        position = 0
        need = _HEAD_SIZE
        while position + _HEAD_SIZE <= size:
            length, kind = unpack(data, position)
            if not 1 <= length <= limit or not _LOWEST <= kind <= _HIGHEST:
                self.error = f"frame of kind {kind} and {length} bytes (at most {limit})"
                return spans
            end = position + 4 + length
            if end > size:
                need = end - position
                break
            append((kind, position + _HEAD_SIZE, end))
            position = end
        if position < size:
            self._chunks.append(data[position:] if position else data)
            self._have = size - position
            self._need = need
        return spans


def frame(kind: Kind, body: bytes = b"") -> bytes:
    return _HEAD.pack(len(body) + 1, kind) + body


# Accounts are few and come with every message: a dict lookup is cheaper than encoding and decoding.
_account_bytes: dict[str, bytes] = {}
_account_text: dict[bytes, str] = {}


def _encode_account(account: str) -> bytes:
    if len(_account_bytes) >= MAX_CACHED_ACCOUNTS:
        _account_bytes.clear()
    encoded = _account_bytes[account] = account.encode()
    return encoded


def _decode_account(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise FrameError("account is not UTF-8") from error
    if not text:
        raise FrameError("account is empty")
    if len(_account_text) >= MAX_CACHED_ACCOUNTS:
        _account_text.clear()
    _account_text[raw] = text
    return text


def encode_msg(
    account: str, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
) -> bytes:
    """Raises struct.error when a name is longer than 65,535 bytes."""
    raw_account = _account_bytes.get(account) or _encode_account(account)
    names = b"" if not queues else b"".join([_U16.pack(len(queue)) + queue for queue in queues])
    a, s, r, h = len(raw_account), len(subject), len(reply), len(headers)
    head = _pack_msg(_MSG_EXTRA + a + s + r + len(names) + h + len(payload), MSG, a, s, r, len(queues), h)
    return b"".join((head, raw_account, subject, reply, names, headers, payload))


def decode_msg(buffer: bytes, start: int, end: int) -> tuple[str, bytes, bytes, list[bytes], bytes, bytes]:
    """Returns (account, subject, reply, queues, headers, payload) of MSG at buffer[start:end]. Raises FrameError."""
    if end - start < _MSG_BODY_SIZE:
        raise FrameError("MSG is too short")
    a, s, r, count, h = _unpack_msg(buffer, start)
    p0 = start + _MSG_BODY_SIZE
    p1 = p0 + a
    p2 = p1 + s
    p3 = p2 + r
    if count:
        queues, p4 = _decode_queues(buffer, p3, end, count)
    else:
        queues, p4 = [], p3
    p5 = p4 + h
    if p5 > end or not s:
        raise FrameError("MSG lengths do not fit its frame")
    raw_account = buffer[p0:p1]
    account = _account_text.get(raw_account) or _decode_account(raw_account)
    return account, buffer[p1:p2], buffer[p2:p3], queues, buffer[p4:p5], buffer[p5:end]


def _decode_queues(buffer: bytes, position: int, end: int, count: int) -> tuple[list[bytes], int]:
    queues: list[bytes] = []
    for _ in range(count):
        if position + 2 > end:
            raise FrameError("queues do not fit their frame")
        (length,) = _U16.unpack_from(buffer, position)
        position += 2
        queues.append(buffer[position : position + length])
        position += length
    return queues, position


def encode_deliver(account: str, target: bytes, queues: list[bytes], messages: Sequence[Outgoing]) -> bytes:
    """Encodes the names, then four lengths of each message, then its four parts. Raises struct.error for long names."""
    raw_account = _account_bytes.get(account) or _encode_account(account)
    names = b"".join([_U16.pack(len(queue)) + queue for queue in queues])
    parts = list(chain.from_iterable(messages))
    lengths = struct.pack(f"!{len(parts)}I", *map(len, parts))
    head = _DELIVER_BODY.pack(len(raw_account), len(target), len(queues), len(messages))
    return frame(Kind.DELIVER, b"".join((head, raw_account, target, names, lengths, *parts)))


def decode_deliver(buffer: bytes, start: int, end: int) -> tuple[str, bytes, list[bytes], list[Outgoing]]:
    """Returns (account, target, queues, messages) of the DELIVER at buffer[start:end]. Raises FrameError."""
    if end - start < _DELIVER_BODY.size:
        raise FrameError("DELIVER is too short")
    a, t, queue_count, count = _DELIVER_BODY.unpack_from(buffer, start)
    if count > 1 and end - start > MAX_DELIVER_BYTES:
        raise FrameError("DELIVER is longer than nodes send it")
    p0 = start + _DELIVER_BODY.size
    p1 = p0 + a
    p2 = p1 + t
    queues, p3 = _decode_queues(buffer, p2, end, queue_count)
    body = p3 + 16 * count
    if body > end or not t:
        raise FrameError("DELIVER lengths do not fit its frame")
    ends = list(accumulate(struct.unpack_from(f"!{4 * count}I", buffer, p3), initial=body))
    if ends[-1] != end:
        raise FrameError("DELIVER lengths do not fit its frame")
    raw_account = buffer[p0:p1]
    account = _account_text.get(raw_account) or _decode_account(raw_account)
    parts = iter([buffer[low:high] for low, high in pairwise(ends)])
    return account, buffer[p1:p2], queues, list(zip(parts, parts, parts, parts, strict=True))


def encode_msgs(account: str, messages: Sequence[Outgoing]) -> bytes:
    """Encodes one or more messages for plain takers, each routed by its own subject. After the account come four
    columns: subjects, replies, headers, payloads. A column is `u8 1 | u32 length | bytes` where all values are equal
    (payloads: where all are empty), else `u8 0 | u32 length of each | bytes of each`."""
    raw_account = _account_bytes.get(account) or _encode_account(account)
    count = len(messages)
    pieces = [_MSGS_BODY.pack(len(raw_account), count), raw_account]
    if native.join_columns is not None and isinstance(messages, list):
        return frame(Kind.MSGS, b"".join([*pieces, native.join_columns(messages)]))
    for place, column in enumerate(zip(*messages, strict=True)):
        first = column[0]
        # Equal payloads are sent one by one: buffers between nodes are bounded in bytes, and a flood of messages that
        # take no bytes exceeded what a leader may have waiting.
        if column.count(first) == count and not (place == _PAYLOAD_COLUMN and first):
            pieces += (_SAME.pack(1, len(first)), first)
        else:
            pieces += (b"\0", struct.pack(f"!{count}I", *map(len, column)), *column)
    return frame(Kind.MSGS, b"".join(pieces))


def decode_msgs(buffer: bytes, start: int, end: int) -> tuple[str, list[Outgoing]]:
    """Returns (account, messages) of the MSGS at buffer[start:end]. Raises FrameError, also for more than nodes send
    together: a few bytes can expand to very many."""
    if not _MSGS_BODY.size <= end - start <= MAX_DELIVER_BYTES:
        raise FrameError("MSGS is shorter or longer than nodes send it")
    a, count = _MSGS_BODY.unpack_from(buffer, start)
    if not 1 <= count <= MAX_DELIVER_BYTES // MSGS_LENGTH_BYTES:
        raise FrameError("MSGS has none or too many messages")
    at = start + _MSGS_BODY.size + a
    raw_account = buffer[at - a : at]
    if native.split_columns is not None:
        messages = native.split_columns(buffer, at, end, count, MAX_DELIVER_BYTES)
        if messages is None:
            raise FrameError("MSGS lengths do not fit its frame")
        return _account_text.get(raw_account) or _decode_account(raw_account), messages
    columns: list[Sequence[bytes]] = []
    total = 0
    for _ in range(4):
        column, size, at = _decode_column(buffer, at, end, count)
        total += size
        columns.append(column)
    if at != end or total > MAX_DELIVER_BYTES or not all(columns[0]):
        raise FrameError("MSGS lengths do not fit its frame")
    account = _account_text.get(raw_account) or _decode_account(raw_account)
    return account, list(zip(*columns, strict=True))


def _decode_column(buffer: bytes, at: int, end: int, count: int) -> tuple[Sequence[bytes], int, int]:
    """Returns (one value per message, total bytes, start of the next column)."""
    need = _SAME.size if buffer[at : at + 1] == b"\1" else 1 + 4 * count
    if at + need > end or buffer[at] > 1:
        raise FrameError("MSGS lengths do not fit its frame")
    if buffer[at]:
        size = _SAME.unpack_from(buffer, at)[1]
        after = at + need + size
        if after > end:
            raise FrameError("MSGS lengths do not fit its frame")
        return (buffer[at + need : after],) * count, size * count, after
    ends = list(accumulate(struct.unpack_from(f"!{count}I", buffer, at + 1), initial=at + need))
    if ends[-1] > end:
        raise FrameError("MSGS lengths do not fit its frame")
    return [buffer[low:high] for low, high in pairwise(ends)], ends[-1] - ends[0], ends[-1]


def encode_backlog(kind: Kind, account: str, target: bytes, mark: int, waiting: int = 0) -> bytes:
    """Encodes ASK_BACKLOG, or its answer BACKLOG."""
    raw = account.encode()
    return frame(kind, _BACKLOG_BODY.pack(len(raw), mark, waiting) + raw + target)


def decode_backlog(body: bytes) -> tuple[str, bytes, int, int]:
    """Returns (account, target, mark, waiting bytes). Raises FrameError."""
    if len(body) < _BACKLOG_BODY.size:
        raise FrameError("BACKLOG is too short")
    size, mark, waiting = _BACKLOG_BODY.unpack_from(body)
    end = _BACKLOG_BODY.size + size
    if end >= len(body):
        raise FrameError("BACKLOG lengths do not fit its frame")
    return _decode_account(body[_BACKLOG_BODY.size : end]), body[end:], mark, waiting


def encode_sub(account: str, subject: bytes, queue: bytes | None, count: int) -> bytes:
    raw = account.encode()
    length = _NO_QUEUE if queue is None else len(queue)
    if length == _NO_QUEUE and queue is not None:
        raise ValueError("queue name too long")
    return frame(Kind.SUB, _SUB_BODY.pack(len(raw), len(subject), length, count) + raw + subject + (queue or b""))


def decode_sub(body: bytes) -> tuple[str, bytes, bytes | None, int]:
    """Returns (account, subject, queue, count). Raises FrameError."""
    if len(body) < _SUB_BODY.size:
        raise FrameError("SUB is too short")
    a, s, q, count = _SUB_BODY.unpack_from(body)
    p0 = _SUB_BODY.size
    p1, p2 = p0 + a, p0 + a + s
    if p2 + (0 if q == _NO_QUEUE else q) != len(body):
        raise FrameError("SUB lengths do not fit its frame")
    subject = body[p1:p2]
    if not s:
        raise FrameError("SUB has no subject")
    return _decode_account(body[p0:p1]), subject, None if q == _NO_QUEUE else body[p2:], count


def encode_call(call_id: int, method: bytes, payload: bytes) -> bytes:
    return frame(Kind.CALL, _CALL_BODY.pack(call_id, len(method)) + method + payload)


def decode_call(body: bytes) -> tuple[int, str, bytes]:
    """Returns (id, method, payload). Raises FrameError."""
    if len(body) < _CALL_BODY.size:
        raise FrameError("CALL is too short")
    call_id, length = _CALL_BODY.unpack_from(body)
    end = _CALL_BODY.size + length
    if end > len(body):
        raise FrameError("CALL lengths do not fit its frame")
    return call_id, _decode_name(body[_CALL_BODY.size : end], "CALL"), body[end:]


def encode_reply(call_id: int, payload: bytes) -> bytes:
    return frame(Kind.REPLY, _U32.pack(call_id) + payload)


def encode_error(call_id: int, text: str) -> bytes:
    return frame(Kind.ERROR, _U32.pack(call_id) + text.encode(errors="replace"))


def decode_answer(body: bytes) -> tuple[int, bytes]:
    """Returns (id, payload or error text) of a REPLY or ERROR. Raises FrameError."""
    if len(body) < 4:
        raise FrameError("REPLY or ERROR is too short")
    return _unpack_u32(body)[0], body[4:]


def encode_notice(kind: bytes, payload: bytes) -> bytes:
    return frame(Kind.NOTICE, _U16.pack(len(kind)) + kind + payload)


def decode_notice(body: bytes) -> tuple[str, bytes]:
    """Returns (kind, payload). Raises FrameError."""
    if len(body) < 2:
        raise FrameError("NOTICE is too short")
    end = 2 + int(_U16.unpack_from(body)[0])
    if end > len(body):
        raise FrameError("NOTICE lengths do not fit its frame")
    return _decode_name(body[2:end], "NOTICE"), body[end:]


def encode_ping(kind: Kind, stamp: int) -> bytes:
    """Encodes PING or PONG; `stamp` is the pinging side's monotonic nanoseconds, sent back unread."""
    return frame(kind, _U64.pack(stamp))


def decode_ping(body: bytes) -> int:
    if len(body) != 8:
        raise FrameError("PING or PONG is not 8 bytes")
    return int(_U64.unpack(body)[0])


def _decode_name(raw: bytes, what: str) -> str:
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError as error:
        raise FrameError(f"{what} name is not ASCII") from error
