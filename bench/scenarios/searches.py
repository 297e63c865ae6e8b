"""Measures what searches over many subjects and checks of large configurations take, and how long at a time
(docs/limits.md).

    python -m bench searches [--subjects 300000] [--only NAME]

Processor time, on one stream in RocksDB with one message per subject, `k.<n>.<a to h>`, and blocks of 500. The longest
step is what everything else on the loop waits for.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from jetcluster.model.stream import StreamConfig
from jetcluster.model.stream_rules import check_config
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.stream.read import direct_get, msg_get
from jetcluster.stream.read.direct_get import DirectGet
from jetcluster.stream.read.msg_get import subjects_page

BLOCK = 500
ENDS = b"abcdefgh"
Steps = Generator[None, None, Any]


def filled(path: Path, subjects: int) -> BlockStore:
    kv = RocksKv(path)
    store = BlockStore(kv, 1, memory=False)
    for start in range(0, subjects, BLOCK):
        some = [b"k.%d.%c" % (i, ENDS[i % 8]) for i in range(start, start + BLOCK)]
        store.append(Batch.of(some, [], [b"x" * 32] * BLOCK), store.last_seq + 1, store.last_ts + 1)
        kv.commit()
    return store


def get(store: BlockStore, **fields: Any) -> Steps:
    found = DirectGet("S", store).open(json.dumps(fields).encode())
    if isinstance(found, Generator):
        yield from found


def looked_for(store: BlockStore, count: int) -> Steps:
    """Answer after answer, up to the last message."""
    ids, at = [f"id:{number}" for number in range(count)], 1
    while at <= store.last_seq:
        wish = {"seq": at, "next_by_subj": "k.>", "msg_id_prefixes": ids}
        request = msg_get.decode(json.dumps(wish).encode())
        yield from direct_get.preparing(store, request) or ()
        found = yield from msg_get.search(store, request)
        at = json.loads(found)["msg_ids"]["searched"] + 1


def wild(count: int) -> list[str]:
    return [f"k.*.x{i}" for i in range(count)]


def at_once(work: Callable[[], object]) -> Steps:
    work()
    yield


def consumer(store: BlockStore, filters: list[bytes]) -> Steps:
    """The searches of INFO and of the first pull of a new consumer."""
    yield from store.queries.preparing(filters, 1)
    store.queries.count_any(filters, 1)
    yield
    store.next_seqs(filters, 1, 64)


def expected(store: BlockStore) -> None:
    wildcards = [b"k.*.z%d" % i for i in range(400)]
    store.find_lasts(wildcards)
    for one in wildcards:
        store.queries.last_by_subject(one)


def checked(fields: dict[str, Any]) -> Steps:
    config = StreamConfig.from_object({"name": "S", **fields}).normalised().to_wire()
    yield
    check_config(config)


SEARCHES: dict[str, Callable[[BlockStore], Steps]] = {
    "multi_last, 500 wildcards, no match": lambda s: get(s, multi_last=wild(500)),
    "multi_last, one wildcard, too many": lambda s: get(s, multi_last=["k.*.a"]),
    "multi_last, 500 wildcards, as of the middle": lambda s: get(s, multi_last=wild(500), up_to_seq=s.last_seq // 2),
    "msg_id_prefixes, all messages": lambda s: looked_for(s, 512),
    "last_by_subj, no match": lambda s: get(s, last_by_subj="k.*.y"),
    "batch of a wildcard, from the middle": lambda s: get(s, next_by_subj="k.*.b", seq=s.last_seq // 2, batch=10),
    "consumer with 4,096 wildcards": lambda s: consumer(s, [w.encode() for w in wild(4096)]),
    "400 expected wildcards (in apply)": lambda s: at_once(lambda: expected(s)),
    "STREAM.INFO, subjects_filter": lambda s: subjects_page(s, b"k.*.c"),
    "STREAM.INFO, deleted_details": lambda s: at_once(lambda: s.deleted(s.num_deleted)),
}
CHECKS: dict[str, dict[str, Any]] = {
    "10,000 subjects": {"subjects": [f"t.{i}" for i in range(10_000)]},
    "10,000 subjects with wildcards": {"subjects": [f"t.*.{i}.>" for i in range(10_000)]},
    "6,000 sources": {"sources": [{"name": f"x{i}"} for i in range(6000)]},
    "1,500 transforms": {
        "sources": [{"name": "UP", "subject_transforms": [{"src": f"s.*.{i}", "dest": f"q.{i}"} for i in range(1500)]}]
    },
}


def measured(steps: Steps) -> tuple[int, float, float]:
    times = []
    while True:
        begun = time.process_time()
        try:
            next(steps)
        except StopIteration:
            times.append(time.process_time() - begun)
            return len(times), max(times), sum(times)
        times.append(time.process_time() - begun)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--subjects", type=int, default=300_000)
    parser.add_argument("--only", choices=[*SEARCHES, *CHECKS])


def main(args: argparse.Namespace) -> None:
    print("| what | steps | longest | together |\n|---|---|---|---|")
    for name, fields in CHECKS.items():
        if args.only in (None, name):
            print(row(name, checked(fields)), flush=True)
    with tempfile.TemporaryDirectory() as path:
        store = filled(Path(path) / "kv", args.subjects)
        gc.freeze()
        for name, search in SEARCHES.items():
            if args.only in (None, name):
                print(row(name, search(store)), flush=True)


def row(name: str, steps: Steps) -> str:
    count, longest, together = measured(steps)
    return f"| {name} | {count} | {longest * 1000:.1f} ms | {together:.3f} s |"
