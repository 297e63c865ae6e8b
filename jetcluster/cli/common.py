"""Parts that several commands share: exit codes, a cluster's refusal, and the line that says why a command failed."""

from __future__ import annotations

import sys
from typing import Final

from jetcluster.errors import CallerError

DONE: Final = 0
REFUSED: Final = 1
NOT_REACHED: Final = 2
TOO_SLOW: Final = 3


class ServerRefusedError(CallerError):
    """The servers refused what was asked; the text is their reason, `code` their error code (0: none)."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


def urls_of(servers: str) -> list[str]:
    """The URLs of a list with commas."""
    return [url.strip() for url in servers.split(",") if url.strip()]


def fail(command: str, text: str, code: int) -> int:
    """Prints to stderr why `command` failed, and returns `code`."""
    print(f"jetcluster {command}: {text}", file=sys.stderr)
    return code
