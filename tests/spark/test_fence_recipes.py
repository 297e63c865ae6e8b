"""The recipes for the fence in docs/spark-sink.md, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jetcluster.client.connection import Connection
from testkit.harness import TOP
from tests.spark.stored import contents
from tests.spark.streams import create, fill

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(300),
]

ROWS = 2500


def recipes() -> list[str]:
    page = (TOP / "docs/spark-sink.md").read_text()
    section = page.partition("### Recipes for the fence\n")[2]
    return re.findall(r"```python\n(.*?)```", section.partition("\n**`none`**")[0], re.DOTALL)


def test_recipes_run(spark: Any, connection: Connection, servers: str, tmp_path: Path) -> None:
    """Each writes the same rows in order, and a second time adds nothing."""
    create(connection, "ORDERS", subjects=["orders.>"])
    fill(connection, [(f"orders.{n % 3}", b"%d" % n) for n in range(ROWS)])
    batch, streaming, each = recipes()
    source = {"servers": servers, "stream": "ORDERS"}
    renamed = ["concat('copy.', subject) AS subject", "data", "seq"]

    def run_batch() -> None:
        df = spark.read.format("jetstream").options(**source).load().selectExpr(*renamed).orderBy("data")
        exec(batch, {"df": df, "servers": servers})

    def run_streaming() -> None:
        names = {"spark": spark, "servers": servers, "checkpoint": str(tmp_path / "streaming")}
        exec(streaming, names)
        [query] = spark.streams.active
        query.processAllAvailable()
        query.stop()

    def run_each() -> None:
        names: dict[str, Any] = {"servers": servers}
        exec(each, names)
        rows = spark.readStream.format("jetstream").options(**source, maxOffsetsPerTrigger="1000").load()
        shuffled = rows.selectExpr(*renamed).repartition(2, "subject")
        writer = shuffled.writeStream.foreachBatch(names["write"]).option("checkpointLocation", str(tmp_path / "each"))
        writer.trigger(availableNow=True).start().awaitTermination()

    for run in (run_batch, run_streaming, run_each):
        create(connection, "COPY", subjects=["copy.>"], allow_atomic=True)
        for _ in range(2):
            run()
        assert [int(message.data) for message in contents(connection, "COPY")] == list(range(ROWS)), run.__name__
        connection.api("STREAM.DELETE.COPY")
