"""The place in its upstream at which a link begins to read."""

from __future__ import annotations

from typing import Final

from jetcluster.mirror.ports import LinkTarget
from jetcluster.mirror.upstream import Start, Upstream
from jetcluster.model import times
from jetcluster.store.block_store import BlockStore

CHUNK: Final = 512
SEARCHED: Final = 65_536
"""Messages looked through for one of a source that nothing else is known of."""


def start_of(upstream: Upstream, target: LinkTarget, identity: bytes) -> Start:
    """`identity` is the upstream's of now. Raises DamagedError."""
    store = target.store
    cursor = target.cursor(upstream.key)
    if upstream.mirror:
        return Start(store.last_seq, configured=not store.last_seq and cursor is None)
    if cursor is not None:
        renewed = b"" not in (identity, cursor.identity) and identity != cursor.identity
        if renewed:
            return Start(0)
        return Start(cursor.seq, configured=not cursor.seq)
    found = newest_of(upstream, store) if store.messages else None
    if found is not None:
        return Start(0 if found[1] not in (b"", identity) else found[0])
    if store.messages and store.first_seq > 1:
        return Start(0, time=times.rfc3339(store.last_ts))
    return Start(0, configured=True)


def newest_of(upstream: Upstream, store: BlockStore) -> tuple[int, bytes] | None:
    """Place that the newest stored message of the source names: after a restore from an archive, or when a source comes
    back that was taken out, that is all there is. (sequence, identity) or None."""
    high = store.last_seq
    low = max(store.first_seq, high - SEARCHED)
    while high >= low:
        start = max(low, high - CHUNK + 1)
        for message in reversed(store.read(range(start, high + 1))):
            found = upstream.seq_of(message)
            if found is not None:
                return found
        high = start - 1
    return None
