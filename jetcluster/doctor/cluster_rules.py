"""Rules about all servers together, evaluated by the server that was asked for the whole cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from jetcluster.doctor import catalogue as kinds
from jetcluster.doctor.facts import ClusterFacts, OrphanFacts, ServerFacts
from jetcluster.doctor.finding import Finding, Subject
from jetcluster.doctor.words import names, span

UNEVEN_STREAMS: Final = 10
"""Streams that a server leads beyond its share before that is worth a word,"""
UNEVEN_TIMES: Final = 1.5
"""and times the share."""
SETTLED_SECONDS: Final = 120.0
"""Uptime of the youngest server before which leaders may still be moving to it."""


def look_at_cluster(facts: ClusterFacts) -> Iterator[Finding]:
    """Yields what no server can tell alone; nothing of that for a server without a cluster."""
    present = [server for server in facts.servers if server.clustered]
    if not present:
        return
    yield from _absent(facts, present)
    yield from _meta(facts, present)
    yield from _missing_links(present)
    yield from _spread(present)
    yield from _differences(present)
    left_out = sorted({name for server in present for name in server.left_out})
    if left_out:
        yield kinds.RESCUED.found(Subject(), f"A rescue of the cluster went on without {names(left_out)}")


def look_at_orphan(facts: OrphanFacts) -> Iterator[Finding]:
    """Yields what the servers of the stream cannot tell, because none of them is there."""
    who = names(facts.servers)
    what = f"{facts.name} has no leader: none of the servers of its replicas is there ({who})"
    why = f"0 of its {len(facts.servers)} replicas are there. {kinds.LEADERLESS.reason}"
    figures = {"present": 0, "quorum": len(facts.servers) // 2 + 1, "replicas": len(facts.servers)}
    yield kinds.LEADERLESS.found(Subject(account=facts.account, stream=facts.name), what, why, **figures)


def look_at_lost(account: str, name: str) -> Iterator[Finding]:
    """Yields what no server can tell, because none that has a replica of the stream is in the cluster any more."""
    about = Subject(account=account, stream=name)
    yield kinds.LOST.found(about, f"{name} is on no server any more: it stores and delivers nothing")


def _absent(facts: ClusterFacts, present: list[ServerFacts]) -> Iterator[Finding]:
    """A server that anybody reached is there, whatever others say: a link between two is `_missing_links`."""
    there = {server.name for server in present} | {one.name for one in facts.unanswered}
    silent: dict[str, list[float]] = defaultdict(list)
    for server in present:
        for absent in server.absent:
            if absent.name not in there and absent.name not in server.left_out:
                silent[absent.name].append(absent.seconds)
    for name, heard in sorted(silent.items()):
        last = min((seconds for seconds in heard if seconds >= 0), default=-1.0)
        since = f"was last heard {span(last)} ago" if last >= 0 else "was not heard since the others started"
        what = f"{name} is absent: it {since}"
        refused = {
            f"{server.name} refuses it at the cluster port ({reason})"
            for server in present
            for refused_name, reason in server.refused_peers
            if refused_name == name
        }
        why = f"It seems to run: {names(sorted(refused))}. {kinds.ABSENT.reason}" if refused else ""
        yield kinds.ABSENT.found(Subject(server=name), what, why, silent_seconds=round(last, 1))
    for one in facts.unanswered:
        what = f"{one.name} is linked and does not tell its state: {one.reason}"
        yield kinds.UNANSWERED.found(Subject(server=one.name), what)


def _meta(facts: ClusterFacts, present: list[ServerFacts]) -> Iterator[Finding]:
    """A linked server that does not tell its state, as one of an older version, is a member that is there."""
    members = max((server.members for server in present if server.jetstream), key=len, default=())
    if not members:
        return
    quorum = max(server.quorum for server in present)
    told = {server.name for server in present if not server.removed} | {one.name for one in facts.unanswered}
    there = sorted(set(members) & told)
    figures = {"members": len(members), "there": len(there), "quorum": quorum}
    count = f"{len(there)} of {len(members)} members are there, {quorum} are needed"
    if not any(server.meta_leader for server in present):
        what = "The meta group has no leader: no stream or consumer can be made, changed or deleted"
        yield kinds.META_LEADERLESS.found(Subject(), what, f"{count}. {kinds.META_LEADERLESS.reason}", **figures)
    elif len(there) <= quorum and len(there) < len(members):
        what = "One more absent server and the cluster decides nothing any more"
        yield kinds.META_AT_QUORUM.found(Subject(), what, f"{count}. {kinds.META_AT_QUORUM.reason}", **figures)
    if len(members) == 2:
        yield kinds.TWO_SERVERS.found(Subject(), "The cluster has two servers, and needs both", **figures)


def _missing_links(present: list[ServerFacts]) -> Iterator[Finding]:
    """Links to servers without JetStream are not known: they are no members."""
    members = [server for server in present if server.jetstream and server.members]
    there = {server.name for server in members}
    missing = {
        frozenset((server.name, other))
        for server in members
        for other in there - {server.name, *server.linked}
        if other in server.members
    }
    for pair in sorted(tuple(sorted(pair)) for pair in missing):
        what = f"{pair[0]} and {pair[1]} have no link to each other"
        yield kinds.LINK_MISSING.found(Subject(server=pair[0], part=pair[1]), what, other=pair[1])


def _spread(present: list[ServerFacts]) -> Iterator[Finding]:
    able = [server for server in present if server.jetstream and not server.lame_duck and not server.troubles]
    if len(able) < 2 or len(able) < len(present) or min(server.uptime for server in able) < SETTLED_SECONDS:
        return
    total = sum(server.leads for server in able)
    fair = total / len(able)
    most = max(able, key=lambda server: server.leads)
    if most.leads > max(fair * UNEVEN_TIMES, fair + UNEVEN_STREAMS):
        what = f"{most.name} leads {most.leads} of {total} streams"
        each = ", ".join(f"{server.name} {server.leads}" for server in sorted(able, key=lambda one: one.name))
        why = f"An even share is {fair:.0f}: {each}. {kinds.UNEVEN.reason}"
        yield kinds.UNEVEN.found(Subject(server=most.name), what, why, leads=most.leads, total=total)


def _differences(present: list[ServerFacts]) -> Iterator[Finding]:
    versions = _by(present, lambda server: server.version)
    if len(versions) > 1:
        yield kinds.VERSIONS.found(Subject(), f"The servers have {len(versions)} versions: {_listed(versions)}")
    levels = _by(present, lambda server: str(server.level))
    if len(levels) > 1:
        why = f"Levels: {_listed(levels)}. {kinds.LEVELS.reason}"
        yield kinds.LEVELS.found(Subject(), "Not all servers understand the newest commands", why)
    keepers = [server for server in present if server.config.jetstream]
    intervals = _by(keepers, lambda server: _interval(server.config.sync_interval))
    if len(intervals) > 1:
        what = f"The servers differ in sync_interval: {_listed(intervals)}"
        yield kinds.SYNC_DIFFERS.found(Subject(), what)


def _interval(seconds: float) -> str:
    return f"{seconds:g} s" if seconds else "always"


def _by(servers: list[ServerFacts], value: Callable[[ServerFacts], str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for server in sorted(servers, key=lambda one: one.name):
        found[value(server)].append(server.name)
    return found


def _listed(found: dict[str, list[str]]) -> str:
    return "; ".join(f"{value} ({names(servers)})" for value, servers in sorted(found.items()))
