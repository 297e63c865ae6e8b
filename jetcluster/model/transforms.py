"""`SubjectTransform`: maps subjects by a source pattern and a destination with functions (ADR-30).

    orders.*.*   ->  {{wildcard(2)}}.{{partition(3,1)}}
    in.>         ->  out.>

Used by a stream's subject_transform, by republish and by the transforms of sources. It lives here, below `protocol`,
because the configuration rules parse it too. Subjects are bytes, as on the data path.

Texts of the errors are as nats-server 2.15 gives them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from jetcluster.errors import CallerError

MAX_INT32: Final = 2**31 - 1
MAX_MAPPED: Final = 65_535
"""Bytes of a mapped subject: no longer one can be stored."""
MAX_DESTINATION: Final = 4096
"""Bytes of a destination: a subject that a client sends is no longer, unless its line may be."""
MAX_READS: Final = 64
"""Tokens of the subject that the functions of a destination look at: one that is named twice counts twice."""
TOO_LONG: Final = b"." * (MAX_MAPPED + 1)
"""Stands for every mapped subject above MAX_MAPPED, and is as long as none may be; no subject looks like it."""

_INVALID: Final = "invalid mapping destination"
_FUNCTION: Final = re.compile(rb"\{\{\s*([A-Za-z]+)\s*\((.*)\)\s*\}\}", re.DOTALL)
_ONE_TOKEN: Final = re.compile(r"\{\{\s*(wildcard|partition)\s*\([^.]*\)\s*\}\}", re.IGNORECASE)
"""Functions whose result is one token of a subject; others may make several."""
_COMMA: Final = re.compile(rb",\s*")
_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,19}")
_BLANKS: Final = frozenset(b" \t\n\f\r")

_MOST_DIGITS: Final = 10
"""Digits of a number that a function makes."""


class Piece(NamedTuple):
    """One token of the destination that is made of the subject."""

    make: Callable[[Sequence[bytes], int], bytes]
    """From the subject's tokens and a number that stands for chance."""
    reads: Sequence[int] = ()
    """Positions of the tokens it looks at; empty: at none, or at all of them."""
    costly: bool = False
    """It looks at every byte of them, and what it makes may be short all the same."""


class TransformError(CallerError):
    """A source and destination that make no transform; the text is nats-server's."""


class SubjectTransform:
    """Immutable. `match` is a function of its arguments alone."""

    def __init__(self, source: bytes, destination: bytes) -> None:
        """An empty `source` is `>`, an empty `destination` leaves subjects as they are. Raises TransformError."""
        self.source = source or b">"
        self.destination = destination
        self._identity = not destination or (self.source == b">" and destination == b">")
        self._source = self.source.split(b".")
        self._pieces: list[bytes | Piece] = []
        self._tail = False
        self._fixed = self._growth = 0
        """A subject of n bytes takes at most `_fixed + n * _growth` bytes, of the mapped one and of what is read."""
        self._literal: bytes | None = None
        self.random = b"{{" in destination and b"andom" in destination
        """Equal subjects may be mapped differently."""
        if not self._identity:
            self._compile(destination.split(b"."))

    def match(self, subject: bytes, chance: int = 0) -> bytes | None:
        """The mapped subject; None when the source does not take it, TOO_LONG when it were longer than MAX_MAPPED or
        more than that had to be read for it. `chance` (>= 0) is what `random(n)` is taken from: a state machine passes
        something that all replicas agree on."""
        tokens = subject.split(b".")
        if not self._takes(tokens):
            return None
        if self._identity:
            return subject
        if self._literal is not None:
            return self._literal
        if self._fixed + len(subject) * self._growth > MAX_MAPPED and self._is_too_long(tokens, chance):
            return TOO_LONG
        made = [piece if isinstance(piece, bytes) else piece.make(tokens, chance) for piece in self._pieces]
        if self._tail:
            made += tokens[len(self._source) - 1 :]
        return b".".join(made)

    def _is_too_long(self, tokens: list[bytes], chance: int) -> bool:
        """Looked at piece by piece, without holding more than one."""
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
                        if read > MAX_MAPPED:
                            return True
                size += len(piece.make(tokens, chance)) + 1
            if size > MAX_MAPPED + 1:  # one separator less than pieces
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
            self._literal = self.destination if len(self.destination) <= MAX_MAPPED else TOO_LONG
        self._growth = int(self._tail)
        for piece in pieces:
            if isinstance(piece, bytes):
                self._fixed += len(piece) + 1
            else:
                self._fixed += _MOST_DIGITS + 1
                self._growth += 2 * max(1, len(piece.reads))  # each byte may become a token

    @property
    def reads(self) -> int:
        """Tokens of the subject that its functions look at."""
        return sum(max(1, len(piece.reads)) for piece in self._pieces if not isinstance(piece, bytes))


def check_mapping(source: bytes, destination: bytes) -> None:
    """Checks a transform as a stream's configuration may have it. Raises TransformError."""
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
    """Before anything is made of it. Raises TransformError."""
    if len(destination) > MAX_DESTINATION:
        raise TransformError(f"{_INVALID}: longer than {MAX_DESTINATION} bytes")


def bounded(transform: SubjectTransform) -> SubjectTransform:
    """The transform itself. One that has been stored already may be beyond these bounds, a new one may not. Raises
    TransformError."""
    check_length(transform.destination)
    if transform.reads > MAX_READS:
        raise TransformError(f"{_INVALID}: more than {MAX_READS} wildcards")
    return transform


def _is_subject(tokens: list[bytes]) -> bool:
    return b"" not in tokens and b">" not in tokens[:-1]


def _is_placeholder(token: bytes) -> bool:
    return len(token) > 4 and token.startswith(b"{{") and token.endswith(b"}}")


def _piece(token: bytes, stars: Sequence[int], wild: bool) -> bytes | Piece:
    """`stars` are the positions of the source's `*`; `wild`: the source has a wildcard of any kind."""
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
        make(token, arguments, range(MAX_INT32))  # what is wrong with its arguments in any case is said first
        raise _out_of_range(token)
    return make(token, arguments, stars)


def _star(token: bytes, number: int, stars: Sequence[int]) -> int:
    """Position in the subject of the `number`-th `*`, counted from 1; below 1 is the first token, as upstream."""
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
    """A function of a token and a length, that leaves tokens alone which are not longer."""

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
    """A filter that takes every subject a transform to `destination` can make."""
    made: list[str] = []
    for part in destination.split("."):
        if part == ">" or ("{{" in part and not _ONE_TOKEN.search(part)):
            made.append(">")
            break
        made.append("*" if "{{" in part or (part[:1] == "$" and part[1:].isdigit()) else part)
    return ".".join(made)
