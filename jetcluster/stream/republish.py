"""`Republisher`: what a stream tells the world about each message it stores.

Only the leader does it, as an effect of apply: what it was told right before storing goes out right after the command.
A new leader applies what the old one left over and so may repeat it, or the old one may have died before: at most once
is promised, as upstream; subscribers see gaps in Nats-Last-Sequence.
"""

from __future__ import annotations

from jetcluster.model import times
from jetcluster.protocol.subjects import is_valid_literal
from jetcluster.store.batch import MAX_SUBJECT, Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.rules import StreamRules


class Republisher:
    """`take` is a `staging.OnAppend`."""

    def __init__(self, rules: StreamRules, store: BlockStore) -> None:
        assert rules.republish is not None
        self._rules = rules
        self._store = store
        self._name = rules.name.encode()
        self.messages: list[tuple[bytes, bytes, bytes]] = []
        """(subject, header block, payload), for the bus; the sender clears it."""

    def take(self, batch: Batch, first_seq: int, ts: int) -> None:
        """Before the batch is stored: what the last sequence of its subjects was, only the store knows."""
        transform = self._rules.republish
        assert transform is not None
        last = {subject: self._store.last_seq_of(subject) for subject in batch.subjects}
        headers_only = self._rules.republish_headers_only
        for i in range(batch.count):
            subject, headers, payload = batch.message(i)
            seq, before = first_seq + i, last[subject]
            last[subject] = seq
            target = transform.match(subject, ts + i)
            if target is None or len(target) > MAX_SUBJECT or not is_valid_literal(target):
                continue
            added = b"Nats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n" % (
                self._name,
                subject,
                seq,
                times.rfc3339_bytes(ts + i),
            )
            added += b"Nats-Last-Sequence: %d\r\n" % before
            if headers_only:
                added += b"Nats-Msg-Size: %d\r\n" % len(payload)
            block = b"%b%b\r\n" % (headers[:-2] if headers else b"NATS/1.0\r\n", added)
            self.messages.append((target, block, b"" if headers_only else payload))
