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
from jetcluster.stream.read.get_request import GetRequest

MAX_PREFIXES: Final = 512
MAX_LOOKED_AT: Final = 16_384
MAX_LOOKED_AT_BYTES: Final = 8 << 20
"""Messages, and about their bytes, that one answer is of; the next request goes on."""
MAX_FOUND: Final = 1024
STEP_MESSAGES: Final = 128
STEP_BYTES: Final = 128 << 10


def is_sound(request: GetRequest) -> bool:
    """Returns False for a request whose `msg_id_prefixes` cannot be answered."""
    prefixes = request.msg_id_prefixes
    return bool(request.next_by_subj) and len(prefixes) <= MAX_PREFIXES and all(prefixes)


def search(store: BlockStore, start: int, request: GetRequest) -> Steps[str]:
    """Returns the JSON object `{"searched", "found"}` of the messages from sequence `start` on whose subject matches:
    ids that begin with a prefix, and the sequence up to which all that were stored at the begin were looked at. Raises
    DamagedError, KvError."""
    prefixes, shared = tuple(request.msg_id_prefixes), common_beginning(request.msg_id_prefixes)
    at, last = start, store.last_seq
    messages, size, found = MAX_LOOKED_AT, MAX_LOOKED_AT_BYTES, list[bytes]()
    while at <= last and messages > 0 and size > 0 and len(found) < MAX_FOUND:
        if at > start:
            yield
        view = store.view(request.next_by_subj, at)
        columns = view.take(min(STEP_MESSAGES, messages), STEP_BYTES)
        view.close()
        for block in columns.headers:
            if shared in block:
                letter = header_block.get(block, b"Nats-Msg-Id")
                if letter is not None and letter.startswith(prefixes):
                    found.append(letter)
        at = columns.seqs[-1] + 1 if columns.seqs else last + 1
        messages -= len(columns.seqs)
        size -= sum(map(len, columns.headers)) + sum(map(len, columns.payloads))
    ids = [letter.decode("utf-8", "surrogateescape") for letter in found]
    return json.dumps({"searched": max(at - 1, 0), "found": ids}, separators=(",", ":"))


def common_beginning(texts: Collection[bytes]) -> bytes:
    """Returns what all of them, at least one, begin with."""
    first, last = min(texts), max(texts)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]
