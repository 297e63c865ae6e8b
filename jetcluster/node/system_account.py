"""The system account of a node: its requests and its events, and what they can have the node do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetcluster.monitor.server_block import ServerBlock
from jetcluster.monitor.subscriber_counts import SubscriberCounts
from jetcluster.monitor.system_events import SystemEvents
from jetcluster.monitor.system_services import Actions, SystemServices

if TYPE_CHECKING:
    from jetcluster.monitor.claims_requests import ClaimsRequests
    from jetcluster.node.node import Node


class SystemAccount:
    def __init__(self, node: Node) -> None:
        block = ServerBlock(node)
        self.events = SystemEvents(node, block)
        self.services = SystemServices(node, block, Actions(reload=node.reload))
        self.counts = SubscriberCounts(node)
        self.claims: ClaimsRequests | None = None
        if node.operator is not None:
            from jetcluster.monitor.claims_requests import ClaimsRequests

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
