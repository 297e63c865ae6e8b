"""Registers with compare-and-set: linearizable writes and leader reads, per subject.

A version of a register is the sequence of the message that made it. Nothing that began after another operation had
ended may show, or make, an older version. `direct` reads may be old, for any replica answers them; their values are
checked.
All windows are inside one key, so the rows are brought together by key once.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jetcluster.pipeline.rules.order import seen_before

_KEY: Final = ("history", "workload", "subject")

_REGISTERS: Final = """
SELECT o.* FROM {operations} AS o JOIN {profile} USING (history, workload)
WHERE registers AND (f IN ('cas', 'read', 'direct') OR (f = 'stored' AND seq > 0))
"""

_STALE: Final = """
SELECT history, workload, if(f = 'read', 'stale', 'wrong value') AS kind, msg_id, seq, '' AS replica, t0 AS t,
       format_string('%s of %s as of %d by %s began at %.3f; %s of %d by %s had ended at %.3f', f, subject, seq, client,
                     t0, seen.f, seen.seq, seen.client, -seen.age) AS text
FROM {swept} WHERE (f = 'read' AND seq < seen.seq) OR (f = 'cas' AND seen.f = 'read' AND seq <= seen.seq)
"""

_KNOWN: Final = """
SELECT *, f = 'cas' AND type = 'ok' AS won,
       max(if(f = 'stored', seq, NULL)) OVER (PARTITION BY history, workload, subject ORDER BY seq
                                                      RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before,
       bool_or(f = 'stored') OVER key AS known,
       min_by(msg_id, if(f = 'stored', op, NULL)) OVER version AS told,
       min(if(f = 'stored', op, NULL)) OVER version = op AS is_version,
       min(if(f = 'cas', t0, NULL)) OVER written AS begun,
       max_by(expect, if(f = 'cas', struct(t0, op), NULL)) OVER written AS expected,
       row_number() OVER rivals AS place, first(msg_id) OVER rivals AS winner,
       last(if(f = 'cas' AND type = 'ok', seq, NULL), true)
           OVER (PARTITION BY history, workload, subject, client ORDER BY t0, op
                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS own
FROM {registers}
WINDOW key AS (PARTITION BY history, workload, subject),
       version AS (PARTITION BY history, workload, subject, seq),
       written AS (PARTITION BY history, workload, subject, msg_id),
       rivals AS (PARTITION BY history, workload, subject, expect, f = 'cas' AND type = 'ok' ORDER BY t0, op)
"""

_FOUND: Final = """
SELECT history, workload, found.kind AS kind, msg_id, seq, '' AS replica, t0 AS t, found.text AS text
FROM (SELECT *, explode(array_compact(array(
    CASE WHEN f = 'direct' AND type = 'ok' AND seq < own THEN struct('own write' AS kind, format_string(
        'direct read of %s as of %d by %s, which had written %d', subject, seq, client, own) AS text) END,
    CASE WHEN won AND place > 1 THEN struct('double cas' AS kind, format_string(
        '%s and %s both replaced version %d of %s', winner, msg_id, expect, subject) AS text) END,
    CASE WHEN is_version AND expected <> coalesce(before, 0) THEN struct('double cas' AS kind, format_string(
        '%s expected %d of %s, but is %d after %d', msg_id, expected, subject, seq, coalesce(before, 0)) AS text) END,
    CASE WHEN f NOT IN ('read', 'direct') OR type <> 'ok' OR seq = 0 THEN NULL
         WHEN told <> msg_id OR begun IS NULL THEN struct('wrong value' AS kind, format_string(
              '%s of %s by %s gave %s as %d; stored is %s', f, subject, client, msg_id, seq,
              coalesce(told, 'nothing')) AS text)
         WHEN told IS NULL AND known THEN struct('phantom' AS kind, format_string(
              '%s of %s by %s gave %s as %d, which is stored nowhere', f, subject, client, msg_id, seq) AS text)
         WHEN begun > t1 THEN struct('wrong value' AS kind, format_string(
              '%s of %s by %s gave %s before it was written', f, subject, client, msg_id) AS text) END))) AS found
      FROM {known})
"""


def check(operations: DataFrame, profile: DataFrame) -> list[DataFrame]:
    spark = operations.sparkSession
    registers = spark.sql(_REGISTERS, operations=operations, profile=profile).repartition(*_KEY)
    mark = F.struct(F.col("seq"), (-F.col("t1")).alias("age"), F.col("f"), F.col("client"))
    swept = seen_before(registers.where("type = 'ok' AND f IN ('cas', 'read')"), _KEY, mark)
    known = spark.sql(_KNOWN, registers=registers)
    return [spark.sql(_STALE, swept=swept), spark.sql(_FOUND, known=known)]
