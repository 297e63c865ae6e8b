"""Parser for nats-server's configuration format: text -> tree of `Node`s that remember where they stood.

Variables resolve while parsing, from the nearest enclosing block and then from the environment, as in the real server;
`include` splices another file's pairs into the block it stands in (reference sheet core, section 2.5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Union

from jetcluster.config.lexer import BLANK, ConfigError, ParseError, Scanner

Scalar = Union[str, int, float, bool, datetime]  # noqa: UP007 - evaluated at import together with a forward reference
Value = Union[Scalar, "list[Node]", "dict[str, Node]"]

MAX_INCLUDE_DEPTH = 32
"""A file that includes itself is reported instead of recursing until the stack ends."""

_INT = re.compile(r"-?\d+")
_SIZED = re.compile(r"(-?\d+)([kmgtpe])(ib?|b)?", re.IGNORECASE)
_FLOAT = re.compile(r"-?\d+\.\d+")
_DATETIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_BCRYPT = re.compile(r"\$2[abxy]\$")
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}


class Node:
    """One value of the tree. `line`/`column` are those of its key when it has one, as the real server reports them."""

    __slots__ = ("column", "file", "line", "used_as_variable", "value")

    def __init__(self, value: Value, file: str, line: int, column: int) -> None:
        self.value = value
        self.file = file
        self.line = line
        self.column = column
        self.used_as_variable = False

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def plain(self) -> object:
        """The value with all `Node`s taken off."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def __repr__(self) -> str:
        return f"Node({self.plain()!r} at {self.where})"


def parse_file(path: str, env: Mapping[str, str]) -> dict[str, Node]:
    """Reads and parses `path`.

    Raises `ConfigError` with nats-server's texts: `open X: no such file or directory`, `Parse error on line N: '...'`.
    """
    return parse_text(read_text(path), path, env)


def parse_text(text: str, file: str, env: Mapping[str, str]) -> dict[str, Node]:
    return _Parser(text, file, env, depth=0).document()


def read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        verb = "read" if isinstance(error, IsADirectoryError) else "open"
        raise ConfigError(f"{verb} {path}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error


def scalar(token: str) -> Scalar:
    """A bare token by its look: boolean, integer with unit (1k = 1000, 1kb = 1024), float, UTC time, else text."""
    boolean = _BOOLEANS.get(token.lower())
    if boolean is not None:
        return boolean
    if _INT.fullmatch(token):
        return int(token)
    sized = _SIZED.fullmatch(token)
    if sized:
        base = 1024 if sized[3] else 1000
        number: int = int(sized[1]) * base ** _POWERS[sized[2].lower()]
        return number
    if _FLOAT.fullmatch(token):
        return float(token)
    if _DATETIME.fullmatch(token):
        try:
            return datetime.strptime(token, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        except ValueError:
            return token
    return token


class _Parser:
    __slots__ = ("_depth", "_env", "_file", "_scan", "_scopes")

    def __init__(self, text: str, file: str, env: Mapping[str, str], depth: int) -> None:
        if depth > MAX_INCLUDE_DEPTH:
            raise ConfigError(f"error parsing include file '{file}', included more than {MAX_INCLUDE_DEPTH} deep")
        self._scan = Scanner(text)
        self._file = file
        self._env = env
        self._depth = depth
        self._scopes: list[dict[str, Node]] = []

    def document(self) -> dict[str, Node]:
        scan = self._scan
        scan.skip_filler()
        if scan.peek() != "{":
            return self._pairs(top=True)
        scan.advance()
        pairs = self._pairs(top=False)
        scan.skip_filler()
        if scan.peek():
            raise scan.error(
                f"Expected a top-level value to end with a new line, comment or EOF, but got '{scan.peek()}' instead."
            )
        return pairs

    def _pairs(self, top: bool) -> dict[str, Node]:
        """Pairs up to the end of the text (`top`) or up to and including the closing brace."""
        scan = self._scan
        pairs: dict[str, Node] = {}
        self._scopes.append(pairs)
        while True:
            scan.skip_filler(also=",;")
            char = scan.peek()
            if not char:
                if top:
                    break
                raise scan.error("Unexpected EOF processing map.")
            if char == "}" and not top:
                scan.advance()
                break
            self._pair(pairs)
            self._end_of_pair(top)
        self._scopes.pop()
        return pairs

    def _pair(self, pairs: dict[str, Node]) -> None:
        scan = self._scan
        line, column = scan.position()
        is_quoted = scan.peek() in ('"', "'")
        key = scan.key()
        if key == "include" and not is_quoted:
            scan.skip(BLANK)
            if scan.peek() not in (":", "="):
                pairs.update(self._include(scan.quoted() if scan.peek() in ('"', "'") else scan.bare()))
                return
        scan.skip_filler()
        if scan.peek() in (":", "="):
            scan.advance()
        elif not scan.peek():
            raise ConfigError(f"config is invalid ({self._file}:{scan.position()[0]}:{scan.position()[1]})")
        node = self._value("top-level" if len(self._scopes) == 1 else "map")
        node.line, node.column = line, column
        pairs[key] = node

    def _end_of_pair(self, top: bool) -> None:
        scan = self._scan
        scan.skip(BLANK + "\r")
        char = scan.peek()
        if not char or char in "\n,;" or scan.at_comment() or (char == "}" and not top):
            return
        if top:
            raise scan.error(
                f"Expected a top-level value to end with a new line, comment or EOF, but got '{char}' instead."
            )
        raise scan.error(f'Expected a map value terminator "," or a map terminator "}}", but got \'{char}\' instead.')

    def _value(self, kind: str) -> Node:
        scan = self._scan
        scan.skip(BLANK + "\r")
        line, column = scan.position()
        char = scan.peek()
        value: Value
        if char == "{":
            scan.advance()
            line, column = scan.position()  # the real server's place of a map in an array is behind its brace
            value = self._pairs(top=False)
        elif char == "[":
            scan.advance()
            value = self._array()
        elif char in ('"', "'"):
            value = scan.quoted()
        elif char == "(":
            value = scan.block()
        elif char == "\n":
            raise ParseError(line + 1, "Expected value but found new line")
        elif not char:
            raise scan.error("Unexpected EOF.")
        elif char in ",;]}":
            raise scan.error(f"Unexpected {kind} value terminator '{char}'.")
        else:
            return self._bare(line, column)
        return Node(value, self._file, line, column)

    def _bare(self, line: int, column: int) -> Node:
        token = self._scan.bare()
        if not token.startswith("$") or _BCRYPT.match(token):
            return Node(scalar(token), self._file, line, column)
        value = self._variable(token[1:], line, frozenset())
        return Node(value, self._file, line, column)

    def _variable(self, name: str, line: int, seen: frozenset[str]) -> Value:
        for scope in reversed(self._scopes):
            if name in scope:
                scope[name].used_as_variable = True
                return scope[name].value
        if name in seen:
            raise ConfigError(f"variable reference cycle for '{name}'")
        if name not in self._env:
            raise ConfigError(f"variable reference for '{name}' on line {line} can not be found")
        text = self._env[name]
        if text.startswith("$") and not _BCRYPT.match(text):
            return self._variable(text[1:], line, seen | {name})
        # The environment's text is read as a value of the file, so "{a: 1}" or "[x, y]" from there work too.
        parser = _Parser(f"value = {text}", self._file, self._env, self._depth + 1)
        try:
            return parser.document()["value"].value
        except (ParseError, KeyError) as error:
            raise ConfigError(f"variable reference for '{name}' on line {line} can not be parsed: {error}") from error

    def _array(self) -> list[Node]:
        scan = self._scan
        items: list[Node] = []
        while True:
            scan.skip_filler()
            if scan.peek() == "]":
                break
            if not scan.peek():
                raise scan.error("Unexpected EOF processing array.")
            items.append(self._value("array"))
            self._end_of_item()
        scan.advance()
        return items

    def _end_of_item(self) -> None:
        scan = self._scan
        before = scan.pos
        scan.skip(BLANK + "\r")
        char = scan.peek()
        if (char and char in "\n,") or scan.at_comment():
            scan.skip_filler()
            if scan.peek() == ",":
                scan.advance()
            return
        if char != "]":
            got = char or " "
            raise scan.error(
                f'Expected an array value terminator "," or an array terminator "]", but got \'{got}\' instead.',
                before if char else None,
            )

    def _include(self, name: str) -> dict[str, Node]:
        """Relative to the including file; its variables are not seen inside (as in the real server)."""
        path = Path(self._file).parent / name
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(f"error parsing include file '{name}', open {path}: {reason}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"error parsing include file '{name}', not UTF-8") from error
        try:
            return _Parser(text, str(path), self._env, self._depth + 1).document()
        except ConfigError as error:
            if self._depth > 0:
                raise
            raise ConfigError(f"error parsing include file '{name}', {error}") from error
