"""The part of an object that is state, which a start must find again: all its fields, unless it is named here. Caches
show what they must be when they are right; of some it is only said what they must not contradict (`faults`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from operator import attrgetter
from typing import Any

from jetcluster.consumer.info import num_pending
from jetcluster.consumer.state.pending import NEVER, PendingSet
from jetcluster.consumer.state.retention import ConsumerRetention
from jetcluster.consumer.state.table import ConsumerTable
from jetcluster.meta.machine import MetaMachine
from jetcluster.meta.places import Places
from jetcluster.meta.state import SubjectBook
from jetcluster.protocol.subjects import matches
from jetcluster.store.blocks import BlockTable
from jetcluster.store.search.subject_index import SubjectIndex
from jetcluster.stream.apply.asked import Asked
from jetcluster.stream.apply.atomic_checks import BatchParts
from jetcluster.stream.apply.dedupe import DedupeWindow
from jetcluster.stream.apply.due_index import DueIndex
from jetcluster.stream.apply.fast_rows import FastRows

Fields = dict[str, Any]

NO_STATE: Mapping[str, Set[str]] = {
    "BlockStore": {
        "_added", "_cache", "_import", "_kv", "_matches", "_saved", "_seen", "_views", "_writer", "dirty", "queries",
        "reader", "slices",
    },
    "ConsumerState": {"counted"},
    "ConsumerTable": {"_dirty", "_lowest", "_store", "observer"},
    "DueIndex": {"_floor", "_store"},
    "Expiry": {"_floor", "_store"},
    "Jobs": {"_store", "steps"},
    "MessageAdmission": {"_batch", "_gate", "selections", "time"},
    "RetentionGuard": {"_below", "_below_of", "_full", "_store"},
    "Schedules": {"_store", "plans"},
    "Staging": {"_base", "_batch", "_ids", "_stored", "next_seq", "on_append"},
    "StreamMachine": {"_on_append", "malformed"},
}  # fmt: skip
"""Fields by class: what is known of this process or of the last command alone, how far a search need not go back, and
what is shown elsewhere."""


def fields(value: object, *names: str) -> Fields:
    return {name: attrgetter(name)(value) for name in names}


def _blocks(table: BlockTable) -> Fields:
    """Without the rows of dropped blocks, which stay for a while."""
    rows = zip(table.firsts, table.counts, table.lives, table.sizes, table.times, strict=True)
    live = [(*row, table.bits.get(row[0], 0)) for row in rows if row[2]]
    return {"rows": live} | fields(table, "first_seq", "messages", "bytes")


def _subjects(index: SubjectIndex) -> Fields:
    """With the first sequence of each subject, which is found from where it was once."""
    firsts = {subject: index.first_of(subject) for subject in index.table}
    return {"table": dict(index.table), "firsts": firsts}


def _pending(of: PendingSet) -> Fields:
    pages: dict[int, list[int]] = attrgetter("_pages")(of)
    live = {page: [seq for seq in seqs if seq in of.entries] for page, seqs in pages.items()}
    return {
        "entries": list(of.entries.items()),
        "order": [seq for seq in of.order if seq in of.entries],
        "pages": {page: seqs for page, seqs in live.items() if seqs},
    } | fields(of, "held", "redelivered", "_dirty")


def _ids(window: DedupeWindow) -> Fields:
    """From the first row on that is not swept."""
    head, times, firsts, ids = attrgetter("_head", "_times", "_firsts", "_row_ids")(window)
    rows = list(zip(times[head:], firsts[head:], ids[head:], strict=True))
    return {"rows": rows} | fields(window, "_ids", "window")


def _parts(of: BatchParts) -> Fields:
    """Without parts there is no term that they are of."""
    return fields(of, "_indexes", "pieces", *(["_term"] if of.pieces else []))


def _fast(rows: FastRows) -> Fields:
    """The oldest first: that is the order in which they are forgotten."""
    return {"rows": list(rows.by_id.items())}


def _asked(of: Asked) -> Fields:
    return {"ended": list(attrgetter("_ended")(of).items()), "open": attrgetter("_open")(of)}


def _retention(of: ConsumerRetention) -> Fields:
    """Consumers by what they take, which is found when it is asked for."""
    store, consumers = attrgetter("_store", "_consumers")(of)
    again = ConsumerRetention(store, consumers)
    one = of if attrgetter("_indexed")(of) else again
    if one is again:
        attrgetter("_index")(again)()
    names = lambda states: sorted(state.name for state in states)  # noqa: E731
    literal, everything, burying = attrgetter("_literal", "_wants_all", "_burying")(one)
    return {
        "policy": of.policy,
        "literal": {subject: names(states) for subject, states in literal.items()},
        "wants_all": names(everything),
        "burying": names(burying),
    }


def _places(of: Places) -> Fields:
    counters = fields(of, "leaders", "replicated", "reserved", "claimed", "tiers")
    counted = {name: {key: number for key, number in found.items() if number} for name, found in counters.items()}
    return counted | fields(of, "restoring", "_by_peer", "_short", "_mirrors")


def _book(of: SubjectBook) -> Fields:
    """With how many others overlap with each subject."""
    names: dict[str, list[str]] = attrgetter("_of")(of)
    patterns = attrgetter("_patterns")(of)
    overlaps = {subject: patterns.overlaps(subject) for found in names.values() for subject in found}
    return {"of": names, "overlaps": overlaps}


def _meta(machine: MetaMachine) -> Fields:
    left_out = {"_encoded", "_changed"}
    own = {name: value for name, value in vars(machine).items() if name not in left_out}
    return own | {"snapshot": machine.snapshot()}


VIEWS: dict[type, Callable[[Any], Fields]] = {
    BlockTable: _blocks,
    SubjectIndex: _subjects,
    PendingSet: _pending,
    DedupeWindow: _ids,
    FastRows: _fast,
    Asked: _asked,
    BatchParts: _parts,
    ConsumerRetention: _retention,
    Places: _places,
    SubjectBook: _book,
    MetaMachine: _meta,
}


def faults(value: object) -> Iterator[str]:
    """Contradictions within one object."""
    found = FAULTS.get(type(value))
    return found(value) if found is not None else iter(())


def _sent_faults(of: PendingSet) -> Iterator[str]:
    sent = attrgetter("_sent")(of)
    if sent is not None:
        cseqs = [of.entries[seq].cseq for seq in sent if seq in of.entries]
        if cseqs != sorted(entry.cseq for entry in of.entries.values() if entry.cseq):
            yield f"pending messages are not in the order of their deliveries: {cseqs}"


def _table_faults(table: ConsumerTable) -> Iterator[str]:
    """When the stream's beginning is removed, no consumer is looked at whose messages are all above the lowest known.
    A kept number of messages that are left is that of a count. What is gone waits for no ack."""
    lowest, store = attrgetter("_lowest", "_store")(table)
    least = min((min(state.pending, default=NEVER) for state in table.by_cid.values()), default=NEVER)
    if lowest > least:
        yield f"no message below {lowest} is said to be pending, and {least} is"
    for state in table.by_cid.values():
        if gone := [seq for seq in state.unacked.entries if not store.contains(seq)]:
            yield f"{gone} wait for an ack of {state.name}, and are not there"
        if state.counted is not None:
            told = num_pending(state, store)
            state.counted = None
            counted = num_pending(state, store)
            if told != counted:
                yield f"{state.name} has {counted} messages left, and says {told}"


def _due_faults(index: DueIndex) -> Iterator[str]:
    store, table = attrgetter("_store", "_table")(index)
    rows = sum(len(value) // 4 for key, value in store.side_scan(table) if key)
    if rows != index.entries:
        yield f"{index.entries} entries are counted in table {table}, and its rows have {rows}"


def _index_faults(index: SubjectIndex) -> Iterator[str]:
    """A kept filter knows all its subjects, up to those that it has yet to look at."""
    kept = index.kept
    table, found = attrgetter("_table", "_kept")(kept)
    for wanted, (subjects, seen) in found.items():
        if isinstance(wanted, bytes):
            new = set(kept.arrivals[seen:])
            missing = [one for one in table if one not in subjects and one not in new and matches(one, wanted)]
            gone = [one for one in subjects if one not in table]
            if missing or gone:
                yield f"{wanted!r} does not know {missing[:3]}, and knows {gone[:3]}"


def _taker_faults(of: ConsumerRetention) -> Iterator[str]:
    takers, indexed, consumers = attrgetter("_takers", "_indexed", "_consumers")(of)
    if indexed:
        for subject, states in takers.items():
            right = [
                one.name for one in consumers.values() if any(matches(subject, each) for each in one.rules.filters)
            ]
            if sorted({state.name for state in states}) != sorted(right):
                yield f"{subject!r} is taken by {[state.name for state in states]}, and should be by {right}"


FAULTS: dict[type, Callable[[Any], Iterator[str]]] = {
    PendingSet: _sent_faults,
    ConsumerTable: _table_faults,
    DueIndex: _due_faults,
    SubjectIndex: _index_faults,
    ConsumerRetention: _taker_faults,
}
