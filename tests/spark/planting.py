"""Damage that no checksum shows: a stopped node's store holds another payload, with all checks made anew. This is what
an audit is for; whatever a checksum tells, the server itself finds (tests/cluster/test_damage.py)."""

from __future__ import annotations

from rocksdict import AccessType, Options, Rdict

from jetcluster.store import keys
from jetcluster.store.batch import Batch
from jetcluster.store.blocks import decode_block, encode_block
from testkit.harness import Node


def change_payload(node: Node, old: bytes, new: bytes) -> int:
    """In all blocks of the stopped `node`; how many messages were changed. Both payloads have one length."""
    assert not node.alive and len(old) == len(new)
    store = Rdict(str(node.store / "jetstream" / "data"), Options(raw_mode=True), access_type=AccessType.read_write())
    changed = 0
    try:
        for key, value in [(key, value) for key, value in store.items() if key[0] == keys.BLOCK and old in value]:
            ts, batch = decode_block(key, value)
            rows = list(batch.messages())
            payloads = [new if payload == old else payload for _, _, payload in rows]
            changed += sum(payload == old for _, _, payload in rows)
            again = Batch.encode([subject for subject, _, _ in rows], [block for _, block, _ in rows], payloads)
            store[key] = encode_block(key, ts, again)
        store.flush()
    finally:
        store.close()
    return changed
