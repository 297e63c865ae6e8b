"""The system account of a node: its requests, its events, and the JWTs of accounts that come through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from jetcluster.monitor.system.events import SystemEvents
from jetcluster.monitor.system.requests import Actions, Answer, SystemServices
from jetcluster.monitor.system.subscriber_counts import SubscriberCounts
from jetcluster.monitor.view import NodeView, ServerBlock

if TYPE_CHECKING:
    from jetcluster.monitor.system.answers import SystemAnswers
    from jetcluster.monitor.system.claims import ClaimsRequests


class SystemAccount:
    def __init__(self, node: NodeView, reload: Callable[[], str]) -> None:
        """`reload` reads the configuration again; it returns why it failed, or ""."""
        block = ServerBlock(node)
        self.events = SystemEvents(node, block)
        self.services = SystemServices(node, partial(load_answers, node, block, Actions(reload)))
        self.counts = SubscriberCounts(node)
        self.claims: ClaimsRequests | None = None
        """None without operators."""
        if node.operator is not None:
            from jetcluster.monitor.system.claims import ClaimsRequests

            self.claims = ClaimsRequests(node, block, node.operator)

    def start(self) -> None:
        self.services.start()
        self.counts.start()
        if self.claims is not None:
            self.claims.start()
        self.events.start()

    async def stop(self) -> None:
        self.events.stop()
        if self.claims is not None:
            await self.claims.stop()
        self.counts.stop()
        await self.services.stop()


async def load_answers(node: NodeView, block: ServerBlock, actions: Actions) -> Answer:
    """The answers to requests, on the first one: the pages take 0.1 s to import, in a thread. Raises ImportError."""
    answers = await asyncio.to_thread(_import_answers)
    return answers(node, block, actions).answer


def _import_answers() -> type[SystemAnswers]:
    from jetcluster.monitor.system.answers import SystemAnswers

    return SystemAnswers
