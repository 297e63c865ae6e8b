"""What clients do to the simulated cluster while faults happen, and what must be true of it then and afterwards.

Each module of `workloads/` holds one or more `Workload` classes; `found` has them by name.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import pkgutil
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, ClassVar

from tests.sim.cluster import workloads
from tests.sim.cluster.deployment import Deployment, Violation
from tests.sim.cluster.session import ApiError, Disconnected, NoResponders, Session

PASSING = (Disconnected, NoResponders, ApiError, TimeoutError)
"""What a client may meet while faults last, and tries again after."""
SETTLE = 60.0
"""Longest time, in seconds after the last fault, until everything must go again."""


class Workload:
    """One program of clients, on a machine of its own. `prepare` runs before faults begin, `work` beside them until
    `stopping`, `check` after the last one is over. All raise Violation."""

    name: ClassVar[str] = ""
    promises: ClassVar[tuple[str, ...]] = ()
    """In the words of docs/."""

    def __init__(self, deployment: Deployment, rng: Random) -> None:
        self.deployment = deployment
        self.rng = rng
        self.loop = deployment.client(self.name)
        self.stopping = False
        self.counts: dict[str, int] = {}
        """What was done, for the summary."""

    async def prepare(self) -> None:
        raise NotImplementedError

    async def work(self) -> None:
        raise NotImplementedError

    async def check(self) -> None:
        raise NotImplementedError

    # ---- tools

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def note(self, what: str) -> None:
        """Into the trace."""
        self.deployment.trace.add(self.name, what)

    async def session(self, name: str, *nodes: str) -> Session:
        """Connected; to one of `nodes`, or of all in a random order."""
        servers = self.deployment.addresses(*nodes)
        self.rng.shuffle(servers)
        session = Session(f"{self.name}-{name}", servers)
        await session.connect()
        return session

    async def insist(self, what: str, attempt: Callable[[], Awaitable[Any]], seconds: float = SETTLE) -> Any:
        """The first result; tries again as clients do. Raises Violation where it does not come in time."""
        end = self.loop.time() + seconds
        while True:
            try:
                return await attempt()
            except PASSING as error:
                if self.loop.time() > end:
                    raise Violation(f"{self.name}: {what} fails for {seconds} s: {error!r}") from error
            await asyncio.sleep(0.1)

    async def until(self, what: str, is_so: Callable[[], Awaitable[bool]], seconds: float = SETTLE) -> None:
        """Raises Violation where it does not come true in time."""
        end = self.loop.time() + seconds
        while True:
            try:
                if await is_so():
                    return
            except PASSING:
                pass
            if self.loop.time() > end:
                raise Violation(f"{self.name}: not after {seconds} s: {what}")
            await asyncio.sleep(0.2)

    def require(self, is_so: bool, what: str) -> None:
        if not is_so:
            raise Violation(f"{self.name}: {what}")


@functools.cache
def found() -> dict[str, type[Workload]]:
    """All there are, by name."""
    classes: dict[str, type[Workload]] = {}
    for module in sorted(pkgutil.iter_modules(workloads.__path__), key=lambda one: one.name):
        loaded = importlib.import_module(f"{workloads.__name__}.{module.name}")
        for one in vars(loaded).values():
            if isinstance(one, type) and issubclass(one, Workload) and one.__module__ == loaded.__name__ and one.name:
                classes[one.name] = one
    return classes
