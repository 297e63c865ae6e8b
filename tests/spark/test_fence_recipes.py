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
    batch, streaming, each, parted = recipes()
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

    def run_parted() -> None:
        names: dict[str, Any] = {"servers": servers}
        exec(parted, names)
        rows = spark.readStream.format("jetstream").options(**source, maxOffsetsPerTrigger="1000").load()
        customers = rows.selectExpr("concat('c', seq % 40) AS customer", "data", "seq").repartition(2)
        writer = customers.writeStream.foreachBatch(names["write"]).option(
            "checkpointLocation", str(tmp_path / "parts")
        )
        writer.trigger(availableNow=True).start().awaitTermination()

    for run in (run_batch, run_streaming, run_each):
        create(connection, "COPY", subjects=["copy.>"], allow_atomic=True)
        for _ in range(2):
            run()
        assert [int(message.data) for message in contents(connection, "COPY")] == list(range(ROWS)), run.__name__
        connection.api("STREAM.DELETE.COPY")
    create(connection, "COPY", subjects=["copy.>"], allow_atomic=True)
    for last in ("2", None):  # the last commit is lost: the batch is written again, and adds nothing
        run_parted()
        found = [(message.subject.decode(), int(message.data)) for message in contents(connection, "COPY")]
        assert sorted(number for _, number in found) == list(range(ROWS))
        parts = {subject.split(".")[1] for subject, _ in found}
        assert len(parts) > 1
        for part in parts:
            numbers = [number for subject, number in found if subject.split(".")[1] == part]
            assert numbers == sorted(numbers)
        if last is not None:
            (tmp_path / "parts" / "commits" / last).unlink()
            (tmp_path / "parts" / "commits" / f".{last}.crc").unlink(missing_ok=True)
    connection.api("STREAM.DELETE.COPY")


def test_rows_of_a_part_in_two_tasks_fail(spark: Any, connection: Connection, servers: str) -> None:
    create(connection, "TORN", subjects=["torn.>"], allow_atomic=True)
    rows = spark.range(0, 100, 1, 2).selectExpr("'torn.0.x' AS subject", "cast(id AS string) AS data")
    options = {"servers": servers, "stream": "TORN", "idempotence": "fence", "jobId": "torn"}
    with pytest.raises(Exception, match=r"torn\.0\.\*"):
        rows.write.format("jetstream").mode("append").options(**options, fenceSubjects="torn.0.*").save()
    with pytest.raises(Exception, match=r"subject torn\.0\.x is of no part that fenceSubjects names"):
        rows.write.format("jetstream").mode("append").options(**options, fenceSubjects="torn.1.*").save()
