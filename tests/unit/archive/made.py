"""Rows and manifests of archives, made up."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from jetcluster.archive.manifest import COLUMNS, ArchivedFile, Manifest
from jetcluster.arrow.convert import digest
from jetcluster.arrow.schema import arrow_schema

NOON = 1_795_348_800_000_000_000
"""2026-11-22T12:00:00Z in Unix nanoseconds."""
SECOND = 10**9


def batch(seqs: list[int], subjects: list[str], *, step: int = SECOND, raw: dict[int, bytes] | None = None) -> Any:
    """One row per sequence, its subject by turns, its time `step` nanoseconds after the one before it."""
    rows: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for seq in seqs:
        name, own = subjects[seq % len(subjects)], (raw or {}).get(seq)
        at = NOON + seq * step
        block = b"NATS/1.0\r\nA: 1\r\n\r\n" if seq % 3 == 0 else None
        values = {
            "seq": seq, "subject": own.decode(errors="replace") if own else name, "time": at // 1000, "time_ns": at,
            "headers": [("A", ["1"])] if block else None, "headers_raw": block, "subject_raw": own,
            "data": b"%d" % seq, "digest": digest(own or name.encode(), block or b"", b"%d" % seq),
        }  # fmt: skip
        for column, value in values.items():
            rows[column].append(value)
    schema = arrow_schema(COLUMNS)
    return pa.RecordBatch.from_arrays([pa.array(rows[f.name], f.type) for f in schema], schema=schema)


def manifest(number: int, start: int, end: int, *, since: int | None = None, **more: Any) -> Manifest:
    file = ArchivedFile(f"stream=ORDERS/day=2026-11-22/{start}.parquet", 10, end - start, (start, end - 1), (1, 2))
    given = {
        "stream": "ORDERS", "created": "2026-11-22T00:00:00Z", "subjects": [">"], "rows": end - start,
        "first_seq": start, "last_seq": end - 1, "first_time": 1, "last_time": 2, "digest": "0" * 16,
        "places": "f" * 16, "files": [file], "config": {"name": "ORDERS"}, "read": {},
    } | more  # fmt: skip
    return Manifest(number=number, since=number if since is None else since, start=start, end=end, **given)
