"""Parts shared by several commands: exit codes, a cluster's refusal, the line printed for a failure, and the run of a
command that asks one server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from jetcluster.client.connection import Connection, without_user
from jetcluster.client.credentials import CredentialsError
from jetcluster.client.reply import ServerError
from jetcluster.client.servers import ServerOptions
from jetcluster.errors import ApiError, CallerError, JetclusterError, PassingError

DONE: Final = 0
REFUSED: Final = 1
NOT_REACHED: Final = 2
TOO_SLOW: Final = 3


class ServerRefusedError(CallerError):
    """The servers refused the request; the text is their reason, `code` their error code (0: none)."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


def fail(command: str, text: str, code: int) -> int:
    """Prints the reason of a failure to stderr and returns `code`."""
    print(f"jetcluster {command}: {text}", file=sys.stderr)
    return code


def connected(command: str, servers: ServerOptions, work: Callable[[Connection], int]) -> int:
    """Connects to the first server that answers and returns the exit code of `work`. A failure is printed: no server,
    a refused user or an unusable credential is NOT_REACHED, and so is an answer that does not come; a refused request
    is REFUSED."""
    try:
        connection = servers.connect()
    except PassingError as error:
        return fail(command, str(error), NOT_REACHED)
    except (ServerError, CredentialsError) as error:
        return fail(command, f"{', '.join(shown(servers))}: {error}", NOT_REACHED)
    with connection:
        try:
            return work(connection)
        except JetclusterError as error:
            passing = isinstance(error, PassingError) or (isinstance(error, ApiError) and error.retriable)
            return fail(command, str(error), NOT_REACHED if passing else REFUSED)


def shown(servers: ServerOptions) -> list[str]:
    """Returns the servers' URLs without users and passwords."""
    return [without_user(url) for url in servers.servers]
