"""Scanner for nats-server's configuration format: characters, positions, keys, strings and scalar tokens.

The grammar is a superset of JSON. The accepted input, the error texts and the odd column count are nats-server's,
because test harnesses compare them and a file must work on both servers: a column counts from the last newline
*character*, so it is zero-based on line 1 and one-based on later lines, and an error names the line of the character
that was read last, even if that is a newline. tests/interop/test_config_check.py compares both servers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from datetime import UTC, datetime

from jetcluster.errors import OperatorError

Scalar = str | int | float | bool | datetime

_SPACES = re.compile(r"\s*")
_BLANKS = re.compile(r"[ \t]*")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_ESCAPE_HELP = r"Only the following escape characters are allowed: \xXX, \t, \n, \r, \", \\."
_STRING_STOP = re.compile(r"[\\\r\n;,\]} \t']")
_KEY_END = re.compile(r"[\s:=]")
_BLOCK_END = re.compile(r"\n\)(?=\n|\Z)")
_INCLUDE_END = re.compile(r"[\r\n;} \t']")
_DIGITS = re.compile(r"-?[0-9]+")
_FRACTION = re.compile(r"[0-9]+")
_ADDRESS = re.compile(r"[0-9.:-]*")
_UNIT = re.compile(r"[kmgtpe][bi]*(?=[\r\n;,\]} \t]|\Z)", re.IGNORECASE)
_NUMBER_END = re.compile(r"[\r\n;,\]} \t]|\Z")
_DATE_FORM = "00-00T00:00:00Z"
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_INT64_BOUND = 1 << 63
_MAX_DIGITS = 20


class ConfigError(OperatorError):
    """A configuration that cannot be used; `str()` is the text shown after `nats-server: `."""


class ParseError(ConfigError):
    """A syntax error, with nats-server's text."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"Parse error on line {line}: '{text}'")
        self.line = line


class Variable(str):
    """A bare `$NAME` as a value; the string is the name."""

    __slots__ = ()


class Scanner:
    """A cursor over the text of one file. Positions are (line, column) as `ConfigNode` reports them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self._newlines = [found.start() for found in re.finditer("\n", text)]

    def peek(self) -> str:
        """Returns the next character, or '' at the end of the text."""
        return self.text[self.pos : self.pos + 1]

    def take(self) -> str:
        char = self.peek()
        self.pos += len(char)
        return char

    def position(self) -> tuple[int, int]:
        before = bisect_left(self._newlines, self.pos)
        return before + 1, self.pos - (self._newlines[before - 1] if before else 0)

    def error(self, text: str) -> ParseError:
        """Returns the error; `{char}` in the text stands for the next character, which is taken."""
        char = self.take() if "{char}" in text else ""
        shown = "\\n" if char == "\n" else char or "\0"  # nats-server shows the end of the file as NUL
        return ParseError(self.position()[0], text.replace("{char}", shown))

    def skip_blanks(self) -> None:
        self.pos = _BLANKS.match(self.text, self.pos).end()  # type: ignore[union-attr]

    def skip_spaces(self) -> None:
        self.pos = _SPACES.match(self.text, self.pos).end()  # type: ignore[union-attr]

    def skip_comment(self) -> bool:
        """Skips a comment up to its newline; returns False when there is none."""
        if not (self.text.startswith("#", self.pos) or self.text.startswith("//", self.pos)):
            return False
        end = self.text.find("\n", self.pos)
        self.pos = len(self.text) if end < 0 else end
        return True

    def skip_filler(self) -> None:
        """Skips white space and comments."""
        self.skip_spaces()
        while self.skip_comment():
            self.skip_spaces()

    # ---- keys

    def quoted_key(self) -> str | None:
        """Reads a key in quotes, without escapes; returns None when the closing quote is missing."""
        quote = self.take()
        end = self.text.find(quote, self.pos)
        if end < 0:
            self.pos = len(self.text)
            return None
        key, self.pos = self.text[self.pos : end], end + 1
        return key

    def bare_key(self) -> str:
        """Reads a key up to white space, `:` or `=`; at least one character."""
        found = _KEY_END.search(self.text, self.pos + 1)
        end = found.start() if found else len(self.text)
        key, self.pos = self.text[self.pos : end], end
        return key

    def include_name(self) -> str:
        self.skip_blanks()
        char = self.peek()
        if char in ("'", '"'):
            name = self.quoted_key()
            if name is None:
                raise self.error(f"Unexpected EOF in {_QUOTED[char]} include")
            return name
        for start, what in _NOT_INCLUDED.items():
            if char and char in start:
                self.take()
                raise self.error(f"Expected include value but found {what}")
        found = _INCLUDE_END.search(self.text, self.pos)
        end = found.start() if found else len(self.text)
        name, self.pos = self.text[self.pos : end], end
        if self.peek() == "'":
            self.take()
        return name

    # ---- values

    def scalar(self) -> Scalar | Variable:
        """Reads a value that is no array and no map. Raises ParseError, or ConfigError for a number out of range or an
        impossible date."""
        char = self.peek()
        if char == "'":
            return self._raw_string()
        if char == '"':
            return self._double_quoted()
        if char == "(":
            return self._block()
        if char == "-" or (char.isascii() and char.isdigit()):
            return self._number()
        if char == ".":
            self.take()
            raise self.error("Floats must start with a digit")
        if char in ("\n", "\r"):
            self.take()
            raise self.error("Expected value but found new line")
        return self._string("")

    def _raw_string(self) -> str:
        self.take()
        end = self.text.find("'", self.pos)
        if end < 0:
            self.pos = len(self.text)
            raise self.error("Unexpected EOF.")
        body, self.pos = self.text[self.pos : end], end + 1
        return body

    def _double_quoted(self) -> str:
        self.take()
        parts: list[str] = []
        text = self.text
        while True:
            quote, escape = text.find('"', self.pos), text.find("\\", self.pos)
            if escape >= 0 and (escape < quote or quote < 0):
                parts.append(text[self.pos : escape])
                self.pos = escape + 1
                parts.append(self._escaped())
                continue
            if quote < 0:
                self.pos = len(text)
                raise self.error("Unexpected EOF.")
            parts.append(text[self.pos : quote])
            self.pos = quote + 1
            return "".join(parts)

    def _block(self) -> str:
        """Reads the text between `(` and a line that holds only `)`."""
        self.take()
        found = _BLOCK_END.search(self.text, self.pos)
        if found is None:
            self.pos = len(self.text)
            raise self.error("Unexpected EOF processing block.")
        body, self.pos = self.text[self.pos : found.start() + 1], found.end()
        return body

    def _string(self, begun: str) -> Scalar | Variable:
        """Reads a bare token, after its beginning `begun`; a backslash escapes as inside double quotes."""
        parts = [begun]
        has_escapes = False
        while True:
            found = _STRING_STOP.search(self.text, self.pos)
            end = found.start() if found else len(self.text)
            parts.append(self.text[self.pos : end])
            self.pos = end
            if self.peek() != "\\":
                break
            self.take()
            has_escapes = True
            parts.append(self._escaped())
        if self.peek() == "'":  # nats-server takes it for a closing quote
            self.take()
        token = "".join(parts)
        if has_escapes:
            return token
        boolean = _BOOLEANS.get(token.lower())
        if boolean is not None:
            return boolean
        return Variable(token[1:]) if token.startswith("$") else token

    def _escaped(self) -> str:
        name = self.peek()
        if name == "x":
            self.take()
            digits = self.text[self.pos : self.pos + 2]
            self.pos += len(digits)
            if "\n" in digits or "\r" in digits:
                raise self.error("Expected two hexadecimal digits after '\\x', but hit end of line")
            if not re.fullmatch(r"[0-9a-fA-F]{2}", digits):
                raise self.error(f"Expected two hexadecimal digits after '\\x', but got '{digits}'")
            return chr(int(digits, 16))
        if name not in _ESCAPES or not name:
            raise self.error(f"Invalid escape character '{{char}}'. {_ESCAPE_HELP}")
        self.take()
        return _ESCAPES[name]

    def _number(self) -> Scalar | Variable:
        """Reads an integer with or without a unit (1k = 1000, 1kb = 1024), a float, a UTC time, an address, or a text
        that begins with a digit."""
        start = self.pos
        found = _DIGITS.match(self.text, start)
        if found is None:
            self.take()
            not_dot = "Expected a digit but got '{char}'."
            raise self.error("Floats must start with a digit, not '.'." if self.peek() == "." else not_dot)
        self.pos = found.end()
        digits, char = found[0], self.peek()
        if char == ".":
            return self._float(start)
        if char == "-" and digits[0] != "-":
            return self._date(start)
        unit = _UNIT.match(self.text, self.pos)
        if unit is not None:
            self.pos = unit.end()
            return _sized(digits, unit[0].lower(), self.text[start : self.pos])
        if digits[0] != "-" and not _NUMBER_END.match(self.text, self.pos):
            return self._string(digits)
        return _sized(digits, "", digits)

    def _float(self, start: int) -> Scalar:
        self.take()
        found = _FRACTION.match(self.text, self.pos)
        if found is None:
            raise self.error("Floats must have a digit after the '.', but got '{char}' instead.")
        self.pos = found.end()
        if self.peek() != ".":
            return float(self.text[start : self.pos])
        address = _ADDRESS.match(self.text, self.pos)
        assert address is not None
        self.pos = address.end()
        return self.text[start : self.pos]

    def _date(self, start: int) -> Scalar:
        self.take()
        if self.pos - start != len("2006-"):
            raise self.error("All ISO8601 dates must be in full Zulu form.")
        for expected in _DATE_FORM:
            char = self.peek()
            if expected == "0" and not (char.isascii() and char.isdigit()):
                raise self.error("Expected digit in ISO8601 datetime, but found '{char}' instead.")
            if expected not in ("0", char):
                raise self.error(f"Expected '{expected}' in ISO8601 datetime, but found '{{char}}' instead.")
            self.take()
        token = self.text[start : self.pos]
        try:
            return datetime.strptime(token, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        except ValueError:
            raise ConfigError(f"expected Zulu formatted DateTime, but got '{token}'") from None


_QUOTED = {"'": "quoted", '"': "double quoted"}
_NOT_INCLUDED = {
    "[": "start of an array",
    "{": "start of a map",
    "(": "start of a block",
    "-0123456789": "start of a number",
    "\\": "escape sequence",
    "\r\n": "new line",
}


def _sized(digits: str, unit: str, token: str) -> int:
    size = digits.lstrip("-0")  # `int` raises beyond 4,300 digits
    number = _INT64_BOUND if len(size) > _MAX_DIGITS else int(size or "0") * (-1 if digits[0] == "-" else 1)
    if not -_INT64_BOUND <= number < _INT64_BOUND:
        raise ConfigError(f"integer '{token}' is out of the range")
    if not unit:
        return number
    base = 1000 if len(unit) == 1 else 1024
    sized: int = number * base ** _POWERS[unit[0]]
    return sized
