"""Rules about a server's configuration, in force or in a file, and about accounts' limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jetcluster.doctor import catalogue as kinds
from jetcluster.doctor.facts import AccountFacts, ConfigFacts, ReservationFacts, ReservingStream
from jetcluster.doctor.finding import Figure, Finding, Subject
from jetcluster.doctor.words import names, share, size

NEARLY: Final = 0.85


def look_at_config(server: str, facts: ConfigFacts) -> Iterator[Finding]:
    """Yields what an operator of the server may not have meant."""
    about = Subject(server=server)
    yield from _doors(server, facts, about)
    if facts.jetstream and facts.temporary_store:
        yield kinds.TEMPORARY_STORE.found(about, f"{server} keeps its streams in the folder for temporary files")
    if facts.jetstream and facts.sync_interval:
        what = f"{server} acknowledges messages up to {facts.sync_interval:g} s before they are on its disk"
        yield kinds.SYNC_RELAXED.found(about, what, sync_interval=facts.sync_interval)
    if facts.inert:
        yield kinds.INERT.found(about, f"{server} ignores {names(facts.inert)}", keys=len(facts.inert))
    if not facts.system_user and facts.users:
        yield kinds.NO_SYSTEM_USER.found(about, f"Nobody can log in to the system account of {server}")


def _doors(server: str, facts: ConfigFacts, about: Subject) -> Iterator[Finding]:
    if facts.open_to and not facts.users:
        what = f"{server} lets in anybody who reaches its client port ({facts.open_to})"
        yield kinds.NO_USERS.found(about, what, host=facts.open_to)
    elif facts.open_to and not facts.tls:
        what = f"{server} takes passwords and messages without TLS at {facts.open_to}"
        yield kinds.NO_TLS.found(about, what, host=facts.open_to)
    proven = facts.routes_secret or facts.routes_tls
    if facts.clustered and facts.cluster_open_to and facts.trusted_network and not proven:
        what = f"Whoever reaches the cluster port of {server} ({facts.cluster_open_to}) may join the cluster"
        yield kinds.OPEN_ROUTES.found(about, what, host=facts.cluster_open_to)
    if facts.http_open_to and facts.console and facts.users:
        what = f"The console of {server} takes passwords without TLS at {facts.http_open_to}"
        yield kinds.CONSOLE_OPEN.found(about, what, host=facts.http_open_to)


def look_at_account(facts: AccountFacts) -> Iterator[Finding]:
    """Yields limits of the account that are nearly reached. Every server counts the same, so it names none."""
    about = Subject(account=facts.name)
    for name, used, limit, shown in (
        ("max_file", facts.storage, facts.max_storage, size),
        ("max_mem", facts.memory, facts.max_memory, size),
        ("max_streams", facts.streams, facts.max_streams, str),
    ):
        if limit > 0 and used > NEARLY * limit:
            what = f"Account {facts.name} uses {shown(used)} of {name} {shown(limit)}"
            left = max(limit - used, 0)
            counted = "" if name == "max_streams" else ", all replicas counted"
            sum_of = f"{shown(limit)} less {shown(used)} leave {shown(left)}: {share(used, limit)} are used{counted}"
            figures: dict[str, Figure] = {"limit_name": name, "used": used, "limit": limit, "left": left}
            yield kinds.ACCOUNT_NEAR.found(about.of(name), what, f"{sum_of}. {kinds.ACCOUNT_NEAR.reason}", **figures)
    for one in facts.reservations:
        if one.limit > 0 and one.reserved > NEARLY * one.limit:
            yield _reserved(facts.name, one, about)


def _reserved(account: str, facts: ReservationFacts, about: Subject) -> Finding:
    kind, reserved, limit = kinds.ACCOUNT_RESERVED, facts.reserved, facts.limit
    left = max(limit - reserved, 0)
    what = f"max_bytes of the streams of account {account} reserve {size(reserved)} of {facts.name} {size(limit)}"
    parts = [f"{one.name} {_product(one)}" for one in facts.largest]
    if facts.others:
        rest = reserved - sum(one.max_bytes * one.counted for one in facts.largest)
        parts.append(f"{facts.others} more streams {size(rest)}")
    why = f"{size(limit)} less {size(reserved)} leave {size(left)}. Reserved by {', '.join(parts)}. {kind.reason}"
    figures: dict[str, Figure] = {"limit_name": facts.name, "reserved": reserved, "limit": limit, "left": left}
    return kind.found(about.of(facts.name), what, why, **figures)


def _product(one: ReservingStream) -> str:
    if one.counted == 1:
        return size(one.max_bytes)
    return f"{size(one.max_bytes * one.counted)} ({one.counted} replicas of {size(one.max_bytes)})"
