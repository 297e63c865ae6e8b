"""Compares what a server holds in memory with what a start would make of its stores: all of it, by reflection, so that
a new field is compared as well. A restart reads the stores of a moment, in a few seeds; this reads those of each
replica of each seed."""

from __future__ import annotations

import enum
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Set
from operator import attrgetter
from types import BuiltinMethodType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from jetcluster.cluster.orphans import Orphans
from jetcluster.consumer.state.table import ConsumerTable
from jetcluster.meta.machine import MetaMachine
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.machine import StreamMachine
from tests.sim.cluster.state_views import NO_STATE, VIEWS, faults

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.replica.stream_replica import StreamReplica
    from jetcluster.store.rocks_kv import RocksKv

CALLABLE = (FunctionType, BuiltinMethodType, MethodType)
PLAIN = (int, float, str, bytes, type(None), enum.Enum, range)


class Glass:
    """A data store through which its streams can be read, and nothing is written."""

    def __init__(self, kv: RocksKv) -> None:
        self.get, self.floor, self.ceiling = kv.get, kv.floor, kv.ceiling
        self.scan, self.scan_after, self.chunks = kv.scan, kv.scan_after, kv.chunks

    def _nothing(self, *args: object) -> None:
        pass

    put = put_new = delete = delete_each = delete_range = outdated = at_commit = _nothing


def server(jetstream: JetStream) -> Iterator[str]:
    """Differences between the memory of one server and its stores. Raises what opening a store raises."""
    for live in jetstream.replicas.values():
        if not live.rejected:
            yield from (f"{live.assignment.name}: {text}" for text in replica(live))
    yield from meta(jetstream.meta.machine)
    yield from removed(jetstream)


def replica(live: StreamReplica) -> Iterator[str]:
    """Differences between the memory of a replica and its store. Raises what opening a store raises."""
    store = live.store
    if store.dirty or store.incomplete:
        return  # the next commit writes the rest
    rules = live.machine.rules
    glass: Any = Glass(live.commits.kv)
    again = BlockStore(glass, live.assignment.gid, memory=rules.memory)
    table = ConsumerTable(again)
    machine = StreamMachine(live.machine.name, rules, again, table)
    yield from differences(live.machine, machine)
    messages = zip(store.queries.scan(b">", 1), again.queries.scan(b">", 1), strict=True)
    yield from (f"{_short(one)} is {_short(other)} on disk" for one, other in messages if one != other)


def meta(live: MetaMachine) -> Iterator[str]:
    """Differences between the meta group's state and what its snapshot brings."""
    again = MetaMachine()
    again.restore(live.snapshot())
    yield from differences(live, again)


def removed(jetstream: JetStream) -> Iterator[str]:
    """Yields how removed replicas in a server's memory differ from those in its store."""
    live = jetstream.local.orphans
    kv, raft = attrgetter("_kv", "_raft")(live)
    again = Orphans(Glass(kv), raft, jetstream.runtime.log)  # type: ignore[arg-type]
    mine, its = ({gid: one.revision(gid) for gid in _deleted(one)} for one in (live, again))
    if mine != its:
        yield f"removed replicas are {mine}, and {its} when they are read again"


def _deleted(orphans: Orphans) -> list[int]:
    return list(attrgetter("_deleted")(orphans))


def differences(live: object, again: object) -> Iterator[str]:
    """All differences that can be reached from two objects, each with its place."""
    yield from _compared(type(live).__name__, live, again, {})


def _compared(where: str, live: Any, again: Any, known: dict[int, object]) -> Iterator[str]:
    if live is again or id(live) in known:
        return
    if isinstance(live, PLAIN) or type(live) is not type(again):
        if live != again and not (isinstance(live, CALLABLE) or isinstance(again, CALLABLE)):
            yield f"{where} is {_short(live)}, and {_short(again)} when it is read again"
        return
    known[id(live)] = live
    if isinstance(live, Mapping):
        for key in [*live, *(key for key in again if key not in live)]:
            if key not in live or key not in again:
                yield f"{where}[{key!r}] is {_short(live.get(key))}, and {_short(again.get(key))} when it is read again"
            else:
                yield from _compared(f"{where}[{key!r}]", live[key], again[key], known)
    elif isinstance(live, list | tuple | deque | array):
        if len(live) != len(again):
            yield f"{where} has {len(live)} entries, and {len(again)} when it is read again"
        for at, (one, other) in enumerate(zip(live, again, strict=False)):
            yield from _compared(f"{where}[{at}]", one, other, known)
    elif isinstance(live, Set):
        if live != again:
            yield f"{where} is {_short(live)}, and {_short(again)} when it is read again"
    elif type(live).__module__.startswith("jetcluster."):
        yield from (f"{where}: {fault}" for fault in faults(live))
        mine, its = _state(live), _state(again)
        for name in mine:
            yield from _compared(f"{where}.{name}", mine[name], its.get(name), known)


def _state(value: object) -> Mapping[str, Any]:
    view = VIEWS.get(type(value))
    if view is not None:
        return view(value)
    left_out = NO_STATE.get(type(value).__name__, frozenset())
    return {name: getattr(value, name, None) for name in _fields(value) if name not in left_out}


def _fields(value: object) -> Iterator[str]:
    for one in type(value).__mro__:
        slots: Any = one.__dict__.get("__slots__", ())
        yield from [slots] if isinstance(slots, str) else slots
    yield from getattr(value, "__dict__", {})


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 120 else f"{text[:117]}..."
