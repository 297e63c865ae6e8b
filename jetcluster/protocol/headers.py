r"""Header blocks: `NATS/1.0[ status[ description]]\r\n`, `Key: value\r\n`..., `\r\n`.

Keys keep their case and are compared case-sensitively, keys may repeat, values lose leading blanks. What clients send
is not validated by the core protocol, so the readers here answer "absent" for garbage and never raise.
"""

from __future__ import annotations

from collections.abc import Iterable

_PREFIX = b"NATS/1.0"
_LINE = b"NATS/1.0\r\n"
_CRLF = b"\r\n"


def build(pairs: Iterable[tuple[bytes, bytes]], status: bytes = b"") -> bytes:
    r"""A header block from (key, value) pairs. `status` is what follows the version, as b"503" or b"404 No Messages".
    The caller guarantees that neither keys nor values hold CR or LF."""
    first = b"NATS/1.0 %b\r\n" % status if status else _LINE
    return b"".join((first, *[b"%b: %b\r\n" % pair for pair in pairs], _CRLF))


def get(block: bytes, key: bytes) -> bytes | None:
    """Returns the first value of `key`, exact case; None when it is absent, which costs one `find`."""
    needle = b"\n" + key + b":"
    at = block.find(needle)
    if at < 0:
        return None
    start = at + len(needle)
    end = block.find(_CRLF, start)
    if end < 0:
        end = len(block)
    return block[start:end].strip(b" \t")


def get_all(block: bytes, key: bytes) -> list[bytes]:
    """Returns every value that `get` might find, in order, also in a block that `parse` does not read."""
    needle, found, at = b"\n" + key + b":", [], 0
    while (at := block.find(needle, at)) >= 0:
        at += len(needle)
        end = block.find(_CRLF, at)
        found.append(block[at : end if end >= 0 else len(block)].strip(b" \t"))
    return found


def parse(block: bytes) -> list[tuple[bytes, bytes]]:
    """All (key, value) pairs in order; lines without a colon are left out, a block without the version line is []."""
    if not block.startswith(_PREFIX):
        return []
    pairs: list[tuple[bytes, bytes]] = []
    for line in block.split(_CRLF)[1:]:
        key, colon, value = line.partition(b":")
        if colon and key:
            pairs.append((key, value.strip(b" \t")))
    return pairs


def beginning(block: bytes, most: int) -> bytes:
    """Returns the lines within the first `most` bytes of a block, for an excerpt to show."""
    return block if len(block) <= most else block[: block.rfind(_CRLF, 0, most) + 2]


def is_well_formed(block: bytes) -> bool:
    """True for a block that a JetStream store keeps: version line, `key: value` lines, the empty line at the end."""
    if not block.startswith(_PREFIX) or not block.endswith(b"\r\n\r\n"):
        return False
    return all(b":" in line for line in block.split(_CRLF)[1:-2])


def status(block: bytes) -> tuple[int, bytes]:
    """(status code, description) of the version line; (0, b"") when it has none."""
    end = block.find(_CRLF)
    if end < 0 or not block.startswith(_PREFIX):
        return 0, b""
    code, _, text = block[len(_PREFIX) : end].strip().partition(b" ")
    return (int(code), text.strip()) if code.isdigit() and len(code) == 3 else (0, b"")


def without_status(block: bytes) -> bytes:
    """Returns the block with a bare version line."""
    end = block.find(_CRLF)
    if end <= len(_PREFIX) or not block.startswith(_PREFIX):
        return block
    return _PREFIX + block[end:]


def set_header(block: bytes, key: bytes, value: bytes) -> bytes:
    """Returns the block with `key` once, at the end, with `value`; the block b"" makes a new one."""
    block = remove(block, key) if block else b"NATS/1.0\r\n\r\n"
    return b"%b%b: %b\r\n\r\n" % (block[:-2], key, value)


def remove(block: bytes, key: bytes) -> bytes:
    """Returns the block without any `key`, also after a bare LF, where some clients begin a line; the rest stays."""
    needle = b"\n" + key + b":"
    at = block.find(needle)
    if at < 0:
        return block
    parts, kept = [], 0
    while at >= 0:
        parts.append(block[kept : at - 1 if block[at - 1 : at] == b"\r" else at])
        kept = block.find(_CRLF, at + 1)
        if kept < 0:
            kept = len(block)
        at = block.find(needle, kept)
    return b"".join((*parts, block[kept:]))
