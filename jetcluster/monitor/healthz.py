"""/healthz: whether a load balancer may send clients here, and whether this node has caught up. Texts and status codes
are nats-server's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from jetcluster.monitor.source import Health, Json, Query, flag
from jetcluster.monitor.view import apis_of, disconnected_remotes, engine_of
from jetcluster.node.node import Node
from jetcluster.records import dataclass

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.config.options import LeafRemoteOptions
    from jetcluster.replica.stream_replica import StreamReplica

MAX_LAG_ENTRIES = 1000
"""Committed entries that a current replica may still have to apply: under load there are always some."""
UNWELL = "HEALTH"
"""Type of a problem that nats-server does not know: `health.node_health`."""
MAX_NAMED_RISKS = 10
"""Groups that the answer names; it counts the others."""


@dataclass(slots=True)
class Problem:
    """One reason why the server is not healthy, as /healthz?details shows it."""

    type: str
    error: str
    account: str = ""
    stream: str = ""
    status: int = 503
    consumer: str = ""

    def detail(self) -> Json:
        named = {"account": self.account, "stream": self.stream, "consumer": self.consumer}
        return {"type": self.type, **{key: value for key, value in named.items() if value}, "error": self.error}


def healthz(node: Node, query: Query) -> Health:
    """Raises QueryError."""
    details = flag(query, "details")
    enabled_only = flag(query, "js-enabled-only") or flag(query, "js-enabled")
    server_only, meta_only = flag(query, "js-server-only"), flag(query, "js-meta-only")
    account, stream, consumer = (query.get(name, "") for name in ("account", "stream", "consumer"))
    if not account and stream:
        return _bad_question('"account" must not be empty when checking stream health', details=details)
    if not stream and consumer:
        return _bad_question('"stream" must not be empty when checking consumer health', details=details)
    remotes = flag(query, "leaf-remotes-connected")
    problems = _problems(node, enabled_only, server_only, meta_only, remotes, account, stream, consumer)
    if flag(query, "startup"):
        # Ours: a server with a full disk or a wrong clock still votes and answers reads, so it must not be killed.
        problems = (problem for problem in problems if problem.type != UNWELL)
    if details:
        found = list(problems)
        if not found:
            return Health(200, {"status": "ok"})
        return Health(max(p.status for p in found), {"status": "error", "errors": [p.detail() for p in found]})
    first = next(problems, None)
    if first is None:
        return Health(200, {"status": "ok"})
    return Health(first.status, {"status": "unavailable", "error": first.error})


async def restart_health(node: Node) -> Health:
    """Answers `safe-to-restart=true` (ours): 200 when every group in which this node votes goes on without it.
    Groups with their only replica here are not counted: they are away during any restart."""
    if not node.options.jetstream.enabled:
        return Health(200, {"status": "ok", "groups": 0})
    engine = engine_of(node)
    if engine is None or not engine.known.current:
        return Health(503, {"status": "unavailable", "error": "JetStream is not up yet"})
    safety = await engine.restart_safety.check()
    if not safety.risks:
        return Health(200, {"status": "ok", "groups": safety.groups})
    return Health(
        503,
        {
            "status": "unavailable",
            "error": f"{len(safety.risks)} of {safety.groups} groups would lose their majority",
            "groups": safety.groups,
            "unsafe": len(safety.risks),
            "first": [risk.text for risk in safety.risks[:MAX_NAMED_RISKS]],
        },
    )


def _bad_question(text: str, *, details: bool) -> Health:
    told: Json = {"errors": [{"type": "BAD_REQUEST", "error": text}]} if details else {"error": text}
    return Health(400, {"status": "error", **told})


def _problems(
    node: Node,
    enabled_only: bool,
    server_only: bool,
    meta_only: bool,
    remotes: bool,
    account: str,
    stream: str,
    consumer: str,
) -> Iterator[Problem]:
    if node.server.lame_duck and not enabled_only:
        # Ours, not nats-server's: a load balancer must send new clients elsewhere. A liveness probe must not kill it.
        yield Problem("CONNECTION", "server is in lame duck mode")
    if remotes:
        yield from sorted((_unlinked(remote) for remote in disconnected_remotes(node)), key=lambda one: one.error)
    if not node.options.jetstream.enabled:
        return
    engine = engine_of(node)
    if engine is None:
        yield Problem("JETSTREAM", "JetStream not enabled")
        return
    if enabled_only:
        return
    health = engine.network.raft.health
    if not health.well and not ((server_only or meta_only) and _answers(engine)):
        # For a readiness probe, a node that leads nothing but answers reads is ready.
        yield Problem(UNWELL, "this server is not well: " + "; ".join(health.reasons))
    waiting = _own_problem(engine)
    if server_only:
        if waiting is not None:
            yield waiting
        return  # JetStream runs here; the leader of the meta group does not matter
    waiting = waiting or _meta_problem(engine)
    if waiting is not None:
        yield waiting
        return
    if meta_only:
        return
    if account and account not in apis_of(node):
        yield Problem("ACCOUNT", f'JetStream account "{account}" not found', account, status=404)
        return
    if stream and engine.assignment(account, stream) is None:
        yield Problem("STREAM", f'JetStream stream "{stream}" not found on account "{account}"', account, stream, 404)
        return
    if consumer and _lacks_consumer(engine, account, stream, consumer):
        text = f'JetStream consumer "{consumer}" not found for stream "{stream}" on account "{account}"'
        yield Problem("CONSUMER", text, account, stream, 404, consumer)
        return
    for replica in engine.replicas.values():
        assignment = replica.assignment
        if (not account or assignment.account == account) and (not stream or assignment.name == stream):
            error = _replica_error(replica)
            if error:
                text = f"JetStream stream '{assignment.account} > {assignment.name}' {error}"
                yield Problem("STREAM", text, assignment.account, assignment.name)
    yield from _broken(engine, account, stream)


def _unlinked(remote: LeafRemoteOptions) -> Problem:
    urls = " ".join(f'"{_without_password(url)}"' for url in remote.urls)
    return Problem("CONNECTION", f'leafnode remote for account "{remote.account}" (urls=[{urls}]) is not connected')


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return url if parts.password is None else url.replace(f":{parts.password}@", ":xxxxx@", 1)


def _answers(engine: JetStream) -> bool:
    """Reports whether all replicas here answer reads (`ReplicaState.may_answer`). Trouble on every node, or on the only
    one, stops no reads; a probe that failed for it would leave clients without any node."""
    raft, group = engine.network.raft, engine.meta.group
    return raft.health.may_answer or (group is not None and raft.peers.may_lead(group.peers))


def _lacks_consumer(engine: JetStream, account: str, stream: str, consumer: str) -> bool:
    """Consumers are known where the stream has a replica."""
    assignment = engine.assignment(account, stream)
    replica = None if assignment is None else engine.replicas.get(assignment.gid)
    return replica is not None and consumer not in replica.consumers.table.by_name


def _broken(engine: JetStream, account: str, stream: str) -> Iterator[Problem]:
    """Yields the streams whose replica could not be started here."""
    for assignment, reason in engine.broken.values():
        if (not account or assignment.account == account) and (not stream or assignment.name == stream):
            text = f"JetStream stream '{assignment.account} > {assignment.name}' cannot be started: {reason}"
            yield Problem("STREAM", text, assignment.account, assignment.name)


def _own_problem(engine: JetStream) -> Problem | None:
    """The problem that keeps this server out of the meta group, whichever server leads that."""
    if engine.joining.removed:
        return Problem("JETSTREAM", engine.joining.removed)
    group = engine.meta.group
    if group is not None and group.refused:
        return Problem("JETSTREAM", f"JetStream does not follow the meta leader: {group.refused}")
    return None


def _meta_problem(engine: JetStream) -> Problem | None:
    group = engine.meta.group
    if group is None or group.leader is None:
        return Problem("JETSTREAM", "JetStream has not established contact with a meta leader")
    if group.commit_index - group.applied_index > MAX_LAG_ENTRIES:
        return Problem("JETSTREAM", "JetStream is not current with the meta leader")
    if engine.network.me not in engine.known.machine.nodes:
        # Ours: who waits for a new server, to take another one's place, waits until it gets replicas.
        return Problem("JETSTREAM", "the meta leader has not registered this server yet: it gets no replicas")
    return None


def _replica_error(replica: StreamReplica) -> str:
    if replica.failed:
        return f"is stopped: {replica.failed}"
    if replica.damaged:
        return f"has damaged data: {replica.damaged}"
    if replica.rejected:
        return f"is not to be trusted: {replica.rejected}"
    if replica.disputed:
        return f"may be wrong: {replica.disputed}"
    if replica.installing:
        return "is not current"
    group = replica.group
    if group.refused:
        return f"is not the one that others have: {group.refused}"
    if group.leader is None:
        return "has no leader"
    return "is not current" if group.commit_index - group.applied_index > MAX_LAG_ENTRIES else ""
