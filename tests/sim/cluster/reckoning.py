"""The judge of what servers count, know of each other and tell, once all is calm: it is what is there.

A number from which nothing is taken away, a table with somebody who has gone, a request that waits for ever, an answer
about others that nobody compares: none of it is in a store, and no client notices it soon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from jetcluster.monitor.view import apis_of, mesh_of
from jetcluster.raft.api import Role
from jetcluster.server.accounts.subscription import InternalSubscription
from jetcluster.store.blocks import cache_of
from testkit.sim.deployment import Deployment
from tests.sim.cluster.invariants import jetstream_of
from tests.sim.cluster.owner_views import owners

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.node.node import Node
    from jetcluster.raft.core.group import Group
    from jetcluster.replica.stream_replica import StreamReplica

API = b"$JS.API."
MAX_TOKENS = 64
"""Tokens of a subject that other servers are told of."""


def wrong(deployment: Deployment) -> Iterator[str]:
    """Nothing, where all is right. What is under way may be so for a moment: only what stays is a fault."""
    yield from of_others(deployment)
    for name, machine in deployment.machines.items():
        jetstream = jetstream_of(machine)
        if jetstream is not None:
            damaged = bool(machine.disk.incidents)
            yield from (f"{name}: {text}" for text in _server(machine.node, jetstream, damaged=damaged))


def of_others(deployment: Deployment) -> Iterator[str]:
    """The same of what servers know of each other, also where some are away."""
    nodes = {name: machine.node for name, machine in deployment.machines.items() if machine.ready}
    for name, node in nodes.items():
        yield from (f"{name}: {text}" for text in (*_others(node, nodes), *_asked(node)))


def _server(node: Node, jetstream: JetStream, *, damaged: bool) -> Iterator[str]:
    yield from _quota(jetstream)
    yield from _requests(node, jetstream)
    yield from _watches(node)
    yield from _cache(jetstream)
    yield from _idle(jetstream)
    if jetstream.unassigned and not damaged:  # it keeps what it cannot place, and tells the operator (JC120)
        yield f"data of streams {jetstream.unassigned} is here, which nobody knows"
    known = jetstream.meta.machine
    names = {peer: one.name for peer, one in known.nodes.items()}
    for group in jetstream.network.raft.groups.values():
        yield from _group(group)
    for replica in jetstream.replicas.values():
        told = [*_owned(replica), *owners(replica), *(_told(replica, names) if replica.leading else ())]
        yield from (f"{replica.assignment.name}: {text}" for text in told)
    for assignment in known.all_assignments():
        leader = jetstream.network.leaders.get(assignment.gid)
        if leader is not None and leader not in assignment.peers:
            yield f"{assignment.name} is said to be led by {names.get(leader)}, which has no replica"


# ---- bytes and requests


def _quota(jetstream: JetStream) -> Iterator[str]:
    """Bytes in use: those of the replicas that are here, with what was granted to them in advance."""
    quota = jetstream.services.settings.account_quota
    shares: dict[int, Any] = attrgetter("_shares")(quota)
    if gone := shares.keys() - jetstream.replicas.keys():
        yield f"the bytes of groups {sorted(gone)} are counted, which are not here"
    held: Counter[bool] = Counter()
    led: Counter[Any] = Counter()
    for share in shares.values():
        held[share.key[1]] += share.held
        led[share.key] += share.led
    if +held != +quota.held or -quota.held:
        yield f"the replicas here have {dict(+held)} bytes, and {dict(quota.held)} are counted"
    if +led != +quota.led or -quota.led:
        yield f"the streams led here have {dict(+led)} bytes, and {dict(quota.led)} are counted"


def _watches(node: Node) -> Iterator[str]:
    """Watches of subjects are found by what is before their last token: there is nothing else to be found."""
    for router in node.server.accounts:
        for watches in filter(None, (attrgetter("local._watches")(router), attrgetter("local._awaited")(router))):
            notes, heads = attrgetter("_notes", "_heads")(watches)
            kept = {subject for subjects in heads.values() for subject in subjects}
            if gone := kept - notes.keys():
                yield f"{len(gone)} subjects of {router.account} are kept, such as {min(gone)!r}, which nobody watches"


def _requests(node: Node, jetstream: JetStream) -> Iterator[str]:
    """Where nothing waits, nothing is counted as waiting."""
    for account, api in apis_of(node).items():
        queued: int = attrgetter("_queued_bytes")(api)
        if queued and not api.waiting()[0]:
            yield f"no request of {account} waits for the API, and {queued} of their bytes are counted"
        room = attrgetter("_context.restore_room")(api)
        if room.restores or room.held:
            yield f"nobody restores a stream, and {room.restores} who do are counted, with {room.held} bytes"
        if aside := {name: size for name, size in room.aside.items() if size}:
            yield f"nobody restores a stream, and bytes of {aside} are counted that are set aside"
        under_way = attrgetter("gets._streams")(api).values()
        held = sum(len(stream.round) + len(stream.next) for stream in under_way)
        if held != api.gets.waiting:
            yield f"{held} reads of {account} wait for their leader, and {api.gets.waiting} are counted"
    settings, replicas = jetstream.services.settings, jetstream.replicas.values()
    stages = [replica.ingest.batches.stage for replica in replicas]
    staged = sum(batch.size for stage in stages for batch in attrgetter("_open")(stage).values())
    atomic, fast = sum(map(len, stages)), sum(len(replica.ingest.fast) for replica in replicas)
    quota = settings.batch_quota
    if (atomic, fast, staged) != (quota.open, quota.fast_open, quota.staged_bytes):
        counted = f"{quota.open}, {quota.fast_open}, {quota.staged_bytes}"
        yield f"{atomic} atomic and {fast} fast batches with {staged} bytes are open, and {counted} are counted"
    reads = [queue for replica in replicas for queue in replica.reads.queues]
    if settings.read_memory.used and not any(reads):
        yield f"no read waits, and {settings.read_memory.used} bytes of them are counted"
    for replica in replicas:
        for link in replica.mirrors.links.by_key.values():
            inflow = attrgetter("_inflow")(link)
            if inflow is not None and not inflow.settled:
                after = attrgetter("_after")(inflow) + inflow.done  # others may wait at the next look
                yield f"{replica.assignment.name}: messages of {link.upstream.name} after {after} wait for ever"
        ingest = replica.ingest
        if not ingest.proposed and (ingest.pending_messages or ingest.pending_bytes):
            pending = f"{ingest.pending_messages} with {ingest.pending_bytes} bytes"
            yield f"{replica.assignment.name}: no message is proposed, and {pending} are counted"


def _idle(jetstream: JetStream) -> Iterator[str]:
    """Nothing waits for an answer or for the disk; that something does for a moment is as it should be."""
    raft, mesh = jetstream.network.raft, jetstream.network.mesh
    for number, (peer, _) in attrgetter("_rpc._waiting")(mesh).items():
        yield f"call {number} to {peer} waits"
    for peer, running in attrgetter("_rpc._running")(mesh).items():
        if over := sum(task.done() for task in running):
            yield f"{over} requests of {peer} have been answered, and count as under way"
    for gid, waiters in attrgetter("_waiters")(jetstream.network.leaders).items():
        yield f"{len(waiters.futures)} wait for a leader of group {gid}"
    if size := raft.journal.queued_bytes:
        yield f"{size} bytes wait for the journal"
    if jetstream.meta.leading and (moves := attrgetter("administration._moving")(jetstream)):
        yield f"moves of groups {sorted(moves)} are counted, and nothing moves"
    early = attrgetter("_early")(raft)
    kept = sum(len(frame) for frames in early.kept.values() for _, _, frame in frames)
    if kept != early.bytes:
        yield f"{kept} bytes of frames came early, and {early.bytes} are counted"
    for gid, group in raft.groups.items():
        if frames := len(group.held.frames):
            yield f"{frames} frames of group {gid} wait for the disk"
    for replica in jetstream.replicas.values():
        if indexes := list(attrgetter("_waiting")(replica.proposals)):
            yield f"{replica.assignment.name}: requests wait for commands {indexes}"
        if promised := attrgetter("_promised")(replica.consumers.policy):
            yield f"{replica.assignment.name}: consumers are promised to {dict(promised)}"


def _cache(jetstream: JetStream) -> Iterator[str]:
    """Check the cache of blocks: all are of messages that are there."""
    replicas = jetstream.replicas
    cache = cache_of(jetstream.services.commits.kv)
    held = sum(size for _, size in cache.batches.values())
    if held != (counted := attrgetter("_bytes")(cache)):
        yield f"{held} bytes of blocks are kept, and {counted} are counted"
    for gid, first in cache.batches:
        blocks = replicas[gid].store.blocks if gid in replicas else None
        if blocks is None or (blocks.containing(first) < 0 and first not in blocks.firsts):
            yield f"a block of group {gid} at {first} is kept that has gone"


def _group(group: Group) -> Iterator[str]:
    where = f"group {group.gid}"
    if group.role is Role.LEADER and group.applied_index == group.last_index and group.uncommitted:
        yield f"{where}: everything is applied, and {group.uncommitted} bytes count as proposed"
    for peer, flow in group.flows.items():
        out = sum(size for _, size in flow.out)
        if out != flow.bytes_out:
            yield f"{where}: {out} bytes are on the way to {peer}, and {flow.bytes_out} are counted"


# ---- what is told


def _told(replica: StreamReplica, names: dict[str, str]) -> Iterator[str]:
    """The `cluster` of STREAM.INFO and of each CONSUMER.INFO, when all are well and have everything."""
    yield from _links(replica)
    found = replica.infos.cluster_object()
    if not found:
        return
    others = sorted(names[peer] for peer in replica.assignment.peers if peer != replica.network.me)
    told = found.get("replicas") or []
    if found.get("leader") != replica.network.name or sorted(one["name"] for one in told) != others:
        yield f"it is led here and has replicas on {others}, and INFO says {found}"
    for one in told:
        if not one["current"] or one.get("offline") or one.get("lag"):
            yield f"{one['name']} has everything, and INFO says {_still(one)}"
    for state in replica.table.by_cid.values():
        cluster = replica.infos.consumer_cluster(state, replica.infos.all()) or {}
        if cluster and cluster.get("leader") != names.get(state.owner):
            yield f"{state.name} is owned by {names.get(state.owner)}, and INFO says {cluster.get('leader')}"


def _links(replica: StreamReplica) -> Iterator[str]:
    """Mirrors and sources have all there is."""
    for link in replica.mirrors.links.by_key.values():
        if link.live and link.error is None and link.lag:
            yield f"its link to {link.upstream.name} says that it lags by {link.lag}"


def _still(told: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in told.items() if key != "active"}


def _owned(replica: StreamReplica) -> Iterator[str]:
    """Each consumer has its owner."""
    me, host = replica.network.me, replica.consumers
    own = sorted(state.cid for state in replica.table.by_cid.values() if state.owner == me)
    if own != sorted(host.running):
        yield f"consumers {own} are owned here, and {sorted(host.running)} run"
    if len(own) != host.owns:
        yield f"{len(own)} consumers are owned here, and {host.owns} are counted"


# ---- what is known of others


def _others(node: Node, nodes: dict[str, Node]) -> Iterator[str]:
    """Check links: who is linked is known, and what it listens to, and nothing else."""
    mesh = mesh_of(node)
    if mesh is None:
        return
    if mesh.peers.keys() != mesh.links.keys():
        yield f"it is linked to {sorted(mesh.links)}, and knows {sorted(mesh.peers)}"
    urls = tuple(sorted({info.client_url for info in mesh.peers.values()} - {""}))
    if mesh.urls["client"] != urls:
        yield f"clients can go to {urls}, and are told of {mesh.urls['client']}"
    by_peer = {other.jetstream.mesh.me.peer_id: other for other in nodes.values() if mesh_of(other) is not None}
    heard = heard_by(node)
    linked = {link: by_peer.get(link.peer_id) for link in mesh.links.values()}
    if gone := [peer.peer_id for peer, wants in heard.items() if wants and peer not in {*linked, *_leaves(node)}]:
        yield f"it sends messages to {gone}, which have gone"
    for link, other in linked.items():
        if other is not None:
            wanted = {one for one in other.server.accounts.interests() if one[1].count(b".") < MAX_TOKENS}
            known = heard.get(link, set())
            if wanted != known:
                yield (
                    f"of {other.options.server_name} it knows {sorted(map(str, known - wanted))[:3]} too much, and not "
                    f"{sorted(map(str, wanted - known))[:3]}"
                )


def _asked(node: Node) -> Iterator[str]:
    """Check who takes requests: a server answers each one once, or hands it over to one that can."""
    mesh = mesh_of(node)
    relays = node.jetstream is not None and node.jetstream.jetstream is None
    helped = mesh is not None and any(info.jetstream for info in mesh.peers.values())
    for router in node.server.accounts:
        own = Counter(
            (one.subject, one.queue)
            for one in router.index
            if isinstance(one, InternalSubscription) and one.subject.startswith(API)
        )
        if twice := [subject for (subject, _), times in own.items() if times > 1]:
            yield f"requests to {twice[0]!r} of account {router.account} are taken {own.most_common(1)[0][1]} times"
        if own and relays and not helped:
            yield f"it takes {len(own)} kinds of requests of account {router.account}, and knows nobody who answers"


def _leaves(node: Node) -> list[Any]:
    return [] if node.leafnodes is None else list(node.leafnodes.links)


def heard_by(node: Node) -> dict[Any, set[tuple[str, bytes, bytes | None, int]]]:
    """By link, what is wanted at its other end."""
    found: dict[Any, set[tuple[str, bytes, bytes | None, int]]] = {}
    accounts = node.server.accounts
    for router in accounts:
        for peer, wants in attrgetter("_wants")(router.peers).items():
            rows = {(router.account, *key, interest.count) for key, interest in wants.items()}
            found.setdefault(peer, set()).update(rows)
    for account, of in attrgetter("_heard")(accounts).items():
        for peer, counts in of.items():
            found.setdefault(peer, set()).update((account, *key, count) for key, count in counts.items())
    return found
