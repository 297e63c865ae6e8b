"""Atomic batches: of each batch all messages are stored, next to each other and in order, or none.

A batch's messages have the values `<batch>:0`, `<batch>:1`, ...; the operation `batch` has `count` messages and, when
acked, the sequence of the last one.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

_BATCHES: Final = """
SELECT history, workload, batch, any_value(replicas) AS replicas,
       max_by(struct(type, count, seq, t0, t1), struct(t0, op)) FILTER (WHERE f = 'batch') AS sent,
       collect_list(struct(seq, msg_id, replica)) FILTER (WHERE f = 'stored') AS rows
FROM (SELECT *, if(f = 'batch', msg_id, regexp_extract(msg_id, '(?s)^(.*):[^:]*$', 1)) AS batch
      FROM {operations} JOIN {profile} USING (history, workload)
      WHERE batches AND (f = 'batch' OR (f = 'stored' AND seq > 0)))
GROUP BY history, workload, batch
"""

_KINDS: Final = """
WITH parts AS (
    SELECT history, workload, batch, sent, replica,
           array_sort(filter(rows, row -> row.replica = b.replica)) AS parts
    FROM (SELECT *, explode(replicas) AS replica FROM {batches}) AS b),
kinds AS (
    SELECT *, CASE
        WHEN size(parts) = 0 THEN if(sent.type = 'ok', 'lost', NULL)
        WHEN sent IS NULL OR sent.type = 'fail' THEN 'phantom'
        WHEN size(parts) <> sent.count OR NOT forall(
             transform(parts, (part, at) -> part.seq = get(parts, 0).seq + at AND part.msg_id = concat(batch, ':', at)),
             fits -> fits) THEN 'broken batch'
        WHEN sent.type = 'ok' AND sent.seq <> element_at(parts, -1).seq THEN 'moved' END AS kind
    FROM parts)
SELECT history, workload, kind, batch AS msg_id, coalesce(get(parts, 0).seq, sent.seq) AS seq, replica,
       CASE kind WHEN 'phantom' THEN 0D WHEN 'lost' THEN sent.t1 ELSE sent.t0 END AS t,
       CASE kind
       WHEN 'lost' THEN format_string('batch %s, acked as %d, is not on %s', batch, sent.seq, replica)
       WHEN 'phantom' THEN format_string('%d of batch %s on %s: it was %s', size(parts), batch, replica,
                                         if(sent IS NULL, 'never sent', 'refused'))
       WHEN 'moved' THEN format_string('batch %s, acked as %d, ends at %d on %s', batch, sent.seq,
                                       element_at(parts, -1).seq, replica)
       ELSE format_string('%d of %d of batch %s on %s, as %d..%d', size(parts), sent.count, batch, replica,
                          get(parts, 0).seq, element_at(parts, -1).seq) END AS text
FROM kinds WHERE kind IS NOT NULL
"""


def check(operations: DataFrame, profile: DataFrame) -> list[DataFrame]:
    spark = operations.sparkSession
    return [spark.sql(_KINDS, batches=spark.sql(_BATCHES, operations=operations, profile=profile))]
