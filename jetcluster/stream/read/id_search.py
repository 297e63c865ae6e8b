"""Search for stored messages by the beginnings of their `Nats-Msg-Id` (`msg_id_prefixes` of MSG.GET, docs/reads.md).

An owner of dead letters looks so for those that are stored already: a stream itself knows the ids of its duplicate
window only.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final

from jetcluster.budget import Steps
from jetcluster.protocol import headers as header_block
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.read.get_request import GetRequest, SetBackError

MAX_PREFIXES: Final = 512
MAX_LOOKED_AT: Final = 16_384
MAX_LOOKED_AT_BYTES: Final = 8 << 20
"""Messages, and about their bytes, that one answer is of; the next request goes on."""
MAX_FOUND: Final = 1024
MAX_FOUND_BYTES: Final = 256 << 10
"""Ids, and their bytes, of one answer; a longer one is an answer of its own."""
MAX_PREFIX_BYTES: Final = 4 << 10
STEP_MESSAGES: Final = 128
STEP_BYTES: Final = 128 << 10


def is_sound(request: GetRequest) -> bool:
    """Returns False for a request whose `msg_id_prefixes` cannot be answered."""
    prefixes = request.msg_id_prefixes
    lengths = [len(prefix) for prefix in prefixes]
    return (
        bool(request.next_by_subj) and len(lengths) <= MAX_PREFIXES and all(0 < n <= MAX_PREFIX_BYTES for n in lengths)
    )


def search(store: BlockStore, start: int, request: GetRequest) -> Steps[str]:
    """Returns the JSON object `{"searched", "found"}` of the messages from sequence `start` on whose subject matches:
    ids that begin with a prefix, and the sequence up to which all that were stored at the begin were looked at. Raises
    SetBackError, DamagedError, KvError."""
    prefixes, shared = tuple(request.msg_id_prefixes), common_beginning(request.msg_id_prefixes)
    at, last = start, store.last_seq
    messages, size, room, found = MAX_LOOKED_AT, MAX_LOOKED_AT_BYTES, MAX_FOUND_BYTES, list[bytes]()
    while at <= last and messages > 0 and size > 0 and room > 0 and len(found) < MAX_FOUND:
        if at > start:
            yield
            if store.last_seq < last:
                raise SetBackError(f"the stream ended at {last}, and now at {store.last_seq}")
        view = store.view(request.next_by_subj, at)
        columns = view.take(min(STEP_MESSAGES, messages), STEP_BYTES)
        view.close()
        at = columns.seqs[-1] + 1 if columns.seqs else last + 1
        for seq, block in zip(columns.seqs, columns.headers, strict=True):
            if shared in block:
                letter = header_block.get(block, b"Nats-Msg-Id")
                if letter is not None and letter.startswith(prefixes):
                    room -= len(letter)
                    if room < 0 and found:
                        at = seq  # the next answer begins with it
                        break
                    found.append(letter)
        messages -= len(columns.seqs)
        size -= sum(map(len, columns.headers)) + sum(map(len, columns.payloads))
    ids = [letter.decode("utf-8", "surrogateescape") for letter in found]
    return json.dumps({"searched": max(at - 1, 0), "found": ids}, separators=(",", ":"))


def common_beginning(texts: Collection[bytes]) -> bytes:
    """Returns what all of them, at least one, begin with."""
    first, last = min(texts), max(texts)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]
