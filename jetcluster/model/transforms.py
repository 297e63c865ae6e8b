"""`SubjectTransform`: maps subjects by a source pattern and a destination with functions (ADR-30).

    orders.*.*   ->  {{wildcard(2)}}.{{partition(3,1)}}
    in.>         ->  out.>

A stream's subject_transform, republish and the transforms of sources use it. It is below `protocol`, because the
configuration rules parse it too. Subjects are bytes, as on the data path. Error texts are nats-server 2.15's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from jetcluster.errors import CallerError
from jetcluster.records import NamedTuple

MAX_INT32: Final = 2**31 - 1
MAX_MAPPED_BYTES: Final = 65_535
"""Bytes of a mapped subject, the limit of stored subjects."""
MAX_DESTINATION_BYTES: Final = 4096
"""Bytes of a destination, equal to the default max_control_line."""
MAX_READ_TOKENS: Final = 64
"""Tokens of the subject that the functions of a destination read; a token read twice counts twice."""
TOO_LONG: Final = b"." * (MAX_MAPPED_BYTES + 1)
"""Stands for every mapped subject longer than MAX_MAPPED_BYTES. It is no valid subject, and too long to be stored."""

_INVALID: Final = "invalid mapping destination"
_FUNCTION: Final = re.compile(rb"\{\{\s*([A-Za-z]+)\s*\((.*)\)\s*\}\}", re.DOTALL)
_ONE_TOKEN: Final = re.compile(r"\{\{\s*(wildcard|partition)\s*\([^.]*\)\s*\}\}", re.IGNORECASE)
"""Functions whose result is one token; others may make several."""
_COMMA: Final = re.compile(rb",\s*")
_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,19}")
_BLANKS: Final = frozenset(b" \t\n\v\f\r")
_MAX_DIGITS: Final = 10
"""Digits of a function's number."""


class Piece(NamedTuple):
    """One function in the destination."""

    make: Callable[[Sequence[bytes], int], bytes]
    """Makes the text from the subject's tokens and a number in place of a random one."""
    reads: Sequence[int] = ()
    """Positions of the tokens it reads; empty: none or all of them."""
    costly: bool = False
    """It reads every byte of its tokens even if its result is short."""


class TransformError(CallerError):
    """A source and destination that make no transform; the text is nats-server's."""


class SubjectTransform:
    """A transform, which is immutable. `match` depends on its arguments alone."""

    def __init__(self, source: bytes, destination: bytes) -> None:
        """An empty `source` is `>`, an empty `destination` does not change subjects. Raises TransformError."""
        self.source = source or b">"
        self.destination = destination
        self._identity = not destination or (self.source == b">" and destination == b">")
        self._source = self.source.split(b".")
        self._pieces: list[bytes | Piece] = []
        self._tail = False
        self._fixed = self._growth = 0
        """Bytes that are read and written for a subject of n bytes: at most `_fixed + n * _growth`."""
        self._literal: bytes | None = None
        self.random = b"{{" in destination and b"andom" in destination
        """Equal subjects may have different results."""
        if not self._identity:
            self._compile(destination.split(b"."))

    def match(self, subject: bytes, chance: int = 0) -> bytes | None:
        """Returns the mapped subject; None when the source does not match, TOO_LONG when the result or the bytes read
        for it would exceed MAX_MAPPED_BYTES. `random(n)` is computed from `chance` (>= 0); a state machine must pass a
        number on which all replicas agree."""
        tokens = subject.split(b".")
        if not self._takes(tokens):
            return None
        if self._identity:
            return subject
        if self._literal is not None:
            return self._literal
        if self._fixed + len(subject) * self._growth > MAX_MAPPED_BYTES and self._is_too_long(tokens, chance):
            return TOO_LONG
        made = [piece if isinstance(piece, bytes) else piece.make(tokens, chance) for piece in self._pieces]
        if self._tail:
            made += tokens[len(self._source) - 1 :]
        return b".".join(made)

    def _is_too_long(self, tokens: list[bytes], chance: int) -> bool:
        """Measures the result piece by piece, without storing it."""
        size = read = 0
        if self._tail:
            rest = tokens[len(self._source) - 1 :]
            size = sum(map(len, rest)) + len(rest)
        for piece in self._pieces:
            if isinstance(piece, bytes):
                size += len(piece) + 1
            else:
                if piece.costly:
                    for at in piece.reads or range(len(tokens)):
                        read += len(tokens[at]) + 1
                        if read > MAX_MAPPED_BYTES:
                            return True
                size += len(piece.make(tokens, chance)) + 1
            if size > MAX_MAPPED_BYTES + 1:  # each piece counts a separator, and the last has none
                return True
        return False

    def _takes(self, tokens: list[bytes]) -> bool:
        source = self._source
        last = len(source) - 1
        if b"" in tokens or (len(tokens) != len(source) and source[last] != b">"):
            return False
        for position, want in enumerate(source):
            if want == b">" and position == last:
                return len(tokens) > position
            if position >= len(tokens) or want not in (b"*", tokens[position]):
                return False
        return True

    def _compile(self, destination: list[bytes]) -> None:
        if not _is_subject(self._source) or not _is_subject(destination):
            raise TransformError("invalid subject")
        self._tail = destination[-1] == b">"
        if b"*" in destination or self._tail != (self._source[-1] == b">"):
            raise TransformError("invalid subject")
        stars = [position for position, token in enumerate(self._source) if token == b"*"]
        wild = bool(stars) or self._tail
        pieces = [_piece(token, stars, wild) for token in (destination[:-1] if self._tail else destination)]
        self._pieces = pieces
        if not self._tail and all(isinstance(piece, bytes) for piece in pieces):
            self._literal = self.destination if len(self.destination) <= MAX_MAPPED_BYTES else TOO_LONG
        self._growth = int(self._tail)
        for piece in pieces:
            if isinstance(piece, bytes):
                self._fixed += len(piece) + 1
            else:
                self._fixed += _MAX_DIGITS + 1
                self._growth += 2 * max(1, len(piece.reads))  # each byte may become a token

    @property
    def reads(self) -> int:
        """The number of the subject's tokens that its functions read."""
        return sum(max(1, len(piece.reads)) for piece in self._pieces if not isinstance(piece, bytes))


def check_mapping(source: bytes, destination: bytes) -> None:
    """Checks a transform of a stream's configuration. Raises TransformError."""
    if not destination:
        return
    check_length(destination)
    tokens = destination.split(b".")
    end = tokens.index(b">") if b">" in tokens else len(tokens)
    for position, token in enumerate(tokens):
        if not token or position > end:
            raise TransformError(f"{_INVALID}: invalid transform" + (f" in {_text(token)}" if token else ""))
        if _is_placeholder(token):
            found = _FUNCTION.fullmatch(token)
            if found is None or found[1].lower() not in _FUNCTIONS:
                raise TransformError(f"{_INVALID}: unknown function in {_text(token)}")
        elif not _BLANKS.isdisjoint(token):
            raise TransformError(f"{_INVALID}: invalid transform")
    bounded(SubjectTransform(source, destination))


def check_length(destination: bytes) -> None:
    """Checks the length before the destination is parsed. Raises TransformError."""
    if len(destination) > MAX_DESTINATION_BYTES:
        raise TransformError(f"{_INVALID}: longer than {MAX_DESTINATION_BYTES} bytes")


def bounded(transform: SubjectTransform) -> SubjectTransform:
    """Returns the transform. Raises TransformError if it exceeds the bounds, which stored ones may exceed."""
    check_length(transform.destination)
    if transform.reads > MAX_READ_TOKENS:
        raise TransformError(f"{_INVALID}: more than {MAX_READ_TOKENS} wildcards")
    return transform


def _is_subject(tokens: list[bytes]) -> bool:
    return b"" not in tokens and b">" not in tokens[:-1]


def _is_placeholder(token: bytes) -> bool:
    return len(token) > 4 and token.startswith(b"{{") and token.endswith(b"}}")


def _piece(token: bytes, stars: Sequence[int], wild: bool) -> bytes | Piece:
    """Compiles a token of the destination. `stars`: positions of the source's `*`; `wild`: it has any wildcard."""
    if token.startswith(b"$") and len(token) > 1:
        number = _INTEGER.fullmatch(token, 1)
        if number is None:
            return token  # subjects such as $KV.b.k are literals
        if not wild:
            raise _out_of_range(token)
        return _wildcard(token, [number[0]], stars)
    if not _is_placeholder(token):
        return token
    found = _FUNCTION.fullmatch(token)
    make = _FUNCTIONS.get(found[1].lower()) if found is not None else None
    if found is None or make is None:
        raise TransformError(f"{_INVALID}: unknown function in {_text(token)}")
    arguments = _COMMA.split(found[2])
    if not wild and make not in (_partition, _random):
        make(token, arguments, range(MAX_INT32))  # raises errors of its arguments first
        raise _out_of_range(token)
    return make(token, arguments, stars)


def _star(token: bytes, number: int, stars: Sequence[int]) -> int:
    """Returns the position of the `number`-th `*`, counted from 1; below 1 is the first token, as in nats-server."""
    if number > len(stars):
        raise TransformError(f"{_INVALID}: wildcard index out of range in {_text(token)}: [{number}]")
    return stars[number - 1] if number > 0 else 0


def _wildcard(token: bytes, args: list[bytes], stars: Sequence[int]) -> Piece:
    if args == [b""]:
        raise _failure("not enough arguments passed to the function", token)
    if len(args) > 1:
        raise _failure("too many arguments passed to the function", token)
    at = _star(token, _integer(token, args[0]), stars) if stars or args else 0
    return Piece(lambda tokens, chance: tokens[at], (at,))


def _partition(token: bytes, args: list[bytes], stars: Sequence[int]) -> Piece:
    buckets = _integer(token, args[0], MAX_INT32)
    wanted = [_star(token, _integer(token, arg), stars) for arg in args[1:]]

    def pick(tokens: Sequence[bytes], chance: int) -> bytes:
        if not buckets:
            return b"0"
        key = b"".join([tokens[at] for at in wanted]) if wanted else b".".join(tokens)
        return b"%d" % (_fnv1a(key) % (buckets & 0xFFFFFFFF))

    return Piece(pick, wanted, costly=True)


def _random(token: bytes, args: list[bytes], stars: Sequence[int]) -> Piece:
    if len(args) != 1:
        raise _failure("not enough arguments passed to the function", token)
    ceiling = _integer(token, args[0], MAX_INT32)
    return Piece(lambda tokens, chance: b"%d" % (chance % abs(ceiling)) if ceiling else b"0")


def _split(token: bytes, args: list[bytes], stars: Sequence[int]) -> Piece:
    _two(token, args)
    at, delimiter = _star(token, _integer(token, args[0]), stars), args[1]
    if b" " in delimiter or b"." in delimiter:
        raise _failure("function argument is invalid or in the wrong format", token)

    def split(tokens: Sequence[bytes], chance: int) -> bytes:
        whole = tokens[at]
        parts = whole.split(delimiter) if delimiter else [whole[i : i + 1] for i in range(len(whole))]
        return b".".join(filter(None, parts))

    return Piece(split, (at,), costly=True)


def _cutting(cut: Callable[[bytes, int], list[bytes]]) -> Callable[[bytes, list[bytes], Sequence[int]], Piece]:
    """Returns a function of a token and a length, which does not change tokens that are not longer."""

    def make(token: bytes, args: list[bytes], stars: Sequence[int]) -> Piece:
        _two(token, args)
        number = _integer(token, args[0])
        size = _integer(token, args[1], MAX_INT32)
        at = _star(token, number, stars)

        def piece(tokens: Sequence[bytes], chance: int) -> bytes:
            whole = tokens[at]
            return b".".join(cut(whole, size)) if 0 < size < len(whole) else whole

        return Piece(piece, (at,))

    return make


def _slice_left(whole: bytes, size: int) -> list[bytes]:
    return [whole[i : i + size] for i in range(0, len(whole), size)]


def _slice_right(whole: bytes, size: int) -> list[bytes]:
    rest = len(whole) % size
    return ([whole[:rest]] if rest else []) + [whole[i : i + size] for i in range(rest, len(whole), size)]


_FUNCTIONS: Final[dict[bytes, Callable[[bytes, list[bytes], Sequence[int]], Piece]]] = {
    b"wildcard": _wildcard,
    b"partition": _partition,
    b"random": _random,
    b"split": _split,
    b"splitfromleft": _cutting(lambda whole, size: [whole[:size], whole[size:]]),
    b"splitfromright": _cutting(lambda whole, size: [whole[:-size], whole[-size:]]),
    b"slicefromleft": _cutting(_slice_left),
    b"slicefromright": _cutting(_slice_right),
    b"left": _cutting(lambda whole, size: [whole[:size]]),
    b"right": _cutting(lambda whole, size: [whole[-size:]]),
}


def _two(token: bytes, args: list[bytes]) -> None:
    if len(args) < 2:
        raise _failure("not enough arguments passed to the function", token)
    if len(args) > 2:
        raise _failure("too many arguments passed to the function", token)


def _integer(token: bytes, text: bytes, most: int = 2**63 - 1) -> int:
    text = text.strip(b" ")
    if _INTEGER.fullmatch(text) is None or not -most - 1 <= int(text) <= most:
        raise _failure("function argument is invalid or in the wrong format", token)
    return int(text)


def _failure(what: str, token: bytes) -> TransformError:
    return TransformError(f"{_INVALID}: {what} in {_text(token)}")


def _out_of_range(token: bytes) -> TransformError:
    return _failure("wildcard index out of range", token)


def _fnv1a(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def _text(token: bytes) -> str:
    return token.decode(errors="replace")


def results_filter(destination: str) -> str:
    """Returns a filter that matches every subject that a transform to `destination` can make."""
    made: list[str] = []
    for part in destination.split("."):
        if part == ">" or ("{{" in part and not _ONE_TOKEN.search(part)):
            made.append(">")
            break
        made.append("*" if "{{" in part or (part[:1] == "$" and part[1:].isdigit()) else part)
    return ".".join(made)
