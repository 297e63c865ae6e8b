"""`Reconnecting`: a connection that is opened again, at the next server, for commands that follow work of hours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jetcluster.client.connection import Connection
from jetcluster.client.reply import ConnectionLostError
from jetcluster.client.servers import ServerOptions
from jetcluster.errors import JetclusterError


class NotReachedError(JetclusterError):
    """No server was reached from the start on: most likely the URLs are wrong."""


class Reconnecting:
    """Each change is told to `say` once: no server is reached, and one is reached again. `patient`: servers that have
    not been reached before may still be starting, so that nothing is wrong yet."""

    def __init__(self, options: ServerOptions, say: Callable[[str], None], *, patient: bool = False) -> None:
        self._options = options
        self._say = say
        self._patient = patient
        self._at = 0
        self._reached: bool | None = None
        """None before the first attempt."""
        self._open: Connection | None = None

    def connection(self, timeout: float) -> Connection:
        """Returns the open connection, or a new one to any server that answers within `timeout` seconds each. Raises
        NotReachedError when none was ever reached, later ConnectionLostError, and at once ServerError for a refused
        user, CredentialsError."""
        if self._open is None:
            options = replace(self._options, connect_timeout=min(timeout, self._options.connect_timeout))
            try:
                self._open = options.connect(self._at)
            except ConnectionLostError as error:
                self._not_reached(error)
                raise
            if self._reached is False:
                self._say(f"connected to {self._open.url}")
            self._reached = True
        return self._open

    def next(self) -> None:
        """Leaves the server: the next connection begins with the one behind it."""
        self.close()
        self._at += 1

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
        self._open = None

    def _not_reached(self, error: ConnectionLostError) -> None:
        if self._reached is None and not self._patient:
            raise NotReachedError(str(error)) from error
        if self._reached is not False:
            self._say(f"{error}; trying on")
        self._reached = False
