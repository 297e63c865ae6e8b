"""`ServerOptions`: the servers of a cluster and the credentials for them. `ask` puts a question to one server after the
other until it is answered."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from jetcluster.client.connection import Connection
from jetcluster.client.credentials import Credentials
from jetcluster.errors import ApiError, JetclusterError, PassingError

T = TypeVar("T")

PATIENCE_SECONDS: Final = 30.0
"""A question to a leader is repeated for this long: an election may be under way, or a server shutting down."""
MIN_CONNECT_SECONDS: Final = 0.1
"""Seconds that a server has at least to answer a connection."""


@dataclass(frozen=True)
class ServerOptions:
    """The cluster's servers, and the credentials for them. Sources, sinks and commands share these."""

    servers: tuple[str, ...]
    credentials: Credentials = field(default_factory=Credentials)
    domain: str = ""
    inbox_prefix: str = "_INBOX"
    connect_timeout: float = 3.0
    """Seconds per server."""
    reach_timeout: float = 5.0
    """Seconds for which a job that begins looks for any server: a wrong address is no outage."""
    js_prefix: str = ""
    """Prefix of JetStream's subjects, as an account imports them; it goes before `domain`."""
    name: str = "jetcluster-spark"
    """Name of the connection, as servers list it."""

    @property
    def api_prefix(self) -> str:
        if self.js_prefix:
            return f"{self.js_prefix}."
        return f"$JS.{self.domain}.API." if self.domain else "$JS.API."

    def connect(self, first: int = 0, more: tuple[str, ...] = ()) -> Connection:
        """Connects to the first server that answers, from number `first` on, then `more`. Raises as `Connection`."""
        at = first % len(self.servers)
        return self.connect_to(*self.servers[at:], *self.servers[:at], *more)

    def connect_to(self, *servers: str) -> Connection:
        return Connection(
            servers, credentials=self.credentials, timeout=self.connect_timeout, api_prefix=self.api_prefix,
            inbox_prefix=self.inbox_prefix, name=self.name,
        )  # fmt: skip


_good: dict[tuple[str, ...], str] = {}
"""Servers -> the one that answered last: a paused server costs `connectTimeout` once, not per trigger of a query."""


def ask(
    options: ServerOptions,
    question: Callable[[Connection], T],
    patience: float = PATIENCE_SECONDS,
    *,
    reach: float = PATIENCE_SECONDS,
) -> T:
    """Returns the answer to `question`, put to one server after the other for `patience` seconds while errors are
    retriable (no leader, no connection, 503), but only for `reach` seconds until a server is there at all: servers that
    accept a connection and say nothing share these, so that each is tried. Raises the last error then, and any other
    error at once."""
    begun = time.monotonic()
    deadline = begun + min(patience, reach)
    pause = 0.05
    for first in itertools.count():
        try:
            with _connect(_within(options, deadline - time.monotonic()), first) as connection:
                deadline = begun + patience
                answer = question(connection)
                _good[options.servers] = connection.url
                return answer
        except (PassingError, ApiError) as error:
            if not error.retriable:
                raise
            failure: JetclusterError = error
        if time.monotonic() + pause > deadline:
            raise failure
        time.sleep(pause)
        pause = min(2 * pause, 1.0)
    raise AssertionError("counts for ever")


def _within(options: ServerOptions, seconds: float) -> ServerOptions:
    """The options with which all servers are tried within so many seconds."""
    each = max(seconds / len(options.servers), MIN_CONNECT_SECONDS)
    return replace(options, connect_timeout=each) if each < options.connect_timeout else options


def _connect(options: ServerOptions, first: int) -> Connection:
    good = _good.get(options.servers)
    if first or good is None:
        return options.connect(first)
    return options.connect_to(good, *(url for url in options.servers if url != good))
