"""A twin of nats-server's writer of archives of format V1: its files, and the tar stream of them in frames of S2."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence

from jetcluster.protocol import s2

File = tuple[str, bytes]


def checksum(text: bytes) -> bytes:
    """Eight bytes in the place of HighwayHash's, which nobody verifies but which must tell records apart."""
    return struct.pack("<II", zlib.crc32(text), zlib.adler32(text))


def record(
    seq: int, ts: int, subject: bytes = b"", payload: bytes = b"", headers: bytes = b"", marks: int = 0
) -> bytes:
    body = subject + (struct.pack("<I", len(headers)) + headers if headers else b"") + payload
    length = 22 + len(body) + 8
    head = struct.pack("<IQqH", length | (1 << 31 if headers else 0), seq | marks, ts, len(subject))
    return head + body + checksum(head + body)


def erased(seq: int, ts: int, size: int = 0) -> bytes:
    """A message of which noise of `size` bytes is left."""
    return record(seq, ts, payload=b"\xa5" * size, marks=1 << 63)


def tombstone(seq: int, ts: int) -> bytes:
    return record(seq, ts, marks=1 << 62)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def varint(value: int) -> bytes:
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def sequence_set(seqs: Iterable[int], version: int = 2) -> bytes:
    bits = 2048 if version == 2 else 4096
    nodes: dict[int, int] = {}
    count = 0
    for seq in sorted(seqs):
        nodes[seq // bits * bits] = nodes.get(seq // bits * bits, 0) | 1 << seq % bits
        count += 1
    body = b"".join(
        base.to_bytes(8, "little") + bitmap.to_bytes(bits // 8, "little") + b"\1\0" for base, bitmap in nodes.items()
    )
    return struct.pack("<BBII", 22, version, len(nodes), count) + body


def index(
    blocks: Sequence[tuple[int, int, int, Sequence[int]]], last_seq: int, last_block: int, last_checksum: bytes,
    subjects: Mapping[bytes, int] | None = None, version: int = 3,
) -> bytes:  # fmt: skip
    """`msgs/index.db`: (number, first sequence, last, deleted ones) of each block."""
    out = bytes((11, version)) + uvarint(9) + uvarint(900) + uvarint(1) + varint(-5) + uvarint(last_seq) + varint(7)
    out += uvarint(len(subjects or {}))
    for subject, messages in (subjects or {}).items():
        out += uvarint(len(subject)) + subject + uvarint(messages) + uvarint(1)
        out += uvarint(1) if messages > 1 or version >= 4 else b""
    out += uvarint(len(blocks))
    for number, first, last, deleted in blocks:
        out += uvarint(number) + uvarint(300) + uvarint(first) + varint(3) + uvarint(last) + varint(1 << 40)
        out += uvarint(len(deleted)) + bytes(min(version, 3) - 1)
        out += sequence_set(deleted) if deleted else b""
    out += uvarint(last_block) + last_checksum
    return out + checksum(out)


def block_index(first: int, last: int, deleted: Sequence[int], last_checksum: bytes, version: int = 1) -> bytes:
    """`msgs/N.idx`."""
    out = bytes((22, version)) + uvarint(9) + uvarint(900) + uvarint(first) + varint(3) + uvarint(last) + varint(9)
    out += uvarint(len(deleted)) + last_checksum
    if version == 1:
        return out + b"".join(uvarint(seq - first) for seq in deleted)
    return out + (sequence_set(deleted) if deleted else b"")


def consumer_state(
    floor: tuple[int, int], delivered: tuple[int, int], pending: Sequence[tuple[int, int, int]] = (),
    redelivered: Mapping[int, int] | None = None, version: int = 2, now: int = 1_700_000_000,
) -> bytes:  # fmt: skip
    """`obs/<name>/o.dat`: pairs are (consumer's, stream's); pending ones (stream's, consumer's, seconds)."""
    out = bytes((22, version)) + uvarint(floor[0]) + uvarint(floor[1])
    for own, base in zip(delivered, floor, strict=True):
        out += uvarint(own - max(base - 1, 0) if version == 1 else own)
    out += uvarint(len(pending)) + (varint(now) if pending else b"")
    for seq, own, seconds in pending:
        out += uvarint(seq - floor[1]) + (uvarint(own - floor[0]) if version == 2 else b"")
        out += varint(now - seconds if version == 2 else seconds - now)
    out += uvarint(len(redelivered or {}))
    return out + b"".join(uvarint(seq - floor[1]) + uvarint(count) for seq, count in (redelivered or {}).items())


def meta(name: str, config: Mapping[str, object] | None = None) -> bytes:
    return json.dumps({"Created": "2024-05-01T12:00:00Z", "name": name, **(config or {})}).encode()


def consumer(name: str, state: bytes, config: Mapping[str, object] | None = None) -> list[File]:
    whole = {"Created": "2024-05-01T12:00:00Z", "Name": name, "durable_name": name, "ack_policy": "explicit"}
    files = {"meta.inf": json.dumps({**whole, **(config or {})}).encode(), "meta.sum": b"0" * 16, "o.dat": state}
    return [(f"obs/{name}/{file}", content) for file, content in files.items()]


def tar(files: Sequence[File], *, end: bool = True) -> bytes:
    """The files in a tar stream, with a pax header before each, as nats-server writes them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as writer:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.uname, info.gname = len(content), 0o600, "nats", "nats"
            info.mtime = 1_700_000_000.123456  # which needs a pax header
            writer.addfile(info, io.BytesIO(content))
        length = writer.offset
    return out.getvalue()[: length + (1024 if end else 0)]


def framed(stream: bytes) -> bytes:
    return s2.STREAM_ID + b"".join(s2.encode(stream))


def archive(files: Sequence[File], *, end: bool = True) -> bytes:
    return framed(tar(files, end=end))
