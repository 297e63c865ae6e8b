"""Parts shared by several commands: exit codes, a cluster's refusal, and the line printed for a failure."""

from __future__ import annotations

import sys
from typing import Final

from jetcluster.errors import CallerError

DONE: Final = 0
REFUSED: Final = 1
NOT_REACHED: Final = 2
TOO_SLOW: Final = 3


class ServerRefusedError(CallerError):
    """The servers refused the request; the text is their reason, `code` their error code (0: none)."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


def urls_of(servers: str) -> list[str]:
    """Splits a list of URLs separated by commas."""
    return [url.strip() for url in servers.split(",") if url.strip()]


def fail(command: str, text: str, code: int) -> int:
    """Prints the reason of a failure to stderr and returns `code`."""
    print(f"jetcluster {command}: {text}", file=sys.stderr)
    return code
