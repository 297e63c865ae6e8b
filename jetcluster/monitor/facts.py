"""The facts of a running server for the rules of `jetcluster.doctor`: itself, its configuration, streams, consumers."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from jetcluster import __version__, native
from jetcluster.config.options import Options
from jetcluster.config.tls_options import TlsOptions
from jetcluster.doctor.facts import (
    Absent,
    Certificate,
    ConfigFacts,
    GuardFacts,
    RefusalFacts,
    Remote,
    ReplicaFacts,
    ServerFacts,
    StateFetch,
    StreamFacts,
    UpstreamFacts,
)
from jetcluster.model.machines import machine_of
from jetcluster.model.times import parse_rfc3339
from jetcluster.monitor.jsz import consumer_count, jetstream_stats, node_name, stream_leader
from jetcluster.monitor.varz import certificate_end
from jetcluster.monitor.view import apis_of, disconnected_remotes, engine_of
from jetcluster.node.node import Node

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.cluster.refusals import Refusal
    from jetcluster.meta.state import Assignment
    from jetcluster.replica.stream_replica import StreamReplica

LOCAL = ("127.", "::1", "localhost")
"""Beginnings of hosts that only this machine reaches."""
REFUSED_SECONDS = 60.0
"""Age of a refusal up to which the other end still tries: servers dial each other every few seconds."""
MAX_ACCOUNTS = 1000
"""Accounts whose waiting requests are counted."""


def server_facts(node: Node) -> ServerFacts:
    """Returns the facts of a server as of now."""
    options, server, engine = node.options, node.server, engine_of(node)
    watch, now_ns, reload = server.crowd.watch, node.clock.time_ns(), node.refused_reload
    facts = ServerFacts(
        server.name,
        version=__version__,
        loops=native.described,
        compiled=native.described == native.COMPILED,
        machine=machine_of(options.server_tags, server.name),
        uptime=(now_ns - server.start_ns) / 1e9,
        jetstream=engine is not None,
        clustered=options.is_clustered,
        lame_duck=server.lame_duck,
        memory=node.page_counters.usage.memory_bytes(),
        memory_limit=node.platform.physical_memory(),
        descriptors=watch.used() if watch is not None else 0,
        descriptor_limit=watch.limit if watch is not None else 0,
        leaf_remotes=_remotes(node),
        certificates=certificates_of(node, now_ns),
        refused_reload=(reload.reason, (now_ns - reload.at_ns) / 1e9) if reload is not None else None,
        config=config_facts(options, login=server.state.authenticator.required),
    )
    return facts if engine is None else _with_jetstream(facts, node, engine)


def _with_jetstream(facts: ServerFacts, node: Node, engine: JetStream) -> ServerFacts:
    raft, now = engine.network.raft, node.clock.monotonic()
    jetstream = node.jetstream
    assert jetstream is not None and jetstream.capacity is not None
    used = jetstream_stats(node)
    facts = replace(
        facts,
        level=raft.levels.own,
        troubles=tuple((one.aspect.value, one.reason, now - one.since) for one in raft.health.troubles.values()),
        removed=engine.joining.removed,
        skew=raft.health.time.skew,
        disk_free=raft.journal.free,
        disk_size=raft.journal.disk_size,
        storage=used["storage"],
        max_storage=jetstream.capacity.max_storage,
        reserved_storage=used["reserved_storage"],
        stored_memory=used["memory"],
        max_memory=jetstream.capacity.max_memory,
        reserved_memory=used["reserved_memory"],
        leads=sum(bool(replica.leading) for replica in engine.replicas.values()),
        replicated=sum(replica.assignment.replicas > 1 for replica in engine.replicas.values()),
        journal_losses=len(raft.losses),
        unassigned=len(engine.unassigned),
        api_waiting=sum(api.waiting()[0] for api in islice(apis_of(node).values(), MAX_ACCOUNTS)),
    )
    group = engine.meta.group
    if not engine.clustered or group is None:
        return facts
    network, machine = engine.network, engine.meta.machine
    others = sorted(group.members - {network.me})
    absent = [peer for peer in others if peer not in network.mesh.peers]
    left_out = [peer for peer in machine.left_out if peer in machine.nodes]
    refused = network.mesh.refused_members
    return replace(
        facts,
        peer=network.me,
        refused=group.refused,
        meta_leader=node_name(engine, group.leader) if group.leader is not None else "",
        members=tuple(node_name(engine, peer) for peer in sorted([network.me, *others])),
        quorum=len(group.peers) // 2 + 1,
        linked=tuple(node_name(engine, peer) for peer in others if peer in network.mesh.peers),
        absent=tuple(Absent(node_name(engine, peer), _silent(engine, peer, now)) for peer in absent),
        refused_peers=tuple(
            (node_name(engine, peer), refused[peer][0])
            for peer in absent
            if peer in refused and now - refused[peer][1] < REFUSED_SECONDS
        ),
        left_out=tuple(node_name(engine, peer) for peer in left_out),
    )


def _silent(engine: JetStream, peer: str, now: float) -> float:
    seen = engine.network.raft.peers.last_seen(peer)
    return max(now - seen, 0.0) if seen else -1.0


def _remotes(node: Node) -> tuple[Remote, ...]:
    cut = {id(remote) for remote in disconnected_remotes(node)}
    return tuple(
        Remote(remote.account, ", ".join(url.split("://", 1)[-1].rpartition("@")[2] for url in remote.urls),
               id(remote) not in cut)
        for remote in (node.leafnodes.state.options.remotes if node.leafnodes is not None else ())
        if not remote.disabled
    )  # fmt: skip


def certificates_of(node: Node, now_ns: int) -> tuple[Certificate, ...]:
    """Returns the ends of the certificates that the node's ports show."""
    options = node.options
    found = []
    ports: tuple[tuple[str, TlsOptions | None], ...] = (
        ("clients", options.tls), ("cluster", options.cluster.tls), ("leafnodes", options.leafnodes.tls),
        ("websocket", options.websocket.tls),
    )  # fmt: skip
    for port, tls in ports:
        if end := certificate_end(tls, node.config_load_ns):
            found.append(Certificate(port, (parse_rfc3339(end) - now_ns) / 1e9))
    return tuple(found)


def config_facts(options: Options, *, login: bool) -> ConfigFacts:
    """Returns the facts of a configuration, in force or just read. `login`: `Authenticator.required`."""
    cluster, jetstream = options.cluster, options.jetstream
    system = (options.accounts or {}).get(options.system_account_name)
    return ConfigFacts(
        open_to=_open(options.host) if options.port else "",
        users=(login or options.operator.is_on) and not options.no_auth_user and not options.global_is_open,
        tls=options.tls is not None,
        clustered=options.is_clustered,
        cluster_open_to=_open(cluster.host),
        routes_secret=bool(cluster.authorization.user),
        routes_tls=cluster.tls is not None,
        trusted_network=cluster.trusted_network,
        system_user=options.operator.is_on or bool(system is not None and system.users),
        http_open_to=_open(options.http_host or options.host) if options.http_port else "",
        console=options.console,
        temporary_store=_is_temporary(jetstream.store_dir),
        jetstream=jetstream.enabled,
        sync_interval=jetstream.sync_interval or 0.0,
        inert=tuple(options.inert),
    )


def _open(host: str) -> str:
    """Returns the host, "" for one that only this machine reaches."""
    return "" if host.startswith(LOCAL) else host


def _is_temporary(folder: str) -> bool:
    return not folder or os.path.commonpath([tempfile.gettempdir(), os.path.abspath(folder)]) == tempfile.gettempdir()  # noqa: PTH100


def stream_facts(engine: JetStream, replica: StreamReplica) -> StreamFacts:
    """Returns a stream, as its replica here sees it. Raises DamagedError."""
    assignment, group, network = replica.assignment, replica.group, engine.network
    state, rules = replica.store.state, assignment.config
    voters = tuple(group.peers)
    leading = replica.leading
    pulls = {pull.gid: (pull, seconds) for pull, seconds in network.catchup.progress()} if replica.installing else {}
    catch_up = None
    if assignment.gid in pulls:
        pull, seconds = pulls[assignment.gid]
        catch_up = StateFetch(pull.compared, pull.size, seconds, node_name(engine, pull.peer), pull.stalled)
    return StreamFacts(
        network.name, assignment.account, assignment.name,
        clustered=engine.clustered,
        leader=stream_leader(engine, replica),
        leading=leading,
        wanted=assignment.replicas,
        present=sum(peer == network.me or peer in network.mesh.peers for peer in voters),
        quorum=len(voters) // 2 + 1,
        failed=replica.failed,
        damaged=replica.damaged,
        rejected=replica.rejected,
        disputed=replica.disputed,
        undecided=assignment.gid in engine.drift.votes.undecided,
        refused=group.refused,
        unapplied=max(group.commit_index - group.applied_index, 0),
        catch_up=catch_up,
        replicas=_replicas(engine, replica, voters) if leading and engine.clustered else (),
        machines=_machines(engine, voters) if leading and len(voters) > 1 else (),
        messages=state.messages,
        bytes=state.bytes,
        max_messages=int(rules.get("max_msgs", -1)),
        max_bytes=int(rules.get("max_bytes", -1)),
        discard_new=rules.get("discard") == "new",
        consumers=consumer_count(replica),
        max_consumers=int(rules.get("max_consumers", -1)),
        retention=str(rules.get("retention", "limits")),
        upstreams=_upstreams(replica) if leading else (),
        guard=_guard(replica),
    )  # fmt: skip


def broken_facts(engine: JetStream, assignment: Assignment, reason: str) -> StreamFacts:
    """Returns a stream whose replica could not be started here."""
    return StreamFacts(engine.network.name, assignment.account, assignment.name, broken=reason)


def refusal_facts(engine: JetStream, refusal: Refusal, seconds: float) -> RefusalFacts:
    """Returns a stream that this server has refused as the meta leader, `seconds` ago."""
    error = refusal.error
    return RefusalFacts(
        engine.network.name, refusal.account, refusal.stream, error.err_code, error.description, refusal.why, seconds
    )


def _guard(replica: StreamReplica) -> GuardFacts | None:
    guard = replica.machine.guard
    if guard.rules.guard is None:
        return None
    refuses = guard.refuses_now(replica.runtime.clock.time_ns()) or ""
    return GuardFacts(guard.rules.guard.consumer, guard.floor is not None, guard.waiting, refuses)


def _replicas(engine: JetStream, replica: StreamReplica, voters: tuple[str, ...]) -> tuple[ReplicaFacts, ...]:
    peers = engine.network.raft.peers
    return tuple(
        ReplicaFacts(
            info.name, not info.offline, info.peer in voters, info.lag,
            info.active_ns / 1e9 if info.active_ns else -1.0, peers.is_well(info.peer),
        )
        for info in replica.infos.others()
    )  # fmt: skip


def _machines(engine: JetStream, voters: tuple[str, ...]) -> tuple[str, ...]:
    nodes = engine.known.machine.nodes
    return tuple(machine_of(nodes[peer].tags, peer) if peer in nodes else peer for peer in voters)


def _upstreams(replica: StreamReplica) -> tuple[UpstreamFacts, ...]:
    found = replica.mirrors.links.info()
    mirror = "mirror" in found
    return tuple(
        UpstreamFacts(
            one["name"], one["lag"], one["active"] / 1e9 if one["active"] >= 0 else -1.0,
            one.get("error", {}).get("description", ""), mirror,
        )
        for one in ([found["mirror"]] if mirror else found.get("sources", ()))
    )  # fmt: skip
