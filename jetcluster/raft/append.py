"""A follower's plan for a batch of entries, made before pysyncobj sees it.

pysyncobj truncates everything after `prevLogIdx` even where it matches, so a batch that is sent twice un-stores
acknowledged entries (docs/reference/pysyncobj.md, D2); it walks a divergence back one index per heartbeat (D18). `plan`
strips what the log already holds, so that a truncation happens only at a real conflict, and finds the hint that skips a
whole term. It is Raft's AppendEntries receiver (figure 2, steps 2-5) as a pure function.
"""

from __future__ import annotations

from typing import NamedTuple

from jetcluster.raft.codec import Append, Entry
from jetcluster.raft.grouplog import GroupLog


class Rejected(NamedTuple):
    """`prev` is not in this log; the leader should go on at `hint`."""

    hint: int


class Diverged(NamedTuple):
    """A committed entry would be replaced: somebody's disk lost something that had been acknowledged."""

    at: int


class Held(NamedTuple):
    """All of it is here already, up to `verified`; what follows stays (it may be newer)."""

    verified: int


class New(NamedTuple):
    """From `prev_index` + 1 on the entries are new (or replace uncommitted ones that conflict)."""

    prev_index: int
    prev_term: int
    entries: list[Entry]


Plan = Rejected | Diverged | Held | New


def plan(log: GroupLog, commit_index: int, message: Append, matched: bool) -> Plan:
    """`matched`: an entry of this leader (of this term) at or above the log's base was found equal before."""
    prev_index, prev_term = message.prev_index, message.prev_term
    entries = message.entries
    base = log.base_index
    if prev_index < base:
        if not matched:
            # The state may have been fetched from a replica that knew a newer leader than this one: what is below
            # the base is only equal if the base is.
            return Rejected(base + 1)
        end = prev_index + len(entries)
        if end <= base:
            return Held(end)
        entries = entries[base - prev_index :]
        prev_index, prev_term = base, log.base_term
    if prev_index == log.last_index and prev_term == log.last_term:
        return New(prev_index, prev_term, entries) if entries else Held(prev_index)
    if prev_index > log.last_index:
        return Rejected(log.last_index + 1)
    if log.term_at(prev_index) != prev_term:
        if prev_index <= commit_index:
            return Diverged(prev_index)
        return Rejected(max(commit_index + 1, log.first_index_of_term(prev_index)))
    held = 0
    last = log.last_index
    for _, index, term, _ in entries:
        if index > last or log.term_at(index) != term:
            break
        held += 1
    if held == len(entries):
        return Held(prev_index + held)
    if held:
        _, prev_index, prev_term, _ = entries[held - 1]
        entries = entries[held:]
    if prev_index < last and prev_index < commit_index:
        return Diverged(prev_index + 1)
    return New(prev_index, prev_term, entries)
