"""`NodeMonitoring`: the system account and the monitoring port of a node, started and stopped with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from jetcluster.config.options import Options
from jetcluster.monitor.shared import part_of
from jetcluster.monitor.source import FINDINGS_METHOD
from jetcluster.monitor.system.events import SystemEvents
from jetcluster.monitor.system.requests import Answer, SystemServices
from jetcluster.monitor.system.subscriber_counts import SubscriberCounts
from jetcluster.monitor.view import ServerBlock, mesh_of
from jetcluster.node.node import Monitoring, Node

if TYPE_CHECKING:
    from jetcluster.doctor.facts import Certificate
    from jetcluster.monitor.history import History
    from jetcluster.monitor.lag import LagNotes
    from jetcluster.monitor.port import Monitor
    from jetcluster.monitor.system.answers import SystemAnswers
    from jetcluster.monitor.system.claims import ClaimsRequests


CERTIFICATE_SECONDS: Final = 5.0
"""After a start, which should not wait for the imports that read a certificate."""


class NodeMonitoring(Monitoring):
    """`node.node.Monitoring` of a server."""

    def __init__(self, node: Node) -> None:
        """Called while the node starts, once it has its server and its JetStream."""
        super().__init__()
        self._node = node
        self._notes: LagNotes | None = None
        self._look: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        """The last look at the certificates."""
        block = ServerBlock(node)
        self.events = SystemEvents(node, block)
        self.services = SystemServices(node, partial(load_answers, node, block, node.reload))
        self.counts = SubscriberCounts(node)
        self.claims: ClaimsRequests | None = None
        """None without operators."""
        if node.operator is not None:
            from jetcluster.monitor.system.claims import ClaimsRequests

            self.claims = ClaimsRequests(node, block, node.operator)
        self.listener: Monitor | None = None
        """None when no port is configured."""
        self.history: History | None = None
        """None without a console, or without a store."""
        mesh = mesh_of(node)
        if mesh is not None:
            mesh.serve(FINDINGS_METHOD, self._findings)

    async def _findings(self, peer: str, payload: bytes) -> bytes:
        """Answers another server that was asked for the whole cluster."""
        serve = await asyncio.to_thread(_import_findings)
        return await serve(self._node, peer, payload)

    @property
    def notes(self) -> LagNotes:
        if self._notes is None:
            from jetcluster.monitor.lag import LagNotes

            self._notes = LagNotes(self._node)
        return self._notes

    async def start(self) -> None:
        self.services.start()
        self.counts.start()
        if self.claims is not None:
            self.claims.start()
        self.events.start()
        if self._node.options.console and self._node.jetstream is not None and self._node.jetstream.store_dir:
            from jetcluster.monitor.history import History

            self.history = part_of(self._node, History)
            self.history.start()
        options = self._node.options
        if options.http_port or options.https_port:
            from jetcluster.monitor.port import start_monitor

            self.listener = await start_monitor(self._node)
            self._node.monitor_port = self.listener.port
        self._look = asyncio.get_running_loop().call_later(CERTIFICATE_SECONDS, self.look_at_certificates)

    def modules(self) -> list[str]:
        options = self._node.options
        if options.system_account_name in (options.accounts or {}):
            return ["jetcluster.monitor.varz", "jetcluster.monitor.system.answers"]
        return []

    def lame_duck(self) -> None:
        self.events.lame_duck()

    async def ask_others(self, account: str, others: int, seconds: float) -> str:
        return "" if self.claims is None else await self.claims.ask_others(account, others, seconds)

    def look_at_certificates(self) -> None:
        options = self._node.options
        blocks = (options.tls, options.cluster.tls, options.leafnodes.tls, options.websocket.tls)
        if any(tls is not None for tls in blocks):
            self._looking = asyncio.get_running_loop().create_task(self._tell_certificates())

    async def _tell_certificates(self) -> None:
        """Logs those that are over: the other ends alone would say so."""
        certificates_of = await asyncio.to_thread(_import_certificates)
        for one in certificates_of(self._node, self._node.clock.time_ns()):
            if one.seconds < 0:
                self._node.log.warning(f"The certificate for {one.port} is over: who checks it does not connect")

    def renew_tls(self, options: Options) -> None:
        if self.listener is not None:
            self.listener.renew_tls(options)

    def address(self) -> tuple[str, str, int] | None:
        return None if self.listener is None else (self.listener.scheme, self.listener.host, self.listener.port)

    async def stop(self) -> None:
        self.events.stop()
        for look in (self._look, self._looking):
            if look is not None:
                look.cancel()
        if self.history is not None:
            self.history.stop()
        if self.claims is not None:
            await self.claims.stop()
        self.counts.stop()
        await self.services.stop()

    async def close_port(self) -> None:
        if self.listener is not None:
            await self.listener.stop()


async def load_answers(node: Node, block: ServerBlock, reload: Callable[[], str]) -> Answer:
    """Makes the answers to requests, on the first request: importing the pages takes 0.1 s, in a thread. `reload` reads
    the configuration again and returns an error text, or "". Raises ImportError."""
    answers = await asyncio.to_thread(_import_answers)
    return answers(node, block, reload).answer


def _import_answers() -> type[SystemAnswers]:
    from jetcluster.monitor.system.answers import SystemAnswers

    return SystemAnswers


def _import_certificates() -> Callable[[Node, int], tuple[Certificate, ...]]:
    from jetcluster.monitor.facts import certificates_of

    return certificates_of


def _import_findings() -> Callable[[Node, str, bytes], Awaitable[bytes]]:
    from jetcluster.monitor.findings import serve_findings

    return serve_findings
