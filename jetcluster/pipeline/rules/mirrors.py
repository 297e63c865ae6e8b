"""A mirror is a copy of its origin: the same messages under the same sequences, on each replica of the mirror.

The origin is what its replicas hold and what was acked. How far a mirror is behind is no loss, unless it said that
nothing was missing (`drained`). Reads of a mirror may be old; their values are checked.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

_ROWS: Final = """
SELECT o.history, p.workload, o.workload <> p.workload AS theirs, p.replicas, p.drained, op, f, type, replica, seq,
       subject, msg_id, client, t0, t1
FROM {operations} AS o JOIN {profile} AS p ON o.history = p.history AND o.workload IN (p.workload, p.origin)
WHERE p.mirrors AND ((f = 'publish' AND o.workload = p.origin) OR (f = 'stored' AND seq > 0)
                                OR (f = 'direct' AND type = 'ok' AND seq > 0 AND o.workload = p.workload))
"""

_VALUES: Final = """
SELECT *, theirs AND (f = 'stored' OR type = 'ok') AS is_content,
       min(if(theirs AND f = 'publish', t0, NULL)) OVER value AS begun,
       collect_set(if(theirs AND (f = 'stored' OR type = 'ok'), seq, NULL)) OVER value AS places,
       count_if(f = 'stored') OVER (PARTITION BY history, workload, msg_id, theirs, replica) AS times,
       min(op) OVER (PARTITION BY history, workload, msg_id, theirs, replica, f) = op AS once
FROM {rows} WINDOW value AS (PARTITION BY history, workload, msg_id)
"""

_SEQUENCES: Final = """
SELECT history, workload, seq, any_value(replicas) AS replicas, bool_or(drained) AS drained,
       max_by(struct(subject, msg_id), struct(f = 'stored', op)) FILTER (WHERE is_content) AS content,
       collect_list(struct(f, replica, client, subject, msg_id, t0, t1, begun, places, times, once))
           FILTER (WHERE NOT theirs) AS mine
FROM {values} GROUP BY history, workload, seq
"""

_SHOWN: Final = """
SELECT history, workload, kind, row.msg_id AS msg_id, seq, row.replica AS replica,
       if(row.f = 'direct', row.t0, 0D) AS t,
       concat(row.f, ' ', row.msg_id, ' as ', seq, if(row.f = 'direct', concat(' by ', row.client),
              concat(' on ', row.replica)), '; the origin has ', coalesce(to_json(content), 'nothing'),
              CASE WHEN kind = 'reordered'
                   THEN concat(', and it as ', array_join(cast(row.places AS array<string>), ', '))
                   WHEN kind = 'duplicated' THEN concat(', and it is there ', row.times, ' times') ELSE '' END) AS text
FROM (SELECT *, explode(array_compact(array(
          CASE WHEN row.f = 'stored' AND row.times > 1 AND row.once THEN 'duplicated' END,
          CASE WHEN row.f = 'stored' AND content <=> struct(row.subject, row.msg_id) THEN NULL
               WHEN row.f = 'stored' AND size(array_remove(row.places, seq)) > 0 THEN 'reordered'
               WHEN row.f = 'stored' AND content IS NOT NULL THEN 'diverged'
               WHEN row.f = 'stored' THEN 'phantom'
               WHEN NOT content <=> struct(row.subject, row.msg_id) THEN 'wrong value'
               WHEN row.begun > row.t1 THEN 'wrong value' END))) AS kind
      FROM (SELECT *, explode(mine) AS row FROM {sequences}))
"""

_LOST: Final = """
WITH rows AS (SELECT *, explode(replicas) AS replica FROM {sequences}),
has AS (SELECT *, exists(mine, row -> row.f = 'stored' AND row.replica = rows.replica) AS there FROM rows),
ends AS (SELECT *, max(if(there, seq, 0)) OVER (PARTITION BY history, workload, replica) AS own_end FROM has)
SELECT history, workload, 'lost' AS kind, content.msg_id AS msg_id, seq, replica, 0D AS t,
       format_string('%s, %d of the origin, is not on %s', content.msg_id, seq, replica) AS text
FROM ends WHERE content IS NOT NULL AND NOT there AND (drained OR seq <= own_end)
"""


def check(operations: DataFrame, profile: DataFrame) -> list[DataFrame]:
    spark = operations.sparkSession
    rows = spark.sql(_ROWS, operations=operations, profile=profile)
    sequences = spark.sql(_SEQUENCES, values=spark.sql(_VALUES, rows=rows))
    return [spark.sql(_SHOWN, sequences=sequences), spark.sql(_LOST, sequences=sequences)]
