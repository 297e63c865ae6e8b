"""Scanner for nats-server's configuration format: characters, positions, comments and scalar tokens.

The grammar is a superset of JSON (shared/reference/core-and-consumers.md section 2.5). Error texts and the odd column
count are the real server's, because harnesses compare them: a column counts from the last newline *character*, so it is
zero-based on line 1 and one-based on every later line.
"""

from __future__ import annotations

import re

BLANK = " \t"
SPACE = " \t\r\n"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_ESCAPE_HELP = r"Only the following escape characters are allowed: \xXX, \t, \n, \r, \", \\."
_BARE_END = re.compile(r"[\s,;\]\}]")
_KEY_END = re.compile(r"[\s:={]")
_BLOCK_END = re.compile(r"^[ \t]*\)[ \t\r]*$", re.MULTILINE)


class ConfigError(Exception):
    """A configuration that cannot be used; `str()` is the text shown after `nats-server: `."""


class ParseError(ConfigError):
    """A syntax error, in the real server's words."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"Parse error on line {line}: '{text}'")
        self.line = line


class Scanner:
    """A cursor over the text of one file. Positions are (line, column) as `Node` reports them."""

    __slots__ = ("pos", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0

    def peek(self) -> str:
        """The next character, or '' at the end of the text."""
        return self.text[self.pos : self.pos + 1]

    def advance(self) -> str:
        char = self.peek()
        self.pos += 1
        return char

    def position(self, offset: int | None = None) -> tuple[int, int]:
        at = self.pos if offset is None else offset
        newline = self.text.rfind("\n", 0, at)
        return self.text.count("\n", 0, at) + 1, at - max(newline, 0)

    def error(self, text: str, offset: int | None = None) -> ParseError:
        return ParseError(self.position(offset)[0], text)

    def skip(self, characters: str) -> None:
        text, size = self.text, len(self.text)
        while self.pos < size and text[self.pos] in characters:
            self.pos += 1

    def at_comment(self) -> bool:
        return self.text.startswith("#", self.pos) or self.text.startswith("//", self.pos)

    def skip_comment(self) -> None:
        end = self.text.find("\n", self.pos)
        self.pos = len(self.text) if end < 0 else end

    def skip_filler(self, also: str = "") -> None:
        """Skips white space, comments and the separators in `also`."""
        while True:
            self.skip(SPACE + also)
            if not self.at_comment():
                return
            self.skip_comment()

    def key(self) -> str:
        char = self.peek()
        if char in ('"', "'"):
            return self.quoted()
        if char in (":", "="):
            raise self.error(f"Unexpected key separator '{char}'")
        found = _KEY_END.search(self.text, self.pos)
        end = found.start() if found else len(self.text)
        word, self.pos = self.text[self.pos : end], end
        return word

    def bare(self) -> str:
        """A token up to white space, `,`, `;`, `]` or `}`; a backslash escapes as inside double quotes."""
        found = _BARE_END.search(self.text, self.pos)
        end = found.start() if found else len(self.text)
        token, self.pos = self.text[self.pos : end], end
        return self._unescape(token, end) if "\\" in token else token

    def quoted(self) -> str:
        """A "..." string with escapes, or a '...' string taken as it is."""
        quote = self.advance()
        start = self.pos
        end = self.text.find(quote, start)
        if quote == '"':
            while end > 0 and self._is_escaped(end, start):
                end = self.text.find(quote, end + 1)
        if end < 0:
            raise self.error("Unexpected EOF.", len(self.text))
        body, self.pos = self.text[start:end], end + 1
        return self._unescape(body, end) if quote == '"' and "\\" in body else body

    def block(self) -> str:
        """The text between `(` and a line that holds only `)`."""
        self.pos += 1
        found = _BLOCK_END.search(self.text, self.pos)
        if found is None:
            raise self.error("Unexpected EOF processing block.", len(self.text))
        body, self.pos = self.text[self.pos : found.start()], found.end()
        return body

    def _is_escaped(self, at: int, start: int) -> bool:
        backslashes = 0
        while at - 1 - backslashes >= start and self.text[at - 1 - backslashes] == "\\":
            backslashes += 1
        return backslashes % 2 == 1

    def _unescape(self, body: str, offset: int) -> str:
        out: list[str] = []
        i = 0
        while i < len(body):
            char = body[i]
            i += 1
            if char != "\\":
                out.append(char)
                continue
            name = body[i : i + 1]
            i += 1
            if name == "x":
                digits = body[i : i + 2]
                if not re.fullmatch(r"[0-9a-fA-F]{2}", digits):
                    raise self.error("Expected two hexadecimal digits after '\\x'", offset)
                out.append(chr(int(digits, 16)))
                i += 2
            elif name in _ESCAPES:
                out.append(_ESCAPES[name])
            else:
                raise self.error(f"Invalid escape character '{name}'. {_ESCAPE_HELP}", offset)
        return "".join(out)
