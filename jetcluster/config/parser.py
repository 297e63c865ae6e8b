"""Parser for nats-server's configuration format: text -> tree of `ConfigNode`s with their places in the file.

Variables are resolved while parsing, from the nearest enclosing block and then from the environment, as in nats-server;
`include` inserts another file's pairs into the enclosing block.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Union

from jetcluster.config.lexer import ConfigError, ParseError, Scalar, Scanner, Variable

Value = Union[Scalar, "list[ConfigNode]", "dict[str, ConfigNode]"]

MAX_INCLUDE_DEPTH = 32
"""Nested includes: a file that includes itself is an error, not an overflow of the stack."""
MAX_DEPTH = 100
"""Nested maps and arrays; the parser calls itself for each."""
MAX_FILE_BYTES = 64 * 1024 * 1024
"""Bytes of one file: `/dev/zero` is an error."""
MAX_INCLUDES = 1000
MAX_ENVIRONMENT_USES = 20_000
"""Both limits are for all files together, since each file may include two others, and so on. A variable of the
environment is parsed at each use."""
MAX_VALUES = 1_000_000
"""Values in all uses of variables: each list may consist of ten uses of the previous one, and so on."""
_BCRYPT = ("2a$", "2b$", "2x$", "2y$")
"""A bare bcrypt hash begins like a variable; nats-server knows the first of these."""


class TooLargeError(ConfigError):
    """The configuration exceeds a limit. The error is passed on without a prefix for each including file."""


class IncludeDepthError(TooLargeError):
    """Includes are nested too deeply."""


class _Budget:
    """The limits that are shared by a configuration and all the files that it includes."""

    def __init__(self) -> None:
        self._includes = 0
        self._from_environment = 0
        self._values = 0
        self._sizes: dict[int, tuple[Value, int, int]] = {}
        """`id` of a map or list -> (the object, its number of values, its depth). The object is kept so that its `id`
        stays unique."""

    def take_include(self, name: str, where: str) -> None:
        """Raises ConfigError."""
        self._includes += 1
        if self._includes > MAX_INCLUDES:
            raise TooLargeError(f"error parsing include file '{name}', {where}: more than {MAX_INCLUDES} includes")

    def take_from_environment(self, what: str) -> None:
        """Raises ConfigError."""
        self._from_environment += 1
        if self._from_environment > MAX_ENVIRONMENT_USES:
            raise TooLargeError(f"{what}: more than {MAX_ENVIRONMENT_USES} uses of variables of the environment")

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
    """One value of the tree. `line` and `column` are those of its key if it has one, as nats-server reports them."""

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
        """Returns the value with every nested `ConfigNode` replaced by its value."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def __repr__(self) -> str:
        return f"ConfigNode({self.plain()!r} at {self.where})"


def parse_text(text: str, file: str, env: Mapping[str, str]) -> dict[str, ConfigNode]:
    """Parses the text of a file. Raises ConfigError with nats-server's texts, as `Parse error on line N: '...'`."""
    return _Parser(text, file, env, depth=0).document()


def read_text(path: str) -> str:
    """Reads a file. Raises ConfigError with nats-server's text, such as `open X: no such file or directory`."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise TooLargeError(f"{path}: more than {MAX_FILE_BYTES} bytes")
        return data.decode()  # without translation of newlines: a carriage return counts for columns
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
        """Reads the pairs of a document in braces. As in nats-server, the last `}` may be missing after a separator."""
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
        """Reads `key value` or `include file`. Returns False when the document ends with a single `}` as its key."""
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
        """Takes the end of a value outside of maps, but not the closing brace of a block."""
        scan = self._scan
        scan.skip_blanks()
        scan.skip_comment()
        char = scan.peek()
        if not char and kind == "top-level":
            return
        if char == "}":
            if kind == "top-level":  # an extra brace is no error in nats-server
                scan.take()
            return
        if not char or char not in "\r\n,;":
            raise scan.error(
                f"Expected a {kind} value to end with a new line, comment or EOF, but got '{{char}}' instead."
            )
        scan.take()

    def _is_last(self, kind: str, ends: str) -> bool:
        """Takes the character after a value of a map or an array, one of `ends`, and returns True when it is the last
        of them, which closes the map or array."""
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
            line, column = scan.position()  # nats-server reports a map in an array after its closing brace
        elif char == "[":
            scan.take()
            value = self._array()
        else:
            column += char in ("'", '"', "(") and char != ""  # the place of the text inside
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
        # The variable's text is parsed like a value of the file, so "{a: 1}" or "[x, y]" work too.
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
        """Parses an included file. Its path is relative to the including file even with a leading slash, as in
        nats-server. The including file's variables are not visible to it."""
        path = os.path.normpath(Path(self._file).parent / name.lstrip("/"))
        line = self._scan.position()[0]
        self._budget.take_include(name, f"{self._file}:{line}")
        try:
            return _Parser(read_text(path), path, self._env, self._depth + 1, self._budget).document()
        except TooLargeError:
            raise
        except ConfigError as error:
            raise ConfigError(f"error parsing include file '{name}', {error}") from error
