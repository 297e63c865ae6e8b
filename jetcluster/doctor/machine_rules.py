"""Rules about the machine on which `jetcluster doctor` runs, beside a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jetcluster.doctor import catalogue as kinds
from jetcluster.doctor.facts import MachineFacts
from jetcluster.doctor.finding import Finding, Subject
from jetcluster.doctor.words import size, span

MIN_DESCRIPTORS: Final = 16_384
MIN_BACKLOG: Final = 512
SLOW_SYNC_SECONDS: Final = 0.02
"""A disk whose usual fdatasync takes longer."""
MIN_FREE_SHARE: Final = 0.1
MIN_MEMORY: Final = 256 << 20


def look_at_machine(facts: MachineFacts) -> Iterator[Finding]:
    """Yields what of the machine or of the configuration file would keep a server from working well."""
    about = Subject(server=facts.server)
    if facts.problem:
        yield kinds.INVALID.found(about, "The configuration file is not valid", facts.problem)
    for warning in facts.warnings:
        yield kinds.START_WARNING.found(about.of(warning), warning, "The server logs this at its start")
    yield from _kernel(facts, about)
    yield from _clock(facts, about)
    yield from _store(facts, about)
    yield from _network(facts, about)


def _kernel(facts: MachineFacts, about: Subject) -> Iterator[Finding]:
    limit = facts.descriptor_limit
    if limit is not None and limit < MIN_DESCRIPTORS:
        yield kinds.LOW_DESCRIPTORS.found(about, f"A process here may have {limit} file descriptors", limit=limit)
    backlog = facts.somaxconn
    if backlog is not None and backlog < MIN_BACKLOG:
        yield kinds.LOW_BACKLOG.found(about, f"net.core.somaxconn is {backlog}", somaxconn=backlog)
    memory = facts.memory_limit
    if memory is not None and memory < MIN_MEMORY:
        what = f"The control group allows {size(memory)} of memory"
        yield kinds.LITTLE_MEMORY.found(about, what, limit=memory)


def _clock(facts: MachineFacts, about: Subject) -> Iterator[Finding]:
    if facts.clock_synchronized is None:
        what = f"It is not known whether the clock is synchronized: {facts.clock_source}"
        yield kinds.CLOCK_UNKNOWN.found(about, what)
    elif not facts.clock_synchronized:
        yield kinds.UNSYNCHRONIZED.found(about, f"The clock is not synchronized, says {facts.clock_source}")


def _store(facts: MachineFacts, about: Subject) -> Iterator[Finding]:
    if facts.store_error:
        yield kinds.STORE_UNWRITABLE.found(about, f"{facts.store} cannot be written: {facts.store_error}")
    if facts.sync_seconds:
        times = sorted(facts.sync_seconds)
        middle, most = times[len(times) // 2], times[-1]
        if middle > SLOW_SYNC_SECONDS:
            what = f"An fdatasync in {facts.store} takes {span(middle)}, {span(most)} at most"
            yield kinds.SLOW_DISK.found(about, what, median_seconds=round(middle, 5), most_seconds=round(most, 5))
    if facts.disk_size and facts.disk_free is not None and facts.disk_free < MIN_FREE_SHARE * facts.disk_size:
        what = f"{facts.store} has {size(facts.disk_free)} left of {size(facts.disk_size)}"
        yield kinds.LITTLE_SPACE.found(about, what, free=facts.disk_free, size=facts.disk_size)


def _network(facts: MachineFacts, about: Subject) -> Iterator[Finding]:
    for purpose, port, speaks in facts.taken_ports:
        who = "a NATS server" if speaks else "another program"
        yield kinds.PORT_TAKEN.found(about.of(str(port)), f"Port {port} ({purpose}) is taken by {who}", port=port)
    for host, reason in facts.unresolved:
        what = f"The route {host} has no address: {reason}"
        yield kinds.ROUTE_UNRESOLVED.found(about.of(host), what, host=host)
    for address, reason in facts.unreachable:
        what = f"Nothing answers at the route {address}: {reason}"
        yield kinds.ROUTE_UNREACHABLE.found(about.of(address), what, address=address)
