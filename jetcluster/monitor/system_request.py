"""`SystemRequest`: one request to the system account; `Actions`: the actions it can have this server do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from jetcluster.protocol.bus import Origin


class SystemRequest(NamedTuple):
    """`scope`: `ping` (to all servers), `server` (to this one), `account` (about `account`), `own` (from an account
    about itself), `user`."""

    scope: str
    kind: str
    account: str
    body: bytes
    origin: Origin


Answer = Callable[[SystemRequest], Awaitable[bytes]]
"""The reply to a request; b"" for none."""


class Actions(NamedTuple):
    """The actions that the system account can have this server do."""

    reload: Callable[[], str]
    """Returns why it failed, or ""."""
