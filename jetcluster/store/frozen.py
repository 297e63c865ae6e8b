"""The messages of a stream as of one commit, read from a snapshot of the `RocksKv` while the stream goes on."""

from __future__ import annotations

from collections.abc import Iterator

from jetcluster.store import keys
from jetcluster.store.api import DamagedError, Msg
from jetcluster.store.blocks import decode_block, decode_info
from jetcluster.store.kv import KvDamagedError
from jetcluster.store.rocks_snapshot import Snapshot
from jetcluster.store.state_record import decode_state

PAUSE_EVERY = 2048
"""Records looked at between two pauses."""


def messages(snapshot: Snapshot, stream: int) -> Iterator[list[Msg]]:
    """All live messages, ascending, block by block. An empty list is a pause: a good place to let others run.
    Every block is verified; raises DamagedError."""
    try:
        yield from _messages(snapshot, stream)
    except KvDamagedError as error:
        raise DamagedError(0, keys.MAX_SEQ) from error


def _messages(snapshot: Snapshot, stream: int) -> Iterator[list[Msg]]:
    state_key = keys.stream_prefix(keys.STATE, stream)
    records = list(snapshot.scan(state_key, keys.stream_end(keys.STATE, stream)))
    if not records:
        return
    counters, _ = decode_state(records[0][1])
    if not counters.messages:
        return
    dead: dict[int, int] = {}
    infos = snapshot.scan(keys.stream_prefix(keys.INFO, stream), keys.stream_end(keys.INFO, stream))
    for number, (key, value) in enumerate(infos, 1):
        bits = decode_info(key, value)[3]
        if bits:
            dead[keys.seq_of(key)] = bits
        if number % PAUSE_EVERY == 0:
            yield []
    found = 0
    for key, value in snapshot.scan(keys.stream_prefix(keys.BLOCK, stream), keys.stream_end(keys.BLOCK, stream)):
        first = keys.seq_of(key)
        ts, batch = decode_block(key, value)
        bits = dead.get(first, 0)
        live = [
            Msg(first + i, ts + i, *batch.message(i))
            for i in range(batch.count)
            if first + i >= counters.first_seq and not bits >> i & 1
        ]
        found += len(live)
        yield live
    if found != counters.messages:
        raise DamagedError(counters.first_seq, counters.last_seq)
