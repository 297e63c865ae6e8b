"""Rules about one server by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from jetcluster.doctor import catalogue as kinds
from jetcluster.doctor.facts import ServerFacts
from jetcluster.doctor.finding import Finding, FindingKind, Subject
from jetcluster.doctor.words import share, size, span

SKEW_SECONDS: Final = 1.0
"""A clock that is further off; beyond 5 s the server itself reports a trouble."""
NEARLY: Final = 0.85
"""Share of a limit from which on it is nearly reached."""
DISK_LEFT: Final = 0.1
"""Share of the disk below which little is left."""
WAITING_REQUESTS: Final = 200
CERTIFICATE_SECONDS: Final = 30 * 86_400.0
WARM_SECONDS: Final = 30.0
"""Uptime before which links to hubs may still be coming up."""

TROUBLES: Final[Mapping[str, FindingKind]] = {
    "journal": kinds.JOURNAL_HANGS,
    "deleted": kinds.JOURNAL_DELETED,
    "space": kinds.DISK_FULL,
    "store": kinds.STORE_FAILS,
    "data": kinds.DATA_DAMAGED,
    "descriptors": kinds.DESCRIPTORS_OUT,
    "clock": kinds.CLOCK_OFF,
    "loop": kinds.LOOP_STANDS,
    "memory": kinds.MEMORY_OUT,
}
"""The finding for each aspect of `health.node_health`."""


def look_at_server(facts: ServerFacts) -> Iterator[Finding]:
    """Yields what is wrong with the server, apart from its cluster, streams and configuration."""
    about = Subject(server=facts.name)
    yield from _troubles(facts, about)
    yield from _standing(facts, about)
    yield from _room(facts, about)
    yield from _links(facts, about)
    yield from _certificates(facts, about)


def _troubles(facts: ServerFacts, about: Subject) -> Iterator[Finding]:
    for aspect, reason, seconds in facts.troubles:
        kind = TROUBLES.get(aspect)
        if kind is not None:
            why = f"For {span(seconds)}: {reason}. {kind.reason}"
            yield kind.found(about, f"{facts.name}: {reason}", why, aspect=aspect, seconds=round(seconds, 1))


def _standing(facts: ServerFacts, about: Subject) -> Iterator[Finding]:
    if facts.removed:
        yield kinds.REMOVED.found(about, f"{facts.name} is no member of its cluster", facts.removed)
    if facts.refused_reload is not None:
        reason, seconds = facts.refused_reload
        why = f"{span(seconds)} ago: {reason}. {kinds.RELOAD_REFUSED.reason}"
        what = f"{facts.name} refused its last reload"
        yield kinds.RELOAD_REFUSED.found(about, what, why, seconds=round(seconds, 1))
    if facts.refused:
        what = f"{facts.name} does not follow the leader of the meta group"
        yield kinds.META_REFUSED.found(about, what, f"{facts.refused}. {kinds.META_REFUSED.reason}")
    if facts.lame_duck:
        yield kinds.LAME_DUCK.found(about, f"{facts.name} is going away (lame duck)")
    clock_told = any(aspect == "clock" for aspect, _, _ in facts.troubles)
    if abs(facts.skew) > SKEW_SECONDS and not clock_told:
        way = "ahead of" if facts.skew > 0 else "behind"
        what = f"The clock of {facts.name} is {span(abs(facts.skew))} {way} the cluster's time"
        yield kinds.CLOCK_SKEW.found(about, what, skew_seconds=round(facts.skew, 3))
    if facts.journal_losses:
        what = f"{facts.journal_losses} groups on {facts.name} lost records of the journal"
        yield kinds.JOURNAL_LOSSES.found(about, what, groups=facts.journal_losses)
    if facts.unassigned:
        what = f"{facts.name} keeps data of {facts.unassigned} streams that are not placed there"
        yield kinds.UNASSIGNED.found(about, what, streams=facts.unassigned)
    if facts.api_waiting > WAITING_REQUESTS:
        what = f"{facts.api_waiting} API requests wait on {facts.name}"
        yield kinds.API_WAITS.found(about, what, waiting=facts.api_waiting)
    if not facts.compiled:
        yield kinds.NOT_COMPILED.found(about, f"{facts.name} runs without compiled loops ({facts.loops})")


def _room(facts: ServerFacts, about: Subject) -> Iterator[Finding]:
    troubled = {aspect for aspect, _, _ in facts.troubles}
    if "memory" not in troubled and _near(facts.memory, facts.memory_limit):
        what = f"{facts.name} uses {size(facts.memory)} of the {size(facts.memory_limit)} of memory that it may"
        why = f"{share(facts.memory, facts.memory_limit)} are used. {kinds.MEMORY_NEAR.reason}"
        yield kinds.MEMORY_NEAR.found(about, what, why, memory=facts.memory, limit=facts.memory_limit)
    if "descriptors" not in troubled and _near(facts.descriptors, facts.descriptor_limit):
        what = f"{facts.name} uses {facts.descriptors} of {facts.descriptor_limit} file descriptors"
        yield kinds.DESCRIPTORS_NEAR.found(about, what, used=facts.descriptors, limit=facts.descriptor_limit)
    if "space" not in troubled and facts.disk_size and facts.disk_free < DISK_LEFT * facts.disk_size:
        what = f"The disk of {facts.name} has {size(facts.disk_free)} left of {size(facts.disk_size)}"
        yield kinds.DISK_NEAR.found(about, what, free=facts.disk_free, size=facts.disk_size)
    for name, used, reserved, limit in (
        ("storage", facts.storage, facts.reserved_storage, facts.max_storage),
        ("memory", facts.stored_memory, facts.reserved_memory, facts.max_memory),
    ):
        if _near(used, limit):
            what = f"Streams on {facts.name} hold {size(used)} of the {size(limit)} of {name} that they may"
            why = f"{share(used, limit)} of max_{_key(name)} are used. {kinds.STORAGE_NEAR.reason}"
            yield kinds.STORAGE_NEAR.found(about.of(name), what, why, used=used, limit=limit)
        if _near(reserved, limit):
            what = f"max_bytes of the streams on {facts.name} reserve {size(reserved)} of {size(limit)} of {name}"
            left = max(limit - reserved, 0)
            why = f"{size(limit)} less {size(reserved)} leave {size(left)}. {kinds.RESERVED_NEAR.reason}"
            yield kinds.RESERVED_NEAR.found(about.of(name), what, why, reserved=reserved, limit=limit, left=left)


def _key(name: str) -> str:
    return "file_store" if name == "storage" else "memory_store"


def _near(used: int, limit: int) -> bool:
    return limit > 0 and used > NEARLY * limit


def _links(facts: ServerFacts, about: Subject) -> Iterator[Finding]:
    if facts.uptime < WARM_SECONDS:
        return
    for remote in facts.leaf_remotes:
        if not remote.connected:
            what = f"{facts.name} has no link to its hub {remote.urls} for account {remote.account}"
            yield kinds.LEAF_DOWN.found(Subject(facts.name, remote.account, part=remote.urls), what, urls=remote.urls)


def _certificates(facts: ServerFacts, about: Subject) -> Iterator[Finding]:
    for certificate in facts.certificates:
        its, seconds = about.of(certificate.port), round(certificate.seconds)
        where = f"The certificate of {facts.name} for {certificate.port}"
        if certificate.seconds <= 0:
            what = f"{where} is over for {span(-certificate.seconds)}"
            yield kinds.CERTIFICATE_OVER.found(its, what, port=certificate.port, seconds=seconds)
        elif certificate.seconds < CERTIFICATE_SECONDS:
            what = f"{where} ends in {span(certificate.seconds)}"
            yield kinds.CERTIFICATE_ENDS.found(its, what, port=certificate.port, seconds=seconds)
