"""Consumers with explicit acks: what was acked does not come again, nothing is left out.

Deliveries that were on their way when their ack was confirmed may still arrive: for `GRACE` seconds, and for as long as
a fault held bytes back (a stopped process, a link) in between.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

GRACE: Final = 1.0
"""Seconds."""

_SEQUENCES: Final = """
SELECT history, workload, seq, bool_or(drained) AS drained, any_value(held) AS held,
       max_by(struct(msg_id, t1), struct(t0, op)) FILTER (WHERE f = 'publish' AND type = 'ok') AS sent,
       min(struct(t1, client)) FILTER (WHERE f = 'ack' AND type = 'ok') AS ack,
       collect_list(struct(t0, msg_id, client, count)) FILTER (WHERE f = 'deliver') AS deliveries
FROM {operations} JOIN {profile} USING (history, workload)
WHERE consumes AND f IN ('publish', 'ack', 'deliver') GROUP BY history, workload, seq
"""

_SKIPPED: Final = """
SELECT history, workload, 'skipped' AS kind, sent.msg_id AS msg_id, seq, '' AS replica, sent.t1 AS t,
       format_string('%s, acked as %d, was never delivered', sent.msg_id, seq) AS text
FROM {sequences} WHERE drained AND sent IS NOT NULL AND size(deliveries) = 0
"""

_DELIVERED: Final = """
SELECT history, workload, kind, delivery.msg_id AS msg_id, seq, '' AS replica, delivery.t0 AS t,
       if(kind = 'wrong value',
          format_string('%d delivered as %s, %s was stored', seq, delivery.msg_id, sent.msg_id),
          format_string('%d came to %s (delivery %d) %.2f s after the ack of %s', seq, delivery.client, delivery.count,
                        delivery.t0 - ack.t1, ack.client)) AS text
FROM (SELECT *, explode(array_compact(array(
          if(delivery.msg_id <> sent.msg_id, 'wrong value', NULL),
          if(delivery.t0 - ack.t1 > {grace} AND NOT exists(
                 held, fault -> fault.t0 <= delivery.t0 AND fault.t1 + {grace} >= ack.t1), 'redelivered', NULL))))
          AS kind
      FROM (SELECT *, explode(deliveries) AS delivery FROM {sequences}))
"""


def check(operations: DataFrame, profile: DataFrame) -> list[DataFrame]:
    spark = operations.sparkSession
    sequences = spark.sql(_SEQUENCES, operations=operations, profile=profile)
    return [spark.sql(_SKIPPED, sequences=sequences), spark.sql(_DELIVERED, sequences=sequences, grace=GRACE)]
