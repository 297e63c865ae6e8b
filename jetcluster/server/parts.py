"""`ServerParts`: the parts of a server that the connections of its clients and leaf nodes use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import field
from typing import Any

from jetcluster.budget import LoopBudget
from jetcluster.ordered import OrderedSet
from jetcluster.records import dataclass
from jetcluster.server.accounts import Accounts
from jetcluster.server.clients import Clients
from jetcluster.server.connection import Sockets
from jetcluster.server.crowd import Crowd
from jetcluster.server.governor import Governor
from jetcluster.server.removals import Removals
from jetcluster.server.slow_logins import SlowLogins
from jetcluster.server.state import ServerState

LookUp = Callable[[Exception], Coroutine[Any, Any, None] | None]


def _nothing(_: Exception) -> None:
    return None


@dataclass(slots=True)
class ServerParts:
    """Made by `server.Server`, which keeps what is for itself alone: the port, and what it does about all of them."""

    state: ServerState
    sockets: Sockets
    clients: Clients
    crowd: Crowd
    accounts: Accounts
    removals: Removals
    budget: LoopBudget
    governor: Governor
    slow_logins: SlowLogins
    look_up: LookUp = _nothing
    """The work of finding out what may turn a refusal into a welcome; None when there is nothing to be found."""
    tasks: OrderedSet[asyncio.Task[None]] = field(default_factory=OrderedSet)
    """Under way until the server stops."""
    last_cid: int = 0

    def new_cid(self) -> int:
        """The number of a connection; never given twice."""
        self.last_cid += 1
        return self.last_cid

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
