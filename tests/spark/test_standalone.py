"""Queries on a standalone cluster: look-ups, metrics and names there, and what is killed: a worker, and the master."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetcluster.client.connection import Connection
from tests.spark.standalone import Events, Standalone
from tests.spark.stored import contents, state
from tests.spark.streams import create, fill, numbered, stored, until

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1200)]

LOOKED_UP = """
import json, sys, urllib.request
from pyspark.sql import SparkSession
from jetcluster.spark.listener import MetricsListener
from jetcluster.spark.lookup import lookup

servers, folder = sys.argv[1:]
spark = SparkSession.builder.appName("look-ups").getOrCreate()
listener = MetricsListener(port=0)
spark.streams.addListener(listener)
where = {"servers": servers, "stream": "ORDERED", "metricsUrl": listener.url, "maxOffsetsPerTrigger": "600"}
orders = spark.readStream.format("jetstream").options(**where).load()
orders = orders.selectExpr("seq", "concat('k', seq % 20) AS key")
query = (
    lookup(orders, "key", "SHOPPERS", {"servers": servers}).selectExpr("seq", "CAST(value AS STRING) AS buyer")
    .writeStream.format("json").queryName("orders with buyers").option("checkpointLocation", f"{folder}/checkpoint")
    .option("path", f"{folder}/out").trigger(availableNow=True).start()
)
query.awaitTermination()
batch = lookup(spark.range(40).selectExpr("concat('k', id) AS key"), "key", "SHOPPERS", {"servers": servers})
found = batch.where("value IS NOT NULL").count()
text = urllib.request.urlopen(listener.url.replace("/tasks", "/metrics")).read().decode()
executors = spark.sparkContext._jsc.sc().statusStore().executorList(True).size() - 1
print(json.dumps({"found": found, "text": text, "executors": executors}))
"""
COPY = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession

servers, folder = sys.argv[1:]
spark = SparkSession.builder.appName("copy").getOrCreate()
where = {"servers": servers}
rows = spark.readStream.format("jetstream").options(stream="KILLED", maxOffsetsPerTrigger="100", **where).load()
query = (
    rows.selectExpr("concat('survived.', seq) AS subject", "data").writeStream.format("jetstream").queryName("copy")
    .option("checkpointLocation", folder).options(stream="SURVIVED", **where).start()
)
while query.isActive and not Path(folder, "stop").exists():
    time.sleep(0.1)
if query.exception():
    raise query.exception()
query.stop()
print("done")
"""
PHASE = 1000
"""Messages that come before and after each kill, in ten micro-batches."""


@pytest.fixture(scope="module")
def standalone(spark_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and two workers of one core."""
    found = Standalone(tmp_path_factory.mktemp("standalone"))
    try:
        found.start_master()
        for name in ("w1", "w2"):
            found.start_worker(name, 1)
        yield found
    finally:
        found.close()


def test_a_worker_and_the_master_are_killed(
    standalone: Standalone, connection: Connection, servers: str, tmp_path: Path
) -> None:
    create(connection, "KILLED")
    create(connection, "SURVIVED", subjects=["survived.*"])
    checkpoint = tmp_path / "checkpoint"

    def publish() -> int:
        with Connection(servers.split(",")) as late:
            return fill(late, numbered("KILLED", PHASE))

    def copied(least: int) -> None:
        def enough() -> bool:
            assert process.poll() is None, standalone.submitted_log()[-4000:]
            with Connection(servers.split(",")) as late:
                return stored(late, "SURVIVED") >= least

        until(enough, 600.0, f"a copy of {least} messages")

    count = publish()
    with standalone.start(COPY, servers, str(checkpoint)) as process:
        try:
            copied(1)  # so that it dies amid a batch of the phase
            standalone.kill("w1")
            copied(count)
            count = publish()
            standalone.kill("Master")
            copied(count)  # nobody needs a master to go on
            standalone.start_master()
            standalone.start_worker("w3", 1)
            count = publish()
            copied(count)
            (checkpoint / "stop").touch()
            printed = process.communicate(timeout=300)[0]
        finally:
            process.kill()
    assert process.returncode == 0 and "done" in printed, standalone.submitted_log()[-4000:]
    assert "Trying to recover app" in (standalone.folder / "Master.log").read_text()
    with Connection(servers.split(",")) as late:
        assert state(late, "SURVIVED")["messages"] == count == 3 * PHASE
        messages = contents(late, "SURVIVED")
    assert sorted(int(one.subject.split(b".")[1]) for one in messages) == list(range(1, count + 1))


def test_look_ups_metrics_and_names(
    standalone: Standalone, connection: Connection, servers: str, tmp_path: Path
) -> None:
    """On the cluster that the test before has left: by a master that was started again, and another second worker."""
    create(connection, "ORDERED")
    fill(connection, numbered("ORDERED", 1500))
    create(connection, "KV_SHOPPERS", subjects=["$KV.SHOPPERS.>"], max_msgs_per_subject=1)
    fill(connection, [(f"$KV.SHOPPERS.k{n}", b"buyer %d" % n) for n in range(10)])
    events = Events(tmp_path / "events")
    found = json.loads(standalone.run(LOOKED_UP, servers, str(tmp_path), conf=events.conf).splitlines()[-1])
    rows = [json.loads(line) for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    assert sorted((row["seq"], row.get("buyer")) for row in rows) == [
        (n, f"buyer {n % 20}" if n % 20 < 10 else None) for n in range(1, 1501)
    ]
    assert (found["found"], found["executors"]) == (10, 2)
    assert 'task_rows_total{stream="ORDERED"} 1500' in found["text"]
    assert 'task_answers_total{stream="ORDERED",server="n' in found["text"]
    assert [one for one in events.job_names() if one.startswith("orders with buyers\n")], events.job_names()
    assert "MicroBatchScan" in events.plan_nodes(), events.plan_nodes()
