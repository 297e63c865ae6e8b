"""A stream against one that it was published into anew (`restore --mode fence|msgid --source-seq`).

Sequences and times are new there, gaps are closed, and publishing leaves headers of its own, so subjects and payloads
are compared, by the header `Jc-Source-Seq`: each message once, and those of one subject in their order.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession

from jetcluster.pipeline.copies import Copy

SHOWN: Final = 20

_PLACED: Final = """
SELECT try_cast(headers['Jc-Source-Seq'][0] AS bigint) AS seq, seq AS at, subject, xxhash64(subject, data) AS hash
FROM {rows}
"""

_COMPARED: Final = """
WITH mine AS (SELECT seq, xxhash64(subject, data) AS hash FROM {ours}),
placed AS (SELECT *, count(*) OVER (PARTITION BY seq) AS times,
                  lag(at) OVER (PARTITION BY subject ORDER BY seq, at) AS before FROM {theirs} WHERE seq IS NOT NULL)
SELECT seq, at, CASE WHEN mine.hash IS NULL THEN 'extra' WHEN placed.hash IS NULL THEN 'missing'
                     WHEN mine.hash <> placed.hash THEN 'differs' WHEN times > 1 THEN 'twice'
                     WHEN before > at THEN 'reordered' END AS kind
FROM mine FULL JOIN placed USING (seq)
"""


def compared(session: SparkSession, ours: Copy, theirs: Copy, last: int, their_last: int) -> dict[str, Any]:
    """{messages, unmarked, kinds: {kind: count}, first: [{seq, at, kind}, ...]}. `at`: the sequence in the other one.
    `unmarked`: messages there without the header, which were not restored; they are left out."""
    mine = _rows(session, ours, last, "seq,subject,data")
    placed = session.sql(_PLACED, rows=_rows(session, theirs, their_last, "seq,subject,headers,data")).persist()
    try:
        rows = session.sql(_COMPARED, ours=mine, theirs=placed).persist()
        counts = {row.kind: row["count"] for row in rows.groupBy("kind").count().collect()}
        first: list[Row] = rows.where("kind IS NOT NULL").orderBy("seq", "at").limit(SHOWN).collect()
        unmarked = placed.where("seq IS NULL").count()
        rows.unpersist()
    finally:
        placed.unpersist()
    return {
        "messages": sum(counts.values()),
        "unmarked": unmarked,
        "kinds": {kind: count for kind, count in sorted(counts.items(), key=str) if kind},
        "first": [row.asDict() for row in first],
    }


def _rows(session: SparkSession, copy: Copy, last: int, columns: str) -> DataFrame:
    return session.read.format("jetstream").options(**copy.reading(1, last, columns)).load()
