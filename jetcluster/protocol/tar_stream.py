"""The tar stream of an archive of format V1, in pieces of any size: what is in its files, as it comes.

Headers are blocks of 512 bytes (POSIX ustar), where a header of type `x` before a file's own (pax) may give it a longer
name or size. Two blocks of zeros end the stream. A file's content is never held: each piece of it is passed on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jetcluster.protocol.stream_archive import ArchiveError
from jetcluster.records import NamedTuple

BLOCK_BYTES: Final = 512
MAX_EXTENDED_BYTES: Final = 8 * 1024
"""Bytes of a pax header that are taken."""
MAX_FILE_BYTES: Final = 1 << 62
_CHECKSUM: Final = slice(148, 156)
_FILE, _OLD_FILE, _EXTENDED, _GLOBAL = b"0", b"\0", b"x", b"g"


class TarPart(NamedTuple):
    """A piece of a file; a file without content has one without data."""

    name: str
    size: int
    """Bytes of the whole file."""
    at: int
    data: bytes

    @property
    def last(self) -> bool:
        return self.at + len(self.data) == self.size


class TarReader:
    """Reads a tar stream; holds at most a header, with that which extends it."""

    def __init__(self) -> None:
        self.finished = False
        self._begun = False
        self._pending = bytearray()
        self._ending = False
        """The first of the two blocks of zeros was there."""
        self._name = ""
        self._kind = _FILE
        self._size = self._at = 0
        """Size of the present file, and how much of it was there."""
        self._padding = 0
        """Bytes up to the next block, to be passed over."""
        self._extended = bytearray()
        self._given: dict[str, str] = {}
        """Fields of a pax header for the next file."""

    @property
    def held(self) -> int:
        return len(self._pending) + len(self._extended)

    def feed(self, data: bytes) -> Iterator[TarPart | None]:
        """The parts that `data` completes, and None after each header. Raises ArchiveError."""
        pending = self._pending
        pending += data
        at = 0
        try:
            while at < len(pending):
                if self._padding:
                    more = min(self._padding, len(pending) - at)
                    self._padding -= more
                    at += more
                elif self._at < self._size:
                    end = min(at + self._size - self._at, len(pending))
                    yield from self._take(bytes(pending[at:end]))
                    at = end
                elif len(pending) - at < BLOCK_BYTES:
                    return
                else:
                    at += BLOCK_BYTES
                    yield from self._begin(bytes(pending[at - BLOCK_BYTES : at]))
        finally:
            del pending[:at]

    def _take(self, data: bytes) -> Iterator[TarPart | None]:
        at = self._at
        self._at += len(data)
        if self._at == self._size:
            self._padding = -self._size % BLOCK_BYTES
        if self._kind == _FILE:
            yield TarPart(self._name, self._size, at, data)
        elif self._kind == _EXTENDED:
            self._extended += data
            if self._at == self._size:
                self._given = _fields(bytes(self._extended))
                self._extended.clear()

    def _begin(self, block: bytes) -> Iterator[TarPart | None]:
        begun, self._begun = self._begun, True
        if self._ends(block):
            return
        if not _is_header(block):
            raise ArchiveError("a header of the tar archive is damaged" if begun else "unknown archive format")
        kind = block[156:157]
        self._kind = _FILE if kind == _OLD_FILE else kind
        if self._kind not in (_FILE, _EXTENDED, _GLOBAL):
            raise ArchiveError("something in the tar archive is no file")
        self._size, self._at = _octal(block[124:136]), 0
        if self._kind == _FILE:
            given, self._given = self._given, {}
            self._name = given.get("path") or _name(block)
            if "size" in given:
                self._size = _decimal(given["size"])
        elif self._size > MAX_EXTENDED_BYTES:
            raise ArchiveError("a header of the tar archive is too long")
        if self._size > MAX_FILE_BYTES:
            raise ArchiveError("a file of the tar archive is too long")
        yield from () if self._size else self._take(b"")
        yield None

    def _ends(self, block: bytes) -> bool:
        zeros = not block.strip(b"\0")
        if self._ending and not zeros:
            raise ArchiveError("bytes behind the end of the archive")
        self.finished = self.finished or (self._ending and zeros)
        self._ending = zeros
        return zeros


def _is_header(block: bytes) -> bool:
    field = block[_CHECKSUM].strip(b" \0")
    total = sum(block) - sum(block[_CHECKSUM]) + 8 * ord(" ")
    return field.isdigit() and not field.strip(b"01234567") and int(field, 8) == total


def _name(block: bytes) -> str:
    name, prefix = block[:100].split(b"\0")[0], block[345:500].split(b"\0")[0]
    whole = prefix + b"/" + name if prefix and block.startswith(b"ustar\0", 257) else name
    return whole.decode("utf-8", "replace")


def _fields(content: bytes) -> dict[str, str]:
    """Fields of a pax header: lines of `<length of the line> <key>=<value>`."""
    found: dict[str, str] = {}
    at = 0
    while at < len(content):
        space = content.find(b" ", at, at + 8)
        length = _decimal(content[at:space].decode("latin-1")) if space > at else 0
        line = content[space + 1 : at + length]
        key, equals, value = line.partition(b"=")
        if not equals or not line.endswith(b"\n") or at + length > len(content):
            raise ArchiveError("a header of the tar archive is damaged")
        found[key.decode("utf-8", "replace")] = value[:-1].decode("utf-8", "replace")
        at += length
    return found


def _decimal(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ArchiveError("a header of the tar archive is damaged")
    return int(text)


def _octal(field: bytes) -> int:
    """A number of a header; a large one may be binary, with the top bit set."""
    if field[0] & 0x80:
        return int.from_bytes(field, "big") - (0x80 << 8 * (len(field) - 1))
    text = field.strip(b" \0")
    if text.strip(b"01234567"):
        raise ArchiveError("a header of the tar archive is damaged")
    return int(text, 8) if text else 0
