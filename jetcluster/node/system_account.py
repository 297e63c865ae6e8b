"""The system account of a node: its requests and its events, and what they can have the node do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetcluster.monitor.server_block import ServerBlock
from jetcluster.monitor.system_events import SystemEvents
from jetcluster.monitor.system_services import Actions, SystemServices

if TYPE_CHECKING:
    from jetcluster.node.node import Node


class SystemAccount:
    def __init__(self, node: Node) -> None:
        block = ServerBlock(node)
        self.events = SystemEvents(node, block)
        self.services = SystemServices(node, block, Actions(reload=node.reload))

    def start(self) -> None:
        self.services.start()
        self.events.start()

    async def stop(self) -> None:
        self.events.stop()
        await self.services.stop()
