"""The reader of blocks: turns parsed `ConfigNode`s into typed values, and collects every error and warning with its
place in the file.

The keys of each block are a table (`keys`) of rows that `value`, `block`, `inert`, `refused` and `known` make. Any
other key, at every level, is the error `F:line:col: unknown field "x"`, as in nats-server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from jetcluster.config.lexer import ConfigError
from jetcluster.config.nkeys import is_key
from jetcluster.config.parser import ConfigNode
from jetcluster.errors import OperatorError
from jetcluster.model import durations
from jetcluster.records import NamedTuple

Bytes = int
Seconds = float
Convert = Callable[["Reader", str, ConfigNode], Any]
Read = Callable[["Reader", ConfigNode, Any], None]

_TYPES = {bool: "a boolean", int: "an integer", float: "a float", str: "a string", list: "a list", dict: "a map"}
_VALUES_WITHOUT_EFFECT = ("off", "default")
"""Values with which an inert key changes nothing on nats-server either."""
_TERM = re.compile(r"(\d+\.?\d*|\.\d+)([a-zµμ]*)")
_SIZE = re.compile(r"(-?\d+)([KMGT])(?:i?B)?", re.IGNORECASE)
_SIZE_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


class FieldError(OperatorError):
    """A value that its key does not accept; the error shown is `F:line:col: ` and the text. `node`: the place of the
    error, where that is not the key's."""

    def __init__(self, text: str, node: ConfigNode | None = None) -> None:
        super().__init__(text)
        self.node = node


# --- keys -------------------------------------------------------------------------------------------------------------

HONOURED: Final = "honoured"
INERT: Final = "inert"
REFUSED: Final = "refused"


class Bound(NamedTuple):
    """The changes of a key that a reload refuses, where it takes others."""

    problem: Callable[[Any, Any], str]
    """Returns the refusal of a change from the block's options to new ones, or ""."""
    told: str  # in docs/configuration.md


class Key:
    """One key of a block, with all its names. Either `convert` makes the value of `attribute`, or `read` reads the node
    into the block's options."""

    __slots__ = ("attribute", "bound", "convert", "fixed", "names", "note", "once", "read", "status")

    def __init__(
        self, names: str, status: str, note: str, convert: Convert | None = None, read: Read | None = None, *,
        attribute: str = "", fixed: str | Mapping[str, str] = "", bound: Bound | None = None, once: str = "",
    ) -> None:  # fmt: skip
        self.names = tuple(names.split())
        self.status = status
        """HONOURED; INERT: checked and named in a warning at start, because it tunes a part that this server does not
        have; REFUSED: it would change security, durability, limits or the view of clients, and is not implemented."""
        self.note = note
        """Text for docs/configuration.md."""
        self.convert = convert
        self.read = read
        self.attribute = attribute
        """Name of the field in the block's options; "" for a key that is only checked."""
        self.fixed: Mapping[str, str] = {attribute: fixed} if isinstance(fixed, str) and fixed else fixed or {}
        """Attributes that a reload must not change -> their names in its refusal."""
        self.bound = bound
        self.once = once
        """Error text for a second occurrence in one block; "": the last one counts."""

    @property
    def type(self) -> str:
        """The type of the value, as `convert` is annotated; "" for a key with `read`."""
        return str(self.convert.__annotations__["return"]) if self.convert is not None else ""


class Block:
    """The keys of one block, and the options that they fill."""

    __slots__ = ("by_name", "keys", "options", "unknown", "variables")

    def __init__(
        self, options: type | None, *keys: Key, unknown: str = 'unknown field "{key}"', variables: bool = True
    ) -> None:
        self.options = options
        self.keys = keys
        self.unknown = unknown
        self.variables = variables
        """An unknown key is a variable's definition, and no error, if a `$key` in the file uses it."""
        self.by_name = {name: key for key in keys for name in key.names}


def value(
    names: str, convert: Convert, note: str = "", *,
    to: str = "", fixed: str = "", bound: Bound | None = None, once: str = "", status: str = HONOURED,
) -> Key:  # fmt: skip
    """Returns a key whose value goes to the attribute `to`, or to the attribute of its first name."""
    return Key(names, status, note, convert, attribute=to or names.split()[0], fixed=fixed, bound=bound, once=once)


def block(
    names: str, read: Read, note: str = "", *,
    fixed: Mapping[str, str] | None = None, bound: Bound | None = None, status: str = HONOURED,
) -> Key:  # fmt: skip
    """Returns a key that `read` reads into the options of the enclosing block."""
    return Key(names, status, note, read=read, fixed=fixed or {}, bound=bound)


def inert(names: str, convert: Convert, note: str) -> Key:
    """Returns a key that is checked and has no effect."""
    return Key(names, INERT, note, convert)


def refused(names: str, text: str, note: str = "", *, unless_false: bool = False) -> Key:
    """Returns a key that must not be ignored silently. `unless_false`: a switch, which is accepted when it is off."""

    def refuse(reader: Reader, node: ConfigNode, _target: Any) -> None:
        if not unless_false or as_bool(reader, names.split()[0], node):
            raise FieldError(text)

    return Key(names, REFUSED, note, read=refuse)


def known(names: str) -> Key:
    """Returns a key of a block that is refused as a whole: an unknown key there is reported as a typing error."""
    return Key(names, REFUSED, "", read=lambda _reader, _node, _target: None)


# --- reading ----------------------------------------------------------------------------------------------------------


class Reader:
    """Reads blocks by the tables of their keys, and collects the errors and warnings of all blocks."""

    def __init__(self, blocks: Mapping[str, Block]) -> None:
        self._blocks = blocks
        self.errors: list[str] = []
        self.pedantic_warnings: list[str] = []
        """Warnings printed to stderr at start; `-t` takes them for errors."""
        self.inert: list[str] = []
        """Inert keys that were given, each with the path of its block."""
        self.notes: list[str] = []
        """Sentences for the log."""
        self.user_places: dict[str, ConfigNode] = {}
        """Account -> its `users`, for errors that can be found only when all accounts are read."""

    def error(self, node: ConfigNode, text: str) -> None:
        self.errors.append(f"{node.where}: {text}")

    def warn(self, node: ConfigNode, text: str) -> None:
        self.pedantic_warnings.append(f"{node.where}: {text}")

    def raise_errors(self) -> None:
        """Raises ConfigError when there are errors."""
        if self.errors:
            raise ConfigError("\n".join([*self.pedantic_warnings, *self.errors]) + "\n")

    def block(self, pairs: Mapping[str, ConfigNode], target: Any, name: str, *, path: str | None = None) -> bool:
        """Reads the pairs of the block `name` into `target`, and returns True when there was no error. `path` is the
        block's name in warnings where that is another one."""
        found, known_errors = self._blocks[name], len(self.errors)
        where = name if path is None else path
        seen: set[Key] = set()
        for text, node in pairs.items():
            key = found.by_name.get(text.lower())
            try:
                if key is not None:
                    again = key in seen
                    seen.add(key)
                    self._take(key, text.lower(), node, target, where, again=again)
                elif not (node.used_as_variable and found.variables):
                    self.error(node, found.unknown.format(key=go_quoted(text)))
            except FieldError as error:
                self.error(error.node or node, str(error))
        return len(self.errors) == known_errors

    def _take(self, key: Key, name: str, node: ConfigNode, target: Any, path: str, *, again: bool) -> None:
        """Raises FieldError."""
        if again and key.once:
            raise FieldError(key.once)
        if key.read is not None:
            key.read(self, node, target)
        if key.convert is None:
            return
        made = key.convert(self, name, node)
        if key.attribute:
            setattr(target, key.attribute, made)
        if key.status == INERT and made and made not in _VALUES_WITHOUT_EFFECT:
            self.inert.append(f"{path}.{name}" if path else name)


# --- values -----------------------------------------------------------------------------------------------------------


def go_quoted(text: str) -> str:
    """Returns the text as Go's %q shows it, without the quotes."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return text
    shown = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(c if c.isprintable() else _escaped(c) for c in shown)


def _escaped(char: str) -> str:
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    return short or (f"\\x{ord(char):02x}" if ord(char) < 0x80 else f"\\u{ord(char):04x}")


def wrong_type(
    name: str, node: ConfigNode, wanted: str, *, element: bool = False, at: ConfigNode | None = None
) -> FieldError:
    """Returns the error for a value of a wrong type. `element`: the value is one of several in a list or map; `at`: the
    place of the error, where that is not the key's."""
    of = "each element of " if element else ""
    return FieldError(f'{of}"{name}" must be {wanted}, not {_TYPES.get(type(node.value), "a time")}', at)


def as_string(_reader: Reader, name: str, node: ConfigNode) -> str:
    if not isinstance(node.value, str):
        raise wrong_type(name, node, "a string")
    return node.value


def as_int(_reader: Reader, name: str, node: ConfigNode) -> int:
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        raise wrong_type(name, node, "an integer")
    return node.value


def as_bool(_reader: Reader, name: str, node: ConfigNode) -> bool:
    if not isinstance(node.value, bool):
        raise wrong_type(name, node, "a boolean")
    return node.value


def as_strings(_reader: Reader, name: str, node: ConfigNode) -> list[str]:
    """Returns the elements of a string or a list of strings."""
    try:
        return [text for text, _ in texts_with_places(name, node)]
    except FieldError as error:
        raise FieldError(str(error)) from error  # as in nats-server, at the place of the key


def texts_with_places(name: str, node: ConfigNode) -> list[tuple[str, ConfigNode]]:
    """Returns the elements of a string or a list of strings, each with its node. An error is at the element."""
    items = node.value if isinstance(node.value, list) else [node]
    for item in items:
        if not isinstance(item.value, str):
            is_element = item is not node
            raise wrong_type(
                name, item, "a string" if is_element else "a string or a list", element=is_element, at=item
            )
    return [(str(item.value), item) for item in items]


def as_texts(_reader: Reader, name: str, node: ConfigNode) -> dict[str, str]:
    """Returns a map of strings."""
    for item in as_map(node, name).values():
        if not isinstance(item.value, str):
            raise wrong_type(name, item, "a string", element=True, at=item)
    return {key: str(item.value) for key, item in as_map(node, name).items()}


def as_map(node: ConfigNode, name: str, *, element: bool = False) -> dict[str, ConfigNode]:
    if not isinstance(node.value, dict):
        raise wrong_type(name, node, "a map", element=element)
    return node.value


def as_list(node: ConfigNode, name: str) -> list[ConfigNode]:
    if not isinstance(node.value, list):
        raise wrong_type(name, node, "a list")
    return node.value


def unchecked(_reader: Reader, _name: str, _node: ConfigNode) -> bool:
    """Accepts any value."""
    return True


def as_duration(reader: Reader, name: str, node: ConfigNode) -> Seconds:
    """Returns seconds. A bare integer counts seconds, with nats-server's warning."""
    if isinstance(node.value, str):
        return _seconds(name, node.value)
    reader.warn(node, f'invalid use of field "{name}": {name} should be converted to a duration')
    return float(as_int(reader, name, node))


def duration_of(label: str) -> Convert:
    """Returns `as_duration` for a key with several names; error texts use `label`."""

    def convert(reader: Reader, _name: str, node: ConfigNode) -> Seconds:
        return as_duration(reader, label, node)

    return convert


def as_duration_text(reader: Reader, name: str, node: ConfigNode) -> Seconds:
    """Returns the seconds of a duration that nats-server takes as text only, not as a number."""
    return _seconds(name, as_string(reader, name, node))


def as_seconds(_reader: Reader, name: str, node: ConfigNode) -> Seconds:
    """Returns seconds, where nats-server takes a bare number without a warning (timeouts of logins and of TLS)."""
    if isinstance(node.value, bool) or not isinstance(node.value, int | float | str):
        raise wrong_type(name, node, "a duration")
    return _seconds(name, node.value) if isinstance(node.value, str) else float(node.value)


def _seconds(name: str, text: str) -> Seconds:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise FieldError(f"error parsing {name}: {error}") from error


def as_size(reader: Reader, name: str, node: ConfigNode) -> Bytes:
    """Returns the bytes of an integer or a text such as "512M" (see `parse_storage_size`)."""
    return size_of(name)(reader, name, node)  # type: ignore[no-any-return]


def size_of(label: str) -> Convert:
    """Returns `as_size` for a key with several names; error texts use `label`."""

    def convert(_reader: Reader, name: str, node: ConfigNode) -> Bytes:
        if isinstance(node.value, bool) or not isinstance(node.value, int | str):
            raise wrong_type(name, node, "a size")
        try:
            return parse_storage_size(label, node.value)
        except ValueError as error:
            raise FieldError(str(error)) from error

    return convert


def one_of(*words: str) -> Convert:
    """Returns a converter that accepts one of the words."""

    def convert(reader: Reader, name: str, node: ConfigNode) -> str:
        text = as_string(reader, name, node)
        if text not in words:
            listed = [f"'{word}'" for word in words]
            raise FieldError(f"{name} must be {', '.join(listed[:-1])} or {listed[-1]}")
        return text

    return convert


def without_spaces(label: str) -> Convert:
    """Returns a converter for a name; error texts call it `label`."""

    def convert(reader: Reader, name: str, node: ConfigNode) -> str:
        text = as_string(reader, name, node)
        if " " in text:
            raise FieldError(f"{label} cannot contain spaces")
        return text

    return convert


def user_nkey_of(label: str) -> Convert:
    """Returns a converter for the public nkey of a user; error texts call it `label`."""

    def convert(reader: Reader, name: str, node: ConfigNode) -> str:
        text = as_string(reader, name, node)
        if not is_key("U", text):
            raise FieldError(f"Not a valid public nkey for {label}")
        return text

    return convert


as_write_timeout = one_of("default", "close", "retry")


def as_switch(name: str, node: ConfigNode) -> bool | dict[str, ConfigNode]:
    """Returns the value of a `jetstream` block: `true`, `enabled`, `disabled` or a map."""
    if isinstance(node.value, str):
        word = node.value.lower()
        if word not in ("enabled", "enable", "disabled", "disable"):
            raise FieldError(f"Expected 'enabled' or 'disabled' for string value, got '{node.value}'")
        return word.startswith("enable")
    if not isinstance(node.value, bool | dict):
        raise wrong_type(name, node, "a boolean, a string or a map")
    return node.value


def go_value(node: ConfigNode) -> str:
    """Returns a scalar as Go's %v prints it."""
    return ("false", "true")[node.value] if isinstance(node.value, bool) else str(node.plain())


def as_address(name: str, node: ConfigNode) -> tuple[str, int]:
    """Returns (host, port) of `4222`, `":4222"`, `"host:4222"` or `"[::1]:4222"`; host "" means unset."""
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        return "", node.value
    if not isinstance(node.value, str):
        raise wrong_type(name, node, "a port or host:port")
    return split_address(node.value)


def read_listen(_reader: Reader, node: ConfigNode, target: Any) -> None:
    """Reads `listen` of a block whose options have a host and a port."""
    host, port = as_address("listen", node)
    target.host, target.port = host or target.host, port


def split_address(text: str) -> tuple[str, int]:
    """Returns (host, port). Raises FieldError with nats-server's text."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise FieldError(f'could not parse address string "{text}"')
    try:
        number = int(port)
    except ValueError as error:
        raise FieldError(f'could not parse port "{port}"') from error
    return host.strip("[]"), number


# --- durations, sizes and URLs as text --------------------------------------------------------------------------------


def parse_duration(text: str) -> float:
    """Returns the seconds of a Go duration such as "1h2m3.5s". Raises ValueError with Go's text."""
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
    """Returns a size as nats-server's log shows it: "512 B", "2.00 MB"."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 6)
    return f"{count / 1024**power:.2f} {' KMGTPE'[power]}B"


def parse_storage_size(name: str, value: object) -> int:
    """Returns the bytes of a size of the jetstream block: an integer, or text such as "512M" (base 1024; "-1":
    unlimited). Raises ValueError with nats-server's text."""
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
    """Returns the URL for logs and errors: without the part before the host, which may be a password or a token."""
    scheme, colon, rest = url.rpartition("://")
    secret, at, address = rest.rpartition("@")
    return f"{scheme}{colon}{'[REDACTED]@' if at and secret else ''}{address}"
