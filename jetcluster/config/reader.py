"""Turns parsed `ConfigNode`s into typed values, and collects every error and warning with its place in the file.

A block is described by tables: `fields` (key -> attribute, or INERT, and converter), `blocks` (key -> function that
reads a nested block). Keys of the real server that are accepted and do nothing here are named in a warning at start.
Anything else is `F:line:col: unknown field "x"`, at every level, as the real server does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from jetcluster.config.lexer import ConfigError
from jetcluster.config.parser import ConfigNode
from jetcluster.errors import OperatorError
from jetcluster.model import durations

_TERM = re.compile(r"(\d+\.?\d*|\.\d+)([a-zµμ]*)")
_SIZE = re.compile(r"(-?\d+)([KMGT])(?:i?B)?", re.IGNORECASE)
_SIZE_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def parse_duration(text: str) -> float:
    """Seconds in Go duration text such as "1h2m3.5s". Raises ValueError with Go's wording."""
    found = durations.parse(text.encode())
    if found is not None:
        return found / 1e9
    position = int(text[:1] in ("+", "-"))
    while term := _TERM.match(text, position):
        if not term[2]:
            raise ValueError(f'time: missing unit in duration "{text}"')
        if term[2].encode() not in durations.UNITS:
            raise ValueError(f'time: unknown unit "{term[2]}" in duration "{text}"')
        position = term.end()
    raise ValueError(f'time: invalid duration "{text}"')


def friendly_bytes(count: int) -> str:
    """As nats-server writes sizes in its log: "512 B", "2.00 MB"."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 6)
    return f"{count / 1024**power:.2f} {' KMGTPE'[power]}B"


def parse_storage_size(name: str, value: object) -> int:
    """Bytes for a size of the jetstream block: an integer, or text such as "512M" (base 1024; "-1" = unlimited).

    Raises ValueError with the real server's text.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{name} must be int64 or string")
    text = value.strip()
    if not text:
        return 0
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    sized = _SIZE.fullmatch(text)
    if sized is None and text[-1] in _SIZE_POWERS:
        raise ValueError(f'{name} strconv.ParseInt: parsing "{text[:-1]}": invalid syntax')
    if sized is None:
        raise ValueError(f"{name} sizes defined as strings must end in K, M, G, T")
    size: int = int(sized[1]) * 1024 ** _SIZE_POWERS[sized[2].upper()]
    return size


def without_secret(url: str) -> str:
    """For messages: what stands before the host may be a password or a token."""
    scheme, colon, rest = url.rpartition("://")
    secret, at, address = rest.rpartition("@")
    return f"{scheme}{colon}{'[REDACTED]@' if at and secret else ''}{address}"


_GO_TYPES = {
    bool: "bool",
    int: "int64",
    float: "float64",
    str: "string",
    list: "[]interface {}",
    dict: "map[string]interface {}",
}


INERT: Final = ""
"""In place of the attribute: a field of something that this server does not have. Its value is checked."""
_SAYS_NOTHING = ("off", "default")
"""Values with which an inert field changes nothing on the real server either."""


class FieldError(OperatorError):
    """A value that its field does not accept; the text goes behind `F:line:col: `."""

    def __init__(self, text: str, node: ConfigNode | None = None) -> None:
        super().__init__(text)
        self.node = node


class Reader:
    def __init__(self) -> None:
        self.errors: list[str] = []
        self.pedantic_warnings: list[str] = []
        """Printed to stderr at start; `-t` takes them for errors."""
        self.inert: list[str] = []
        self.notes: list[str] = []
        """Sentences for the log."""
        self.user_places: dict[str, ConfigNode] = {}
        """Account -> its `users`, for errors that show only when all accounts are known."""

    def error(self, node: ConfigNode, text: str) -> None:
        self.errors.append(f"{node.where}: {text}")

    def warn(self, node: ConfigNode, text: str) -> None:
        self.pedantic_warnings.append(f"{node.where}: {text}")

    def raise_errors(self) -> None:
        if self.errors:
            raise ConfigError("\n".join([*self.pedantic_warnings, *self.errors]) + "\n")

    def block(
        self,
        pairs: Mapping[str, ConfigNode],
        target: Any,
        fields: Fields,
        blocks: Blocks | None = None,
        inert: frozenset[str] = frozenset(),
        *,
        path: str = "",
        unknown: str = 'unknown field "{key}"',
        variables: bool = True,
    ) -> None:
        """Reads the pairs of one block into `target`. `path` names the block in warnings ("" = top level). `inert`:
        names that are no fields, or that are kept although they change nothing. An unknown key that some `$key` used is
        a variable definition and no error, unless `variables` is False."""
        for key, node in pairs.items():
            name = key.lower()
            try:
                if name in fields:
                    attribute, convert = fields[name]
                    value = convert(self, name, node)
                    if attribute:
                        setattr(target, attribute, value)
                    if (not attribute or name in inert) and value and value not in _SAYS_NOTHING:
                        self.inert.append(f"{path}.{name}" if path else name)
                elif blocks is not None and name in blocks:
                    blocks[name](self, node, target)
                elif name in inert:
                    self.inert.append(f"{path}.{name}" if path else name)
                elif not (node.used_as_variable and variables):
                    self.error(node, unknown.format(key=go_quoted(key)))
            except FieldError as error:
                self.error(error.node or node, str(error))


Convert = Callable[[Reader, str, ConfigNode], Any]
Fields = Mapping[str, tuple[str, Convert]]
Blocks = Mapping[str, Callable[[Reader, ConfigNode, Any], None]]


def refuse(text: str) -> Refusal:
    """A block reader for what must not be ignored in silence."""
    return Refusal(text)


class Refusal:
    """Its own class so that docs and tests can tell a field that is refused (tests/unit/config/test_field_table.py)."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, _reader: Reader, _node: ConfigNode, _target: Any) -> None:
        raise FieldError(self.text)


def refuse_when_true(text: str) -> Refusal:
    """Refuses "on" of a switch whose "off" is what we do anyway."""
    return _RefusalOfTrue(text)


class _RefusalOfTrue(Refusal):
    __slots__ = ()

    def __call__(self, reader: Reader, node: ConfigNode, _target: Any) -> None:
        if as_bool(reader, "", node):
            raise FieldError(self.text)


def go_quoted(text: str) -> str:
    """A key between quotes as Go's %q shows it, without the quotes."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return text
    shown = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(c if c.isprintable() else _escaped(c) for c in shown)


def _escaped(char: str) -> str:
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    return short or (f"\\x{ord(char):02x}" if ord(char) < 0x80 else f"\\u{ord(char):04x}")


def go_type(node: ConfigNode) -> str:
    """The real server's name for the type of a value."""
    return _GO_TYPES.get(type(node.value), "time.Time")


def mismatch(node: ConfigNode, wanted: str) -> FieldError:
    return FieldError(f"interface conversion: interface {{}} is {go_type(node)}, not {wanted}")


def as_string(_reader: Reader, _name: str, node: ConfigNode) -> str:
    if not isinstance(node.value, str):
        raise mismatch(node, "string")
    return node.value


def as_int(_reader: Reader, _name: str, node: ConfigNode) -> int:
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        raise mismatch(node, "int64")
    return node.value


def as_bool(_reader: Reader, _name: str, node: ConfigNode) -> bool:
    if not isinstance(node.value, bool):
        raise mismatch(node, "bool")
    return node.value


def as_duration(reader: Reader, name: str, node: ConfigNode) -> float:
    """Seconds. A bare integer counts seconds, with the real server's warning."""
    if isinstance(node.value, str):
        return _seconds(name, node.value)
    reader.warn(node, f'invalid use of field "{name}": {name} should be converted to a duration')
    return float(as_int(reader, name, node))


def duration_of(label: str) -> Convert:
    """`as_duration` of a field with several spellings, of which messages use this one."""
    return lambda reader, _name, node: as_duration(reader, label, node)


def as_duration_text(reader: Reader, name: str, node: ConfigNode) -> float:
    """A duration that nats-server takes as text only, not as a number. Seconds."""
    return _seconds(name, as_string(reader, name, node))


def _seconds(name: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise FieldError(f"error parsing {name}: {error}") from error


def as_seconds(_reader: Reader, name: str, node: ConfigNode) -> float:
    """Seconds, where the real server takes a plain number without a warning (authorization and TLS timeouts)."""
    if isinstance(node.value, bool) or not isinstance(node.value, int | float | str):
        raise FieldError(f"error parsing {name}: unsupported type")
    if not isinstance(node.value, str):
        return float(node.value)
    try:
        return parse_duration(node.value)
    except ValueError as error:
        raise FieldError(f"error parsing {name}: {error}") from error


def storage_size(label: str) -> Convert:
    def convert(_reader: Reader, _name: str, node: ConfigNode) -> int:
        try:
            return parse_storage_size(label, node.value)
        except ValueError as error:
            raise FieldError(str(error)) from error

    return convert


def as_name(_reader: Reader, name: str, node: ConfigNode) -> str:
    text = as_string(_reader, name, node)
    if " " in text:
        label = "server name" if name == "server_name" else "cluster name"
        raise FieldError(f"{label} cannot contain spaces")
    return text


def one_of(*words: str) -> Convert:
    def convert(reader: Reader, name: str, node: ConfigNode) -> str:
        text = as_string(reader, name, node)
        if text not in words:
            listed = [f"'{word}'" for word in words]
            raise FieldError(f"{name} must be {', '.join(listed[:-1])} or {listed[-1]}")
        return text

    return convert


as_write_timeout = one_of("default", "close", "retry")


def queue_limit(_reader: Reader, name: str, node: ConfigNode) -> int:
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        raise FieldError(f'Expected a parseable size for "{name}", got {go_value(node)}')
    return node.value


def go_value(node: ConfigNode) -> str:
    """A scalar as Go's %v prints it."""
    value = node.value
    return ("false", "true")[value] if isinstance(value, bool) else str(node.plain())


def as_strings(_reader: Reader, name: str, node: ConfigNode) -> list[str]:
    """A string or an array of strings."""
    if isinstance(node.value, str):
        return [node.value]
    if isinstance(node.value, list):
        return [as_string(_reader, name, item) for item in node.value]
    raise mismatch(node, "string")


def as_map(node: ConfigNode, label: str) -> dict[str, ConfigNode]:
    if not isinstance(node.value, dict):
        raise FieldError(f"Expected map to define {label}, got {_GO_TYPES.get(type(node.value), 'time.Time')}")
    return node.value


def as_address(node: ConfigNode) -> tuple[str, int]:
    """(host, port) of a `listen` value: `4222`, `":4222"`, `"host:4222"`, `"[::1]:4222"`; host "" means unset."""
    value = node.value
    if isinstance(value, int) and not isinstance(value, bool):
        return "", value
    if not isinstance(value, str):
        raise FieldError(f"expected port or host:port, got {_GO_TYPES.get(type(value), 'time.Time')}")
    return split_address(value)


def read_listen(_reader: Reader, node: ConfigNode, target: Any) -> None:
    """`listen` of a block whose options have a host and a port."""
    host, port = as_address(node)
    target.host, target.port = host or target.host, port


def split_address(text: str) -> tuple[str, int]:
    """Raises FieldError with the real server's text."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise FieldError(f'could not parse address string "{text}"')
    try:
        number = int(port)
    except ValueError as error:
        raise FieldError(f'could not parse port "{port}"') from error
    return host.strip("[]"), number
