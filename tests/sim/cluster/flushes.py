"""The judge of flushes: the disk of the data store has all that the journal may forget, also after a loss of power at
that moment. The harm takes a second accident, of all servers, before the next flush."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from jetcluster.cluster.meta_replica import STATE_KEY
from jetcluster.meta.machine import MetaMachine
from jetcluster.store import keys
from jetcluster.store.blocks import decode_state
from jetcluster.store.rocks_kv import RocksKv
from testkit.sim.deployment import Deployment, Violation
from tests.sim.cluster.invariants import Replica, jetstream_of, replicas

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream

EVERY = 1.0
"""Seconds between two looks; what was forgotten too early stays so until the next flush."""
_APPLIED = struct.Struct("<BQ")
_TERM = struct.Struct("<Q")


class Flushes:
    """`begin` has everything looked at from then on; what is broken is raised as Violation from the scheduler."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        """Counts the replicas that had something on their disk and were looked at."""
        self._deployment = deployment

    def begin(self) -> None:
        self.look()
        self._deployment.scheduler.after(EVERY, self.begin)

    def look(self) -> None:
        for wrong in self.wrong():
            raise Violation(f"at {self._deployment.scheduler.now:.3f}: {wrong}")

    def wrong(self) -> Iterator[str]:
        for replica in replicas(self._deployment):
            jetstream = jetstream_of(replica.machine)
            log = replica.group.log
            if not log.durable or replica.group.stopped or not settled(replica, jetstream):
                continue
            if replica.machine.disk_troubled(full=False):  # a full disk takes nothing of what it has
                continue
            flushed = _flushed(replica, jetstream)
            if flushed is None:
                continue
            self.looked += flushed > 0
            if log.compactable > flushed:
                text = f"its journal may forget up to {log.compactable}, and the data store has {flushed} on disk"
                yield f"{replica.where}: {text}"


def settled(replica: Replica, jetstream: JetStream) -> bool:
    """Its state is its own, not one that is on its way here."""
    stream = replica.stream
    if stream is None:
        whole = not jetstream.meta.wants_state
    else:
        whole = not (stream.installing or stream.rejected or stream.store.incomplete)
    return whole and not (replica.group.log.fetching or replica.group.log.damaged)


def _flushed(replica: Replica, jetstream: JetStream) -> int | None:
    """The index of the state on disk; None where it is none of a data store."""
    if replica.stream is None:
        kv: Any = jetstream.services.commits.kv
        found = on_disk(kv, STATE_KEY)
        if found is None:
            return 0
        machine = MetaMachine()
        machine.restore(found[_TERM.size :])
        return machine.applied_index
    kv = replica.stream.commits.kv
    return applied(kv, _flushed_of(kv), replica.gid) if isinstance(kv, RocksKv) else None


def applied(kv: RocksKv, pairs: Mapping[bytes, bytes], gid: int) -> int:
    """The index of the state of a stream among the pairs of its data store; 0 for none."""
    found = pair(kv, pairs, keys.stream_prefix(keys.STATE, gid))
    state = None if found is None else decode_state(found)[1]
    return 0 if state is None else int(_APPLIED.unpack_from(state)[1])


def on_disk(kv: RocksKv, key: bytes) -> bytes | None:
    """The pair under a key that a loss of power would leave."""
    return pair(kv, _flushed_of(kv), key)


def _flushed_of(kv: RocksKv) -> Mapping[bytes, bytes]:
    flushed: Mapping[bytes, bytes] = attrgetter("_db.store.flushed")(kv)
    return flushed


def pair(kv: RocksKv, pairs: Mapping[bytes, bytes], key: bytes) -> bytes | None:
    """One of the pairs of a data store, which may be encrypted."""
    seal: Any = getattr(kv, "_seal", None)
    if seal is None:
        return pairs.get(key)
    value = pairs.get(seal.key(key))
    return None if value is None else bytes(seal.opened(seal.key(key), value))
