"""Findings of this server, and of its whole cluster where one asks for that.

Each server judges itself, the streams that have a replica on it and the consumers that it owns. The one that is asked
for the cluster asks the others over the mesh for their findings and for the facts of themselves, to which it adds what
only all of them together show.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from jetcluster.budget import Steps
from jetcluster.cluster.consumer_facts import consumer_facts
from jetcluster.doctor.cluster_rules import look_at_cluster, look_at_lost, look_at_orphan
from jetcluster.doctor.config_rules import look_at_account, look_at_config
from jetcluster.doctor.consumer_rules import look_at_consumer
from jetcluster.doctor.facts import ClusterFacts, OrphanFacts, ServerFacts, Unanswered
from jetcluster.doctor.report import Collector, Report, merged
from jetcluster.doctor.server_rules import look_at_server
from jetcluster.doctor.stream_rules import look_at_refusal, look_at_stream
from jetcluster.logs import get_logger
from jetcluster.mesh.api import MeshError, MeshRefusedError
from jetcluster.monitor.account_facts import account_facts
from jetcluster.monitor.facts import broken_facts, refusal_facts, server_facts, stream_facts
from jetcluster.monitor.jsz import node_name
from jetcluster.monitor.shared import Shared, part_of
from jetcluster.monitor.source import FINDINGS_METHOD, ROWS_PER_STEP, Json
from jetcluster.monitor.view import engine_of, mesh_of, untold_streams
from jetcluster.store.api import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.node.node import Node
    from jetcluster.replica.stream_replica import StreamReplica

ASK_SECONDS: Final = 3.0
ASKER: Final = ("monitor", "findings")
"""In the node's time budget: whoever asks first, all wait for the same look."""
KEPT_SECONDS: Final = 1.0
"""Findings that are no older serve several askers: a look at thousands of streams costs much."""
CONSUMERS_PER_STEP: Final = 64

log = get_logger("monitor")


class Findings:
    """The findings of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._own: Shared[tuple[ServerFacts, Report]] = Shared(node.clock, KEPT_SECONDS, self._made)
        self._of_all: Shared[Json] = Shared(node.clock, KEPT_SECONDS, self._of_cluster)

    async def answer(self, *, cluster: bool) -> Json:
        """Returns `report.Report` as JSON, of this server or of all, with the servers that were asked. Raises
        BusyError."""
        if not cluster:
            _, report = await self._own.get()
            return {"servers": [self._node.server.name], **report.to_dict()}
        return await self._of_all.get()

    async def serve(self, _peer: str, _payload: bytes) -> bytes:
        """Answers FINDINGS_METHOD. Raises BusyError."""
        facts, report = await self._own.get()
        return json.dumps({"facts": facts.to_dict(), "report": report.to_merge()}).encode()

    # ---- this server

    async def _made(self) -> tuple[ServerFacts, Report]:
        return await self._node.server.budget.run(ASKER, self._look())

    def _look(self) -> Steps[tuple[ServerFacts, Report]]:
        node, found = self._node, Collector()
        facts = server_facts(node)
        found.add(look_at_server(facts))
        found.add(look_at_config(facts.name, facts.config))
        engine = engine_of(node)
        if engine is not None:
            for assignment, reason in list(engine.broken.values()):
                found.add(look_at_stream(broken_facts(engine, assignment, reason)))
            for refusal, seconds in engine.refusals.recent() if engine.refusals is not None else ():
                found.add(look_at_refusal(refusal_facts(engine, refusal, seconds)))
            for replica in list(engine.replicas.values()):
                yield from self._stream(engine, replica, found)
        return facts, found.report()

    def _stream(self, engine: JetStream, replica: StreamReplica, found: Collector) -> Iterator[None]:
        if engine.replicas.get(replica.assignment.gid) is not replica:
            return  # gone since the walk began
        try:
            found.add(look_at_stream(stream_facts(engine, replica)))
            yield
            now = engine.runtime.clock.time_ns()
            for place, cid in enumerate(list(replica.consumers.running), 1):
                state = replica.consumers.table.by_cid.get(cid)
                facts = None if state is None else consumer_facts(replica, state, engine.network.name, now)
                if facts is not None:
                    found.add(look_at_consumer(facts))
                if facts is not None or not place % CONSUMERS_PER_STEP:
                    yield
        except DamagedError as error:
            replica.report_damage(error)  # the next look finds it damaged

    # ---- all servers

    async def _of_cluster(self) -> Json:
        facts, own = await self._own.get()
        mesh = mesh_of(self._node)
        peers = sorted(mesh.peers) if mesh is not None else []
        told = await asyncio.gather(*(self._ask(peer) for peer in peers))
        servers, reports, unanswered = [facts], {facts.name: own}, []
        for one in told:
            if isinstance(one, Unanswered):
                unanswered.append(one)
            else:
                servers.append(one[0])
                reports[one[0].name] = one[1]
        together = Collector()
        together.add(look_at_cluster(ClusterFacts(facts.name, tuple(servers), tuple(unanswered))))
        for account in await account_facts(self._node):
            together.add(look_at_account(account))
        engine = engine_of(self._node)
        if engine is not None and engine.clustered:
            await self._node.server.budget.run(ASKER, _orphans(engine, servers, together))
        report = merged([*reports.items(), ("", together.report())])
        return {"servers": sorted(reports), "unanswered": [one.name for one in unanswered], **report.to_dict()}

    async def _ask(self, peer: str) -> tuple[ServerFacts, Report] | Unanswered:
        mesh = mesh_of(self._node)
        assert mesh is not None, "it has peers"
        info = mesh.peers.get(peer)
        name = info.name if info is not None else peer
        try:
            answer: Any = json.loads(await mesh.call(peer, FINDINGS_METHOD, b"", ASK_SECONDS))
            return ServerFacts.from_dict(answer["facts"]), Report.from_dict(answer["report"])
        except MeshRefusedError as error:
            unknown = "no such method" in str(error)
            return Unanswered(name, "its version does not know how" if unknown else str(error))
        except MeshError as error:
            return Unanswered(name, str(error))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("findings of another server cannot be read", server=name, error=repr(error))
            return Unanswered(name, "its answer cannot be read")


def _orphans(engine: JetStream, servers: list[ServerFacts], found: Collector) -> Steps[None]:
    """Adds the streams of which nobody tells, because the servers of all their replicas are absent, or gone."""
    machine, network = engine.meta.machine, engine.network
    linked = {name for server in servers for name in (server.name, *server.linked)}
    there = {network.me, *network.mesh.peers}
    gone = {peer for peer in machine.nodes if peer not in there and node_name(engine, peer) not in linked}
    for peer in sorted(gone):
        for place, assignment in enumerate(machine.assigned_to(peer), 1):
            if gone.issuperset(assignment.peers) and peer == min(assignment.peers):
                servers_of = tuple(node_name(engine, one) for one in assignment.peers)
                found.add(look_at_orphan(OrphanFacts(assignment.account, assignment.name, servers_of)))
            if not place % ROWS_PER_STEP:
                yield
    for place, gid in enumerate(sorted(untold_streams(engine).lost), 1):
        if (lost := machine.by_gid(gid)) is not None:
            found.add(look_at_lost(lost.account, lost.name))
        if not place % ROWS_PER_STEP:
            yield


async def serve_findings(node: Node, peer: str, payload: bytes) -> bytes:
    """Answers FINDINGS_METHOD on a node of which nobody may have asked for a page yet. Raises BusyError."""
    return await part_of(node, Findings).serve(peer, payload)
