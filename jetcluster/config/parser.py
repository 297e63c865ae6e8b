"""Parser for nats-server's configuration format: text -> tree of `ConfigNode`s that remember where they stood.

Variables resolve while parsing, from the nearest enclosing block and then from the environment, as in the real server;
`include` splices another file's pairs into the block it stands in.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Union

from jetcluster.config.lexer import ConfigError, ParseError, Scalar, Scanner, Variable

Value = Union[Scalar, "list[ConfigNode]", "dict[str, ConfigNode]"]

MAX_INCLUDE_DEPTH = 32
"""A file that includes itself is reported instead of recursing until the stack ends."""

MAX_DEPTH = 100
"""Maps and arrays in each other: no server's configuration needs that many, and the parser calls itself for each."""

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Bytes of one file: `/dev/zero` is no configuration."""

MAX_INCLUDES = 1000
MAX_FROM_ENVIRONMENT = 20_000
"""Both limits are for all files together: each may name two others, and so on. A variable of the environment is read at
each use."""

MAX_VALUES = 1_000_000
"""Values that variables stand for, all together: a list of ten times the list before it, and so on."""

_BCRYPT = ("2a$", "2b$", "2x$", "2y$")
"""A bare bcrypt hash begins like a variable; the real server knows the first of these."""


class TooLargeError(ConfigError):
    """More than a configuration may come to; said once, not once per level."""


class IncludeDepthError(TooLargeError):
    """Files that include each other without end; said once, not once per level."""


class _Budget:
    """The room that is left for a configuration and all that it includes."""

    def __init__(self) -> None:
        self._includes = 0
        self._from_environment = 0
        self._values = 0
        self._sizes: dict[int, tuple[Value, int, int]] = {}
        """By the identity of a map or list, which is unique as the object is kept here: the object, its number of
        values, its depth."""

    def take_include(self, name: str, where: str) -> None:
        """Raises ConfigError."""
        self._includes += 1
        if self._includes > MAX_INCLUDES:
            raise TooLargeError(f"error parsing include file '{name}', {where}: more than {MAX_INCLUDES} includes")

    def take_from_environment(self, what: str) -> None:
        """Raises ConfigError."""
        self._from_environment += 1
        if self._from_environment > MAX_FROM_ENVIRONMENT:
            raise TooLargeError(f"{what}: more than {MAX_FROM_ENVIRONMENT} uses of variables of the environment")

    def take_value(self, value: Value, what: str) -> None:
        """Raises ConfigError."""
        size, depth = self._size(value)
        self._values += size
        if self._values > MAX_VALUES or depth > MAX_DEPTH:
            raise TooLargeError(
                f"{what}: variables stand for more than {MAX_VALUES} values, or more than {MAX_DEPTH} deep"
            )

    def _size(self, value: Value) -> tuple[int, int]:
        if not isinstance(value, dict | list):
            return 1, 0
        known = self._sizes.get(id(value))
        if known is None:
            found = [self._size(node.value) for node in (value.values() if isinstance(value, dict) else value)]
            size, depth = 1 + sum(one[0] for one in found), 1 + max((one[1] for one in found), default=0)
            known = self._sizes[id(value)] = value, size, depth
        return known[1:]


class ConfigNode:
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
        """The value with all `ConfigNode`s taken off."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def __repr__(self) -> str:
        return f"ConfigNode({self.plain()!r} at {self.where})"


def parse_file(path: str, env: Mapping[str, str]) -> dict[str, ConfigNode]:
    """Reads and parses `path`.

    Raises `ConfigError` with nats-server's texts: `open X: no such file or directory`, `Parse error on line N: '...'`.
    """
    return parse_text(read_text(path), path, env)


def parse_text(text: str, file: str, env: Mapping[str, str]) -> dict[str, ConfigNode]:
    return _Parser(text, file, env, depth=0).document()


def read_text(path: str) -> str:
    """Raises ConfigError with the real server's words."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise TooLargeError(f"{path}: more than {MAX_FILE_BYTES} bytes")
        return data.decode()  # as it is: a carriage return counts for columns
    except OSError as error:
        verb = "read" if isinstance(error, IsADirectoryError) else "open"
        raise ConfigError(f"{verb} {path}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error


class _Parser:
    def __init__(self, text: str, file: str, env: Mapping[str, str], depth: int, budget: _Budget | None = None) -> None:
        if depth > MAX_INCLUDE_DEPTH:
            raise IncludeDepthError(f"error parsing include file '{file}', included more than {MAX_INCLUDE_DEPTH} deep")
        self._scan = Scanner(text)
        self._file = file
        self._env = env
        self._depth = depth
        self._budget = budget or _Budget()
        self._level = 0
        self._scopes: list[dict[str, ConfigNode]] = []

    def document(self) -> dict[str, ConfigNode]:
        scan = self._scan
        pairs: dict[str, ConfigNode] = {}
        self._scopes.append(pairs)
        while True:
            scan.skip_filler()
            if not scan.peek():
                return pairs
            if scan.peek() == "{":
                scan.take()
                self._top_block(pairs)
            elif self._pair(pairs, in_map=False):
                self._end_of_pair("top-level")

    def _top_block(self, pairs: dict[str, ConfigNode]) -> None:
        """Pairs of a whole document in braces. Like the real server's, it may miss its end after a separator."""
        scan = self._scan
        while True:
            scan.skip_filler()
            if not scan.peek() or scan.peek() == "}":
                scan.take()
                return
            if self._pair(pairs, in_map=False):
                self._end_of_pair("block-level")

    def _map(self) -> dict[str, ConfigNode]:
        scan = self._scan
        pairs: dict[str, ConfigNode] = {}
        self._enter()
        self._scopes.append(pairs)
        while True:
            scan.skip_filler()
            char = scan.peek()
            if char == "}":
                scan.take()
                break
            if char and char in ":=":
                raise scan.error("Unexpected key separator '{char}'.")
            if char == "]":
                raise scan.error("Unexpected array end '{char}' processing map.")
            if not char:
                raise scan.error("Unexpected EOF processing map.")
            self._pair(pairs, in_map=True)
            if self._is_last("a map", "\r\n,;}"):
                break
        self._scopes.pop()
        self._level -= 1
        return pairs

    def _enter(self) -> None:
        self._level += 1
        if self._level > MAX_DEPTH:
            raise self._scan.error(f"Maps and arrays are more than {MAX_DEPTH} deep.")

    def _pair(self, pairs: dict[str, ConfigNode], in_map: bool) -> bool:
        """Reads `key value` or `include file`. False at the end of a document whose last key is a lonely `}`."""
        scan = self._scan
        line, column = scan.position()
        char = scan.peek()
        key: str | None
        if char in ("'", '"'):
            scan.take()
            line, column = scan.position()
            scan.pos -= 1
            key = scan.quoted_key()
            if key is None:
                double = "double quoted" if char == '"' else "quoted"
                raise scan.error(f"Unexpected EOF processing {double} map key." if in_map else "Unexpected EOF.")
        else:
            if char in ":=":
                raise scan.error("Unexpected key separator '{char}'")
            key = scan.bare_key()
            if in_map and not scan.peek():
                raise scan.error("Unexpected EOF processing map key.")
            if key.lower() == "include" and scan.peek().isspace():
                pairs.update(self._include(scan.include_name()))
                return True
        scan.skip_spaces()
        if scan.peek() and scan.peek() in ":=":
            scan.take()
            if in_map:
                scan.skip_spaces()
        elif not scan.peek() and not in_map:
            if key == "}":
                return False
            raise ConfigError(f"config is invalid ({self._file}:{scan.position()[0]}:{scan.position()[1]})")
        if in_map and scan.peek() and scan.peek() in ",}":
            raise scan.error('Unexpected map value terminator "{char}".')
        node = self._value()
        node.line, node.column = line, column
        pairs[key] = node
        return True

    def _end_of_pair(self, kind: str) -> None:
        """Takes the end of a value outside of maps; a closing brace of the block is left."""
        scan = self._scan
        scan.skip_blanks()
        scan.skip_comment()
        char = scan.peek()
        if not char and kind == "top-level":
            return
        if char == "}":
            if kind == "top-level":  # one too many is no error to the real server
                scan.take()
            return
        if not char or char not in "\r\n,;":
            raise scan.error(
                f"Expected a {kind} value to end with a new line, comment or EOF, but got '{{char}}' instead."
            )
        scan.take()

    def _is_last(self, kind: str, ends: str) -> bool:
        """Takes the sign after a value of a map or an array, one of `ends`; True when it was the last one."""
        scan = self._scan
        scan.skip_blanks()
        scan.skip_comment()
        char = scan.peek()
        if not char or char not in ends:
            wanted = f'{kind} value terminator "," or {kind} terminator "{ends[-1]}"'
            raise scan.error(f"Expected {wanted}, but got '{{char}}' instead.")
        scan.take()
        return char == ends[-1]

    def _value(self) -> ConfigNode:
        scan = self._scan
        scan.skip_blanks()
        line, column = scan.position()
        char = scan.peek()
        value: Value
        if char == "{":
            scan.take()
            value = self._map()
            line, column = scan.position()  # the real server's place of a map in an array is behind its last brace
        elif char == "[":
            scan.take()
            value = self._array()
        else:
            column += char in ("'", '"', "(") and char != ""  # of what is inside
            token = scan.scalar()
            value = self._variable(token, line, frozenset()) if isinstance(token, Variable) else token
        return ConfigNode(value, self._file, line, column)

    def _variable(self, name: str, line: int, seen: frozenset[str]) -> Value:
        if name.startswith(_BCRYPT):
            return f"${name}"
        for scope in reversed(self._scopes):
            if name in scope:
                scope[name].used_as_variable = True
                value = scope[name].value
                self._budget.take_value(value, f"variable reference for '{name}' on line {line}")
                return value
        if name in seen:
            raise ConfigError(f"variable reference cycle for '{name}'")
        if name not in self._env:
            raise ConfigError(f"variable reference for '{name}' on line {line} can not be found")
        text = self._env[name]
        if text.startswith("$") and not text[1:].startswith(_BCRYPT):
            return self._variable(text[1:], line, seen | {name})
        # The environment's text is read as a value of the file, so "{a: 1}" or "[x, y]" from there work too.
        self._budget.take_from_environment(f"variable reference for '{name}' on line {line}")
        parser = _Parser(f"value = {text}", self._file, self._env, self._depth + 1, self._budget)
        try:
            return parser.document()["value"].value
        except (ParseError, KeyError) as error:
            raise ConfigError(f"variable reference for '{name}' on line {line} could not be parsed: {error}") from error

    def _array(self) -> list[ConfigNode]:
        scan = self._scan
        items: list[ConfigNode] = []
        self._enter()
        while True:
            scan.skip_filler()
            char = scan.peek()
            if char == "]":
                scan.take()
                break
            if char == ",":
                raise scan.error("Unexpected array value terminator '{char}'.")
            items.append(self._value())
            if self._is_last("an array", "\r\n,]"):
                break
        self._level -= 1
        return items

    def _include(self, name: str) -> dict[str, ConfigNode]:
        """Relative to the including file, also with a leading slash, as in the real server. The including file's
        variables are not seen inside."""
        path = os.path.normpath(Path(self._file).parent / name.lstrip("/"))
        line = self._scan.position()[0]
        self._budget.take_include(name, f"{self._file}:{line}")
        try:
            return _Parser(read_text(path), path, self._env, self._depth + 1, self._budget).document()
        except TooLargeError:
            raise
        except ConfigError as error:
            raise ConfigError(f"error parsing include file '{name}', {error}") from error
