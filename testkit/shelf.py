"""`Shelf`: blocks of a stream in a store, and their messages in a plain dict."""

from __future__ import annotations

from typing import Final

from jetcluster.store import keys
from jetcluster.store.api import Msg
from jetcluster.store.batch import Batch
from jetcluster.store.block_reader import BlockReader
from jetcluster.store.blocks import BlockCache, BlockTable, encode_block
from testkit.twins.mem_kv import MemKv

STREAM: Final = 7


class Shelf:
    """Blocks of `counts` messages from sequence 1 on."""

    def __init__(self, *counts: int, cached: bool = True) -> None:
        self.kv = MemKv()
        self.table = BlockTable()
        self.cache = BlockCache(1 << 20 if cached else 0)
        self.reader = BlockReader(self.kv, STREAM, self.table, self.cache)  # type: ignore[arg-type]
        self.messages: dict[int, Msg] = {}
        first = 1
        for count in counts:
            self.add(first, count)
            first += count

    def add(self, first: int, count: int) -> None:
        made = [
            Msg(seq, 1000 + seq, b"s.%d" % (seq % 3), b"NATS/1.0\r\nN: %d\r\n\r\n" % seq, b"p" * (seq % 7))
            for seq in range(first, first + count)
        ]
        batch = Batch.of([m.subject for m in made], [m.headers for m in made], [m.payload for m in made])
        self.put(first, 1000 + first, batch.raw)
        self.table.add(first, count, 1000 + first, batch.record_bytes())
        self.messages |= {message.seq: message for message in made}

    def put(self, first: int, ts: int, raw: bytes) -> None:
        key = keys.block(STREAM, first)
        self.kv.put(key, encode_block(key, ts, raw))

    def delete(self, *seqs: int) -> None:
        for seq in seqs:
            at = self.table.find(seq)
            first = self.table.firsts[at]
            self.table.set_bits(at, self.table.bits.get(first, 0) | 1 << (seq - first), self.table.sizes[at] - 1)
            del self.messages[seq]
        self.reader.version += 1
