"""Tables of what /jsz, /raftz, /healthz and /metrics tell of streams, against the replicas of the server (`pages`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jetcluster.monitor.exposition import Exposition
from jetcluster.monitor.metrics import jetstream_metrics, server_metrics
from jetcluster.monitor.pages import NodeSource

if TYPE_CHECKING:
    from jetcluster.node.node import Node

BEHIND = 1000
"""Entries that a healthy replica may have to apply."""
ALL = "1000000"
NOTICED = 16
"""The part of it by which a server's room must have grown to be told."""
FEW = 2
"""Streams of a page that has some."""
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Json = dict[str, Any]


def engine_of(node: Node) -> Any:
    """`jetcluster.cluster.jetstream.JetStream`, None where it does not run."""
    return None if node.jetstream is None else node.jetstream.jetstream


def ailments(node: Node) -> list[str]:
    """Why this server is not to get new clients, or is not current."""
    found = ["it is going away"] if node.server.lame_duck else []
    engine = engine_of(node)
    if not node.options.jetstream.enabled:
        return found
    if engine is None:
        return [*found, "JetStream does not run"]
    meta = engine.meta.group
    found += [f"it is not well: {reason}" for reason in engine.network.raft.health.reasons]
    if engine.joining.removed:
        found.append("it was removed")
    if meta is None or meta.leader is None:
        return [*found, "the meta group has no leader"]
    if meta.refused:
        found.append("the meta leader is not followed")
    if meta.commit_index - meta.applied_index > BEHIND:
        found.append("the meta group is not current")
    if engine.network.me not in engine.known.machine.nodes:
        found.append("it is not registered")
    for replica in engine.replicas.values():
        found += _ailments(replica)
    return found + [f"{one.name} cannot be started" for one, _ in engine.broken.values()]


def _ailments(replica: Any) -> Iterator[str]:
    group, name = replica.group, replica.assignment.name
    for field in ("failed", "damaged", "rejected", "disputed", "installing"):
        if getattr(replica, field):
            yield f"{name} is {field}"
    if group.refused:
        yield f"{name} is not the others' one"
    if group.leader is None:
        yield f"{name} has no leader"
    if group.commit_index - group.applied_index > BEHIND:
        yield f"{name} is not current"


def same(what: str, found: object, wanted: object) -> Iterator[str]:
    """Says what differs, of tables the fields that do."""
    if found == wanted:
        return
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = [key for key in (*found, *(wanted.keys() - found)) if found.get(key) != wanted.get(key)]
        found, wanted = ({key: one.get(key) for key in keys} for one in (found, wanted))
    yield f"{what}: {found}, and it is {wanted}"


def _of(page: Json, wanted: Json) -> Json:
    return {key: page.get(key) for key in wanted}


def wrong(node: Node) -> Iterator[str]:
    """Nothing, where all is as it is told."""
    engine, source = engine_of(node), NodeSource(node)
    page = source.page("jsz", {"accounts": "1", "streams": "1", "config": "1", "raft": "1", "limit": ALL})
    if engine is None:
        yield from same("a server without JetStream", page.get("disabled"), True)
        return
    replicas = list(engine.replicas.values())
    wanted = _totals(node, engine, replicas)
    yield from same("/jsz", _of(page, wanted), wanted)
    yield from same("JetStream of /varz", _of(source.page("varz", {})["jetstream"]["stats"], _USED), _of(page, _USED))
    details = {one["id"]: one for one in page.get("account_details", ())}
    names = sorted({one.assignment.account for one in replicas} | node.jetstream.apis.keys())  # type: ignore[union-attr]
    yield from same("accounts with JetStream", list(details), names)
    for name in names:
        own = [one for one in replicas if one.assignment.account == name]
        wanted = _used(own)
        yield from same(f"/jsz of {name}", _of(details[name], wanted), wanted)
        shown = {one["name"]: one for one in details[name].get("stream_detail", ())}
        yield from same(f"streams of {name}", list(shown), sorted(one.assignment.name for one in own))
        for replica in own:
            yield from _stream(engine, replica, shown[replica.assignment.name])
    yield from _paged(source, replicas, details)
    yield from _meta(engine, page)
    yield from _groups(node, engine, source, names)
    yield from _metrics(node, engine, source)


_USED: Json = dict.fromkeys(
    ("memory", "storage", "reserved_memory", "reserved_storage", "accounts", "ha_assets", "api")
)


def _used(replicas: list[Any]) -> Json:
    found = {"memory": 0, "storage": 0, "reserved_memory": 0, "reserved_storage": 0}
    for replica in replicas:
        kind = "memory" if replica.assignment.config["storage"] == "memory" else "storage"
        most = replica.assignment.config["max_bytes"]
        found[kind] += replica.store.state.bytes
        found[f"reserved_{kind}"] += most if most > 0 else 0
    return found


def _totals(node: Node, engine: Any, replicas: list[Any]) -> Json:
    apis = node.jetstream.apis if node.jetstream is not None else {}
    consumers = [one for replica in replicas for one in replica.consumers.table.by_cid.values()]
    groups = sum(len(one.group.peers) > 1 for one in replicas)
    wanted: Json = _used(replicas) | {
        "server_id": node.server.server_id,
        "streams": len(replicas),
        "consumers": sum(not one.rules.direct for one in consumers),
        "messages": sum(one.store.state.messages for one in replicas),
        "bytes": sum(one.store.state.bytes for one in replicas),
        "accounts": len(apis),
        "ha_assets": groups + (engine.clustered and engine.meta.group is not None),
        "total": len({one.assignment.account for one in replicas} | apis.keys()),
    }
    led = sum(bool(one.leading) for one in replicas)
    owned = sum(len(one.consumers.running) for one in replicas)
    if engine.clustered:
        wanted |= {"streams_leader": led or None, "consumers_leader": owned or None}
    return wanted


def room(node: Node) -> Iterator[str]:
    """Compares what a server says it has room for with its disk, once nothing has changed there for a while."""
    jetstream, engine = node.jetstream, engine_of(node)
    if jetstream is None or engine is None or jetstream.capacity is None:
        return
    capacity, journal = jetstream.capacity, engine.network.raft.journal
    told = NodeSource(node).page("jsz", {})["config"]
    yield from same("max_storage", told["max_storage"], capacity.max_storage)
    if not capacity.by_disk:
        return
    sharers = 1 if node.options.worker is None else node.options.worker.count
    least, most = journal.free // sharers // 4 * 3, journal.disk_size // 4 * 3
    if not least * NOTICED <= capacity.max_storage * (NOTICED + 1) or capacity.max_storage > most:
        yield f"it says that it has room for {capacity.max_storage}, and that is to be from {least} to {most}"


def _stream(engine: Any, replica: Any, shown: Json) -> Iterator[str]:
    state, name = replica.store.state, replica.assignment.name
    wanted: Json = {
        "messages": state.messages, "bytes": state.bytes, "last_seq": state.last_seq,
        "consumer_count": sum(not one.rules.direct for one in replica.consumers.table.by_cid.values()),
        "num_subjects": state.num_subjects or None, "num_deleted": state.num_deleted or None,
    }  # fmt: skip
    if state.messages:
        wanted["first_seq"] = state.first_seq
    yield from same(f"state of {name}", _of(shown["state"], wanted), wanted)
    yield from same(f"config of {name}", shown["config"], dict(replica.assignment.config))
    cluster = shown.get("cluster") or {}
    leader = engine.network.me if replica.leading else replica.group.leader
    if engine.clustered:
        yield from same(f"leader of {name}", cluster.get("leader"), None if leader is None else _name(engine, leader))
    if replica.leading and engine.clustered:
        others = sorted(_name(engine, peer) for peer in replica.group.peers if peer != engine.network.me)
        told = sorted(one["name"] for one in cluster.get("replicas") or ())
        if not set(others) <= set(told):
            yield f"replicas of {name}: {told}, and it has {others}"
    yield from same(f"group of {name}", "stream_raft_group" in shown, replica.assignment.replicas > 1)


def _name(engine: Any, peer: str) -> str:
    if peer == engine.network.me:
        return str(engine.network.name)
    known = engine.network.mesh.peers.get(peer) or engine.known.machine.nodes.get(peer)
    return known.name if known is not None else f"Server name unknown at this time (peerID: {peer})"


def _paged(source: NodeSource, replicas: list[Any], details: Json) -> Iterator[str]:
    """All streams come once where they are asked for page by page, and all accounts."""
    whole = [(name, one["name"]) for name, detail in details.items() for one in detail.get("stream_detail", ())]
    for start in range(0, len(whole) + 1, max(FEW, len(whole) // 2)):
        size = max(FEW, len(whole) // 2)
        query = {"streams": "1", "stream-offset": str(start), "stream-limit": str(size), "limit": ALL}
        page = source.page("jsz", query)
        found = [(one["id"], stream["name"]) for one in page.get("account_details", ())
                 for stream in one.get("stream_detail", ())]  # fmt: skip
        yield from same(f"{size} streams from {start} on", found, whole[start : start + size])
        yield from same("stream_total", page["stream_total"], len(whole))
    names = list(details)
    for at, name in enumerate(names):
        page = source.page("jsz", {"accounts": "1", "offset": str(at), "limit": "1"})
        yield from same(f"account {at}", [one["id"] for one in page["account_details"]], [name])
    led = source.page("jsz", {"streams": "1", "stream-leader-only": "1", "limit": ALL})
    found = sorted(one["name"] for of in led.get("account_details", ()) for one in of.get("stream_detail", ()))
    yield from same("streams that are led here", found, sorted(one.assignment.name for one in replicas if one.leading))


def _meta(engine: Any, page: Json) -> Iterator[str]:
    group, told = engine.meta.group, page.get("meta_cluster")
    if not engine.clustered:
        yield from same("the meta group of one who is alone", told, None)
        return
    assert told is not None
    if group is None:
        yield from same("the meta group that is not found yet", told["cluster_size"], 0)
        return
    leader = None if group.leader is None else _name(engine, group.leader)
    wanted = {
        "leader": leader, "peer": group.leader, "cluster_size": len(group.members),
        "quorum_needed": len(group.peers) // 2 + 1, "pending": max(group.commit_index - group.applied_index, 0),
    }  # fmt: skip
    yield from same("the meta group", _of(told, wanted), wanted)
    listed = {one["peer"]: one for one in told["replicas"]}
    members = set(group.members) | {peer for peer in engine.meta.machine.left_out if peer in engine.meta.machine.nodes}
    without = engine.network.me if leader is not None else ""
    yield from same("servers of the meta group", set(listed), members - {without})
    for peer, one in listed.items():
        if peer == engine.network.me:
            continue
        here = peer in engine.network.mesh.peers
        yield from same(f"whether {one['name']} is offline", one.get("offline", False), not here)
        if one["current"] and (not here or one.get("lag")):
            yield f"{one['name']} is said to be current: {one}"


def _groups(node: Node, engine: Any, source: NodeSource, names: list[str]) -> Iterator[str]:
    if not engine.clustered:
        return
    groups = {"_meta_": engine.meta.group} if engine.meta.group is not None else {}
    system = node.options.system_account_name
    for account in {*names, system}:
        own = [one for one in engine.replicas.values() if one.assignment.account == account]
        some = [one.group for one in own if one.assignment.replicas > 1]
        wanted = [*(groups.values() if account == system else ()), *some]
        found = source.page("raftz", {"acc": account}).get(account, {})
        yield from same(f"groups of {account}", len(found), len(wanted))
        for one, group in zip(found.values(), wanted, strict=False):
            status = group.status()
            fields = {
                "id": engine.network.me, "state": status.role.name, "committed": group.commit_index,
                "applied": group.applied_index, "leader": group.leader, "term": group.term,
                "pindex": group.last_index, "size": len(group.peers),
            }  # fmt: skip
            yield from same(f"group {group.gid}", _of(one, fields), fields)


# ---- metrics


def _metrics(node: Node, engine: Any, source: NodeSource) -> Iterator[str]:
    """Compares what Prometheus gets of each stream, and of the server, with what there is."""
    out = Exposition()
    server_metrics(out, node, source, "gnatsd", {})
    for _ in jetstream_metrics(out, node, source, "jetstream", {"consumers": "0"}):
        pass
    found: dict[tuple[str, str, str], float] = {}
    leaders: dict[tuple[str, str], str] = {}
    for line in out.render().decode().splitlines():
        if sample := SAMPLE.match(line):
            labels = dict(LABEL.findall(sample[2] or ""))
            key = sample[1], labels.get("account", ""), labels.get("stream_name", "")
            found[key] = float(sample[3])
            leaders[key[1:]] = labels.get("stream_leader", "")
    for replica in engine.replicas.values():
        if replica.failed:
            continue
        assignment, state = replica.assignment, replica.store.state
        wanted = {
            "total_messages": state.messages, "total_bytes": state.bytes, "first_seq": state.first_seq,
            "last_seq": state.last_seq, "subject_count": state.num_subjects,
            "limit_bytes": assignment.config["max_bytes"], "limit_messages": assignment.config["max_msgs"],
        }  # fmt: skip
        told = {key: found.get((f"jetstream_stream_{key}", assignment.account, assignment.name)) for key in wanted}
        yield from same(f"metrics of {assignment.name}", told, wanted)
        leader = engine.network.me if replica.leading else replica.group.leader
        named = "" if leader is None else _name(engine, leader)
        yield from same(f"metrics: leader of {assignment.name}", leaders[assignment.account, assignment.name], named)
    present = list(node.server.clients)
    wanted = {
        "gnatsd_connz_total": len(present),
        "gnatsd_connz_subscriptions": sum(len(one.subscriptions) for one in present),
        "gnatsd_connz_pending_bytes": sum(one.pending for one in present),
        "gnatsd_connz_in_msgs": sum(one.in_msgs for one in present),
        "gnatsd_connz_out_msgs": sum(one.out_msgs for one in present),
        "gnatsd_connz_in_bytes": sum(one.in_bytes for one in present),
        "gnatsd_connz_out_bytes": sum(one.out_bytes for one in present),
        "jetstream_server_total_streams": len(engine.replicas),
        "jetstream_server_total_messages": sum(one.store.state.messages for one in engine.replicas.values()),
        "jetstream_server_total_message_bytes": sum(one.store.state.bytes for one in engine.replicas.values()),
    }  # fmt: skip
    told = {key: found.get((key, "", "")) for key in wanted}
    yield from same("metrics of the server", told, wanted)
