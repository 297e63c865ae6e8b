"""A Spark Connect server, and clients that have no Spark of their own: batch, streaming, look-ups and jobs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'pyspark[connect]'")
pytest.importorskip("grpc_status", reason="grpcio-status is not installed: pip install 'pyspark[connect]'")

from jetcluster.client.connection import Connection
from testkit.harness import TOP
from tests.chaos.test_checkers import PLANTED, clean
from tests.spark.session import JVM_FLAGS
from tests.spark.stored import state
from tests.spark.streams import create, fill, numbered, until
from tests.spark.test_verify import write

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

STARTED = "Spark Connect server started"
BEGIN = """
import sys, time, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession

remote, servers, folder = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
assert ".connect." in type(spark).__module__
where = {"servers": servers}

def rows(stream):
    return spark.read.format("jetstream").options(stream=stream, **where).load()
"""
PLAIN = """
table = spark.range(0, 3000, 1, 2)
table = table.selectExpr("concat('plain.', id % 5) AS subject", "cast(id AS string) AS data")
table.write.format("jetstream").mode("append").options(stream="PLAIN", **where).save()
assert rows("PLAIN").count() == 3000 and rows("PLAIN").where("subject = 'plain.3'").count() == 600
read = spark.readStream.format("jetstream").options(stream="PLAIN", maxOffsetsPerTrigger="2000", **where).load()
query = (
    read.selectExpr("concat('copied.', seq) AS subject", "data").writeStream.format("jetstream").queryName("copy")
    .option("checkpointLocation", f"{folder}/copy").options(stream="COPIED", **where).trigger(availableNow=True).start()
)
assert query.awaitTermination(300)
assert [one.numInputRows for one in query.recentProgress if one.numInputRows] == [2000, 1000], query.recentProgress
assert rows("COPIED").count() == 3000
try:
    rows("NONE").count()
except Exception as error:
    assert "there is no stream NONE" in str(error), error
else:
    raise AssertionError("a stream that is not there was read")
spark.sql(f"CREATE TEMPORARY VIEW plain USING jetstream OPTIONS (servers '{servers}', stream 'PLAIN')")
assert spark.sql("SELECT max(seq) FROM plain").first()[0] == 3000
assert not [name for name in sys.modules if name.startswith("jetcluster")]
print("done")
"""
JOBS = """
from jetcluster.pipeline.main import run_in
from jetcluster.spark.lookup import lookup

keys = rows("JOBBED").selectExpr("seq", "concat('k', seq % 20) AS key")
found = lookup(keys, "key", "LOOKED", where).where("value IS NOT NULL")
assert found.count() == 500, found.count()
done = run_in(spark, "archive", "--server", servers, "--stream", "JOBBED", "--out", f"{folder}/archive").fields
assert done["rows"] == 1000, done
words = ["--server", servers, "--from", f"{folder}/archive", "--stream", "AGAIN", "--subjects", "again.>"]
assert run_in(spark, "restore", *words).fields["verified"]
words = ["--server", servers, "--stream", "JOBBED", "--delta", f"{folder}/lake"]
done = run_in(spark, "lakehouse", *words).fields
assert (done["rows"], done["end"]) == (1000, 1001), done
print("done")
"""
OTHERS = """
import json
from pathlib import Path
from jetcluster.pipeline.main import run_in

done = run_in(spark, "snapshot", "--server", servers, "--bucket", "SNAPS", "--out", f"{folder}/snapshot").fields
assert (done["present"], done["complete"]) == (10, True), done
assert spark.read.parquet(f"{folder}/snapshot").count() == 10
words = ["--server", servers, "--stream", "AUDITED"]
(compared,) = run_in(spark, "audit", *words).fields["compared"]
assert (len(compared["copies"]), compared["messages"]) == (3, 500), compared
words = ["--server", servers, "--stream", "AUDITED", "--against", "REPUBLISHED", "--by-source-seq"]
assert run_in(spark, "audit", *words).fields["republished"]["kinds"] == {"missing": 500}
done = run_in(spark, "verify", "--history", f"{folder}/lost.jsonl", "--out", f"{folder}/findings")
assert (done.code, done.fields["histories"]) == (1, 1), done
assert spark.read.parquet(f"{folder}/findings").count() == done.fields["violations"]
done = run_in(spark, "doctor", "--server", servers)
assert done.code == 0, done
print("done")
"""
LISTENED = """
import re, urllib.request
from jetcluster.spark.listener import MetricsListener

def copied():
    read = spark.readStream.format("jetstream")
    read = read.options(stream="LISTENED", maxOffsetsPerTrigger="400", metricsUrl=listener.url, **where).load()
    query = (
        read.writeStream.format("noop").queryName("listened").option("checkpointLocation", f"{folder}/listened")
        .trigger(availableNow=True).start()
    )
    try:
        assert query.awaitTermination(300)
    except Exception as error:
        if "Python worker failed to connect back" not in str(error):  # Spark gives it ten seconds, on any machine
            raise
        return False
    return True

listener = MetricsListener(port=0, file=f"{folder}/spark.prom")
spark.streams.addListener(listener)
try:
    assert any(copied() for _ in range(5))
    deadline = time.monotonic() + 60
    while 'queries_ended_total{outcome="stopped"} 1' not in listener.text() and time.monotonic() < deadline:
        time.sleep(0.1)
    text = urllib.request.urlopen(listener.url.replace("/tasks", "/metrics")).read().decode()
    assert 'queries_ended_total{outcome="stopped"} 1' in text, text
    assert int(re.search(r'task_rows_total.stream="LISTENED". (.*)', text)[1]) >= 1000, text
    assert 'task_answers_total{stream="LISTENED",server="n' in text, text
    assert open(f"{folder}/spark.prom").read().count("\\n") == text.count("\\n")
finally:
    spark.streams.removeListener(listener)  # else its thread keeps the process alive
    listener.close()
print("done")
"""


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the server's event log."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def remote(spark_there: None, events: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server, whose Python has jetcluster."""
    import pyspark

    folder = tmp_path_factory.mktemp("connect")
    home = Path(pyspark.__file__).parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {key: value for key, value in os.environ.items() if not key.startswith("SPARK")}
    env |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    env |= {"PYTHONPATH": os.pathsep.join([str(TOP), str(TOP / "jetcluster/spark/shim")])}
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
        "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": JVM_FLAGS, "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(), "spark.eventLog.compress": "false",
    }  # fmt: skip
    words = [str(home / "bin/spark-submit"), "--master", "local[2]"]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    words += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    log = folder / "log"
    with log.open("wb") as out:
        server = subprocess.Popen([*words, "spark-internal"], env=env, stdout=out, stderr=out, cwd=folder)
    try:
        until(lambda: STARTED in log.read_text() or server.poll() is not None, 240.0, "the Connect server's start")
        assert server.poll() is None, log.read_text()[-3000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)


def tags(folder: Path) -> set[str]:
    """The tags of all jobs in the server's event log."""
    files = [file for file in folder.rglob("*") if file.is_file() and not file.name.endswith(".crc")]
    events = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    named = [one["Properties"].get("spark.job.tags", "") for one in events if one["Event"] == "SparkListenerJobStart"]
    return {tag for one in named for tag in one.split(",")}


def by_a_client(remote: str, servers: str, folder: Path, program: str) -> None:
    """Runs the program in a process of its own: a process has one kind of sessions."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("SPARK")} | {"PYTHONPATH": str(TOP)}
    words = [sys.executable, "-c", BEGIN + program, remote, servers, str(folder)]
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout[-1000:] + done.stderr[-4000:]


def test_a_client_that_has_no_jetcluster(remote: str, connection: Connection, servers: str, tmp_path: Path) -> None:
    """Nothing of it is loaded there: the source and the sink are the server's."""
    create(connection, "PLAIN")
    create(connection, "COPIED", allow_atomic=True)
    by_a_client(remote, servers, tmp_path, PLAIN)
    with Connection(servers.split(",")) as late:  # the first one was silent for long
        assert (state(late, "PLAIN")["messages"], state(late, "COPIED")["messages"]) == (3000, 3000)


def test_look_ups_and_jobs_of_a_client(
    remote: str, events: Path, connection: Connection, servers: str, tmp_path: Path
) -> None:
    create(connection, "JOBBED")
    fill(connection, numbered("JOBBED", 1000))
    create(connection, "KV_LOOKED", subjects=["$KV.LOOKED.>"], max_msgs_per_subject=1)
    fill(connection, [(f"$KV.LOOKED.k{n}", b"%d" % n) for n in range(10)])
    by_a_client(remote, servers, tmp_path, JOBS)
    named = tags(events)
    for text in ("archive of JOBBED: sequences 1 to 1000", "JOBBED to tables: sequences 1 to 1000"):
        assert any(tag.endswith(text) for tag in named), named


def test_all_other_jobs_of_a_client(remote: str, connection: Connection, servers: str, tmp_path: Path) -> None:
    create(connection, "AUDITED")
    fill(connection, numbered("AUDITED", 500))
    create(connection, "REPUBLISHED")
    create(connection, "KV_SNAPS", subjects=["$KV.SNAPS.>"], max_msgs_per_subject=1)
    fill(connection, [(f"$KV.SNAPS.k{n}", b"%d" % n) for n in range(10)])
    write(tmp_path / "lost.jsonl", PLANTED["the last ack lost"][0](clean()))
    by_a_client(remote, servers, tmp_path, OTHERS)


def test_metrics_at_a_client(remote: str, connection: Connection, servers: str, tmp_path: Path) -> None:
    """The listener and its port are the client's, and the server's tasks post there."""
    create(connection, "LISTENED")
    fill(connection, numbered("LISTENED", 1000))
    by_a_client(remote, servers, tmp_path, LISTENED)
