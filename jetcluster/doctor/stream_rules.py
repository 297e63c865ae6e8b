"""Rules about one stream, evaluated by each server that has a replica of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from jetcluster.doctor import catalogue as kinds
from jetcluster.doctor.facts import RefusalFacts, ReplicaFacts, StreamFacts
from jetcluster.doctor.finding import Figure, Finding, Subject
from jetcluster.doctor.words import names, share, size, span

NEARLY: Final = 0.9
BEHIND_ENTRIES: Final = 1000
"""Entries that a current replica may lack: under load there are always some."""
SILENT_SECONDS: Final = 10.0
"""Without a word of it for so long a mirror's upstream, which speaks every second, is silent."""
LAG_MESSAGES: Final = 10_000
UNLIMITED: Final = -1


def look_at_stream(facts: StreamFacts) -> Iterator[Finding]:
    """Yields what is wrong with the stream, and with its replica here."""
    about = Subject(account=facts.account, stream=facts.name)
    here = Subject(facts.server, facts.account, facts.name)
    yield from _replica_here(facts, here)
    if facts.broken:
        return
    if not facts.leader and not facts.catch_up:
        what = f"{facts.name} has no leader: it stores and delivers nothing"
        count = f"{facts.present} of its {facts.wanted} replicas are there, {facts.quorum} are needed"
        why = f"Seen by {facts.server}: {count}. {kinds.LEADERLESS.reason}"
        figures = {"present": facts.present, "quorum": facts.quorum, "replicas": facts.wanted}
        yield kinds.LEADERLESS.found(about, what, why, **figures)
    if facts.leading:
        yield from _replicas(facts, about)
        yield from _limits(facts, about)
        yield from _upstreams(facts, about)
        yield from _use(facts, about)
        yield from _guard(facts, about)


def look_at_refusal(facts: RefusalFacts) -> Iterator[Finding]:
    """Yields that a stream was refused, with the arithmetic that the answer to the client does not have."""
    about = Subject(account=facts.account, stream=facts.stream)
    what = f"Stream {facts.stream} was refused {span(facts.seconds)} ago: {facts.description} ({facts.code})"
    why = "; ".join(facts.why)
    yield kinds.REFUSED.found(about.of(str(facts.code)), what, why, code=facts.code, seconds=round(facts.seconds))


def _replica_here(facts: StreamFacts, here: Subject) -> Iterator[Finding]:
    its = f"The replica of {facts.name} on {facts.server}"
    if facts.broken:
        yield kinds.BROKEN.found(here, f"{its} cannot be started", f"{facts.broken}. {kinds.BROKEN.reason}")
    elif facts.damaged:
        yield kinds.DAMAGED.found(here, f"{its} has damaged data", f"{facts.damaged}. {kinds.DAMAGED.reason}")
    elif facts.failed:
        yield kinds.STOPPED.found(here, f"{its} has stopped", f"{facts.failed}. {kinds.STOPPED.reason}")
    elif facts.rejected:
        yield kinds.REJECTED.found(here, f"{its} is out of service", f"{facts.rejected}. {kinds.REJECTED.reason}")
    if facts.undecided or facts.disputed:
        reason = facts.disputed or "no majority agrees on its content"
        yield kinds.UNDECIDED.found(here, f"{its} may be wrong", f"{reason}. {kinds.UNDECIDED.reason}")
    if facts.refused:
        why = f"{facts.refused}. {kinds.REFUSING.reason}"
        yield kinds.REFUSING.found(here, f"{its} does not follow its leader", why)
    if facts.catch_up is not None:
        yield _catching_up(facts, here, its)
    elif facts.unapplied > BEHIND_ENTRIES:
        what = f"{its} has yet to apply {facts.unapplied} entries"
        yield kinds.NOT_APPLIED.found(here, what, entries=facts.unapplied)


def _catching_up(facts: StreamFacts, here: Subject, its: str) -> Finding:
    pull = facts.catch_up
    assert pull is not None
    figures: dict[str, Figure] = {"done": pull.done, "total": pull.total, "seconds": round(pull.seconds, 1)}
    way = f"{size(pull.done)} of {size(pull.total)} after {span(pull.seconds)}, from {pull.peer}"
    if pull.stalled:
        why = f"{way}, which is not reachable now. {kinds.CATCHING_UP.reason}"
    elif pull.done and pull.seconds > 1:
        rest = max(pull.total - pull.done, 0) / (pull.done / pull.seconds)
        figures["seconds_left"] = round(rest, 1)
        why = f"{way}: about {span(rest)} more at this rate. {kinds.CATCHING_UP.reason}"
    else:
        why = f"{way}. {kinds.CATCHING_UP.reason}"
    return kinds.CATCHING_UP.found(here, f"{its} fetches its state", why, **figures)


def _replicas(facts: StreamFacts, about: Subject) -> Iterator[Finding]:
    gone = [one for one in facts.replicas if one.voter and not one.linked]
    if gone:
        who = names([one.name for one in gone])
        what = f"{facts.name} is without {len(gone)} of its {facts.wanted} replicas: {who}"
        left = facts.present - facts.quorum
        spare = "none more may go" if left <= 0 else f"{left} more may go"
        why = f"{facts.present} are there, {facts.quorum} are needed, so {spare}. {kinds.REPLICA_GONE.reason}"
        yield kinds.REPLICA_GONE.found(about, what, why, present=facts.present, quorum=facts.quorum)
    for one in facts.replicas:
        if one.linked and _behind(one):
            heard = "" if one.silent < 0 else f", last heard {span(one.silent)} ago"
            what = f"The replica of {facts.name} on {one.name} lacks {one.lag} entries{heard}"
            where = Subject(one.name, facts.account, facts.name)
            yield kinds.BEHIND.found(where, what, lag_entries=one.lag, silent_seconds=round(one.silent, 1))
    if facts.clustered and facts.wanted == 1:
        yield kinds.ONE_REPLICA.found(about, f"{facts.name} has one replica, on {facts.server}")
    shared = [machine for machine, count in Counter(facts.machines).items() if count > 1]
    if shared:
        what = f"Several replicas of {facts.name} are on one machine: {names(shared)}"
        yield kinds.ONE_MACHINE.found(about, what)


def _behind(one: ReplicaFacts) -> bool:
    return one.lag > BEHIND_ENTRIES or (one.lag > 0 and one.silent > SILENT_SECONDS)


def _limits(facts: StreamFacts, about: Subject) -> Iterator[Finding]:
    full = "publishes are refused (10077)" if facts.discard_new else "the oldest messages go"
    for name, used, limit, shown in (
        ("max_bytes", facts.bytes, facts.max_bytes, size),
        ("max_msgs", facts.messages, facts.max_messages, str),
    ):
        if limit <= 0 or used <= NEARLY * limit:
            continue
        what = f"{facts.name} has {shown(used)} of {name} {shown(limit)}"
        kind = kinds.STREAM_FULL if facts.discard_new else kinds.STREAM_ROLLS
        why = f"{share(used, limit)} are used; when it is full, {full}. {kind.reason}"
        yield kind.found(about.of(name), what, why, used=used, limit=limit)
    if facts.max_consumers > 0 and facts.consumers >= NEARLY * facts.max_consumers:
        what = f"{facts.name} has {facts.consumers} of {facts.max_consumers} consumers"
        yield kinds.CONSUMERS_NEAR.found(about, what, used=facts.consumers, limit=facts.max_consumers)


def _upstreams(facts: StreamFacts, about: Subject) -> Iterator[Finding]:
    for one in facts.upstreams:
        does = "mirrors" if one.mirror else "takes from"
        figures: dict[str, Figure] = {"upstream": one.name, "lag": one.lag, "silent_seconds": round(one.silent, 1)}
        said = f". Its last answer: {one.error}" if one.error else ""
        if one.silent < 0 or one.silent > SILENT_SECONDS:
            heard = "was heard since this server leads" if one.silent < 0 else f"is heard for {span(one.silent)}"
            what = f"{facts.name} {does} {one.name}, of which nothing {heard}"
            yield kinds.UPSTREAM_SILENT.found(
                about.of(one.name), what, f"{kinds.UPSTREAM_SILENT.reason}{said}", **figures
            )
        elif one.lag > LAG_MESSAGES:
            what = f"{facts.name} {does} {one.name} and lacks {one.lag} of its messages"
            yield kinds.UPSTREAM_LAGS.found(about.of(one.name), what, f"{kinds.UPSTREAM_LAGS.reason}{said}", **figures)


def _use(facts: StreamFacts, about: Subject) -> Iterator[Finding]:
    if facts.consumers or facts.retention == "limits":
        return
    if facts.retention == "workqueue" and facts.messages:
        what = f"The work queue {facts.name} has {facts.messages} messages and no consumer"
        yield kinds.QUEUE_UNUSED.found(about, what, messages=facts.messages)
    elif facts.retention == "interest":
        yield kinds.NO_INTEREST.found(about, f"{facts.name} keeps by interest and has no consumer")


def _guard(facts: StreamFacts, about: Subject) -> Iterator[Finding]:
    guard = facts.guard
    if guard is None:
        return
    if guard.refuses:
        what = f"{facts.name} refuses publishes: {guard.refuses}"
        why = f"{guard.waiting} messages wait for consumer {guard.consumer}. {kinds.GUARD_REFUSES.reason}"
        yield kinds.GUARD_REFUSES.found(about, what, why, waiting=guard.waiting)
    if not guard.found:
        what = f"{facts.name} has {guard.consumer} as its retention guard, which does not exist"
        yield kinds.GUARD_MISSING.found(about, what, waiting=guard.waiting)
