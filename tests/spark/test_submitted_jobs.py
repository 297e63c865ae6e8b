"""Every job by `spark-submit` on two workers whose executors see nothing of the driver's folder, as on machines of
their own. Where a job is long enough, a worker is killed in its midst."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("duckdb")
pytest.importorskip("fastavro")

import pyarrow.parquet as pq
from deltalake import DeltaTable

from jetcluster.archive.storage import open_archive
from jetcluster.client.connection import Connection
from tests.chaos.test_checkers import PLANTED, clean
from tests.spark import archives
from tests.spark.lake import S3Lake
from tests.spark.object_store import KEYS, object_store
from tests.spark.standalone import Standalone
from tests.spark.stored import Stored, contents, delete
from tests.spark.streams import create, fill
from tests.spark.test_archive import mixed
from tests.spark.test_lakehouse_rows import orders
from tests.spark.test_verify import write

pytestmark = [pytest.mark.thorough(shared=False), pytest.mark.timeout(1200)]

COUNT = 3000
ARCHIVE = "s3://jobs/archive"
STRUCK = {
    "reading": (r"Starting task \d+\.0 in stage 0\.0 .*?executor (\d+),", r"Starting task \d+\.[1-9] in stage 0\.0"),
    "rows in memory": (r"Finished task \d+\.0 in stage 0\.0 .*executor (\d+)\)", "No more replicas available for rdd_"),
    "shuffled rows": (
        r"Starting task \d+\.0 in stage [1-9].*?executor (\d+),",
        r"Starting task \d+\.[1-9] in stage [1-9]",
    ),
}
"""The process that dies with a worker -> Spark's word of the executor that has it, and of the loss, or another try."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with object_store("jobs") as url:
        yield url


@pytest.fixture(scope="module")
def site(spark_there: None, endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("executors can be kept from the driver's folder only by root, with unshare (util-linux)")
    env = KEYS | {"AWS_ENDPOINT_URL": endpoint}
    found = Standalone(tmp_path_factory.mktemp("site"), apart=True, env=env)
    try:
        found.start_master()
        for name in ("w1", "w2"):
            found.start_worker(name, 1)
        yield found
    finally:
        found.close()


@pytest.fixture(autouse=True)
def keys(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver and we have the environment that workers have."""
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": endpoint}).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def source(servers: str) -> list[Stored]:
    """The messages of the stream SUBMITTED, with gaps."""
    with Connection(servers.split(",")) as connection:
        create(connection, "SUBMITTED", allow_atomic=True)
        fill(connection, mixed("SUBMITTED", COUNT))
        delete(connection, "SUBMITTED", [1, 2, 700, COUNT])
        return contents(connection, "SUBMITTED")


def outcome(site: Standalone, *words: str, dies_at: str = "", struck: str = "") -> tuple[int, dict[str, Any]]:
    """(exit code, result) of a job during which a worker dies: when its progress has the pattern, or with something of
    `STRUCK`, and then Spark has to say that it is lost."""
    job = site.job(*words)
    at, lost = STRUCK[struck] if struck else (dies_at, "")
    try:
        if at:
            match = job.says(at)
            worker = site.worker_of(job.log(), match[1]) if struck else "w1"
            site.kill(worker)
            site.start_worker(worker, 1)
        found = job.ends()
        assert re.search(lost, job.log()), f"{worker} died, and nothing was lost: {job.log()[-3000:]}"
        return found
    finally:
        job.kill()


def done(site: Standalone, *words: str, **dies: str) -> dict[str, Any]:
    code, fields = outcome(site, *words, **dies)
    assert (code, fields.get("ok")) == (0, True), (site.driver / "job.log").read_text()[-3000:]
    return fields


def test_archive(site: Standalone, servers: str, source: list[Stored]) -> None:
    words = ["archive", "--server", servers, "--stream", "SUBMITTED", "--out", ARCHIVE, "--max-per-batch", "500"]
    fields = done(site, *words, dies_at="batch 1: ")
    assert (fields["rows"], fields["end"]) == (len(source), COUNT + 1)
    assert archives.rows(ARCHIVE) == [(m.seq, m.subject, m.block, m.data) for m in source]


def test_an_archive_in_a_folder_that_workers_do_not_share(site: Standalone, servers: str, source: list[Stored]) -> None:
    code, _ = outcome(site, "archive", "--server", servers, "--stream", "SUBMITTED", "--out", "archive")
    log = (site.driver / "job.log").read_text()
    assert (code, f"tasks wrote {len(source)} rows and {site.driver}/archive has 0 of them" in log) == (4, True), log
    assert not list((site.driver / "archive").rglob("*.json"))


def test_audit(site: Standalone, servers: str, source: list[Stored]) -> None:
    words = ["audit", "--server", servers, "--stream", "SUBMITTED", "--range", "500"]
    (compared,) = done(site, *words, dies_at="reading n2: ")["compared"]
    assert (sorted(compared["copies"]), compared["messages"], compared["ranges"]) == (
        ["n1", "n2", "n3"],
        len(source),
        6,
    )


def test_exact_restore(site: Standalone, servers: str, source: list[Stored]) -> None:
    words = ["restore", "--server", servers, "--from", ARCHIVE, "--stream", "EXACT", "--subjects", "exact.>"]
    assert done(site, *words, dies_at=r"sequences \d+ to \d+: ")["verified"]
    with Connection(servers.split(",")) as late:
        assert contents(late, "EXACT") == source


DIES_AT = {"fence": r"Finished task \d\.0 in stage", "msgid": "batch 1: "}
"""Mode -> what is said in the midst of a restore; of a fenced one that is Spark's own word of its tasks."""


@pytest.mark.parametrize("mode", list(DIES_AT))
def test_restore_that_publishes(site: Standalone, servers: str, source: list[Stored], mode: str) -> None:
    name = f"BACK{mode}".upper()
    words = ["restore", "--server", servers, "--from", ARCHIVE, "--stream", name, "--mode", mode]
    with Connection(servers.split(",")) as late:
        config = late.api("STREAM.INFO.SUBMITTED")["config"]
        late.api("STREAM.UPDATE.SUBMITTED", config | {"subjects": ["submitted_before.>"]})
        create(late, name, subjects=["submitted.>"], allow_atomic=True, duplicate_window=600 * 10**9)
    try:
        done(site, *words, dies_at=DIES_AT[mode])
    finally:
        with Connection(servers.split(",")) as late:
            found = contents(late, name)
            late.api(f"STREAM.DELETE.{name}")
    assert sorted((m.subject, m.data) for m in found) == sorted((m.subject, m.data) for m in source)
    for subject in {m.subject for m in source}:
        assert [m.data for m in found if m.subject == subject] == [m.data for m in source if m.subject == subject]


@pytest.fixture(scope="module")
def snapped(servers: str) -> None:
    """The bucket SNAPPED."""
    with Connection(servers.split(",")) as connection:
        create(connection, "KV_SNAPPED", subjects=["$KV.SNAPPED.>"], max_msgs_per_subject=2)
        fill(connection, [(f"$KV.SNAPPED.k{n % 800}", b"%d" % n) for n in range(1000)])


@pytest.mark.parametrize("struck", ["reading", "rows in memory"])
def test_snapshot(site: Standalone, servers: str, snapped: None, struck: str) -> None:
    out = f"s3://jobs/{struck.replace(' ', '-')}"
    words = ["snapshot", "--server", servers, "--bucket", "SNAPPED", "--as-of-seq", "900", "--out", out]
    fields = done(site, *words, struck=struck)
    assert (fields["present"], fields["complete"]) == (800, True)
    storage = open_archive(out)
    rows = [row for file in storage.list("") for row in pq.read_table(storage.open(file.path)).to_pylist()]
    assert sorted((row["key"], row["value"]) for row in rows) == sorted(
        (f"k{n}", b"%d" % (n + 800 if n < 100 else n)) for n in range(800)
    )


def test_a_snapshot_in_a_folder_that_workers_do_not_share(site: Standalone, servers: str, snapped: None) -> None:
    code, _ = outcome(site, "snapshot", "--server", servers, "--bucket", "SNAPPED", "--out", "snapshot")
    log = (site.driver / "job.log").read_text()
    assert (code, f"tasks wrote 800 rows and {site.driver}/snapshot has 0 of them" in log) == (4, True), log


def test_verify(site: Standalone) -> None:
    """Its histories are the driver's files."""
    histories = site.driver / "histories"
    histories.mkdir()
    for name, events in {"clean + good": clean(), "lost": PLANTED["the last ack lost"][0](clean())}.items():
        write(histories / f"{name}.jsonl", events)
    words = ["verify", "--history", "histories", "--out", "s3://jobs/findings"]
    code, fields = outcome(site, *words, struck="shuffled rows")
    assert (code, list(fields["broken"]), fields["histories"]) == (1, ["lost"], 2), fields
    storage = open_archive("s3://jobs/findings")
    rows = [row for file in storage.list("") for row in pq.read_table(storage.open(file.path)).to_pylist()]
    assert Counter(row["kind"] for row in rows) == fields["kinds"]


def test_lakehouse(site: Standalone, servers: str, endpoint: str) -> None:
    """The catalog is the driver's own."""
    with Connection(servers.split(",")) as connection:
        create(connection, "LANDED")
        fill(connection, [*orders("LANDED", 499), ("landed.x", b"no"), *orders("LANDED", 500, 501)])
    lake = S3Lake(site.driver / "lake", "jobs", endpoint)
    words = ["lakehouse", "--server", servers, "--stream", "LANDED", "--format", "json"]
    fields = done(site, *words, *lake.words, "--max-per-batch", "250", dies_at="batch 1: ")
    assert (fields["rows"], fields["dead_letters"], fields["end"]) == (999, 1, 1001)
    assert lake.rows("_seq", "id") == [(n, n) for n in range(1, 1001) if n != 500]
    assert lake.rows("seq", "data", dead=True) == [(500, b"no")]
    code, _ = outcome(site, *words, "--delta", "delta")
    log = (site.driver / "job.log").read_text()
    assert (code, f"{site.driver}/delta" in log, "has 0 of them" in log) == (4, True, True), log
    assert DeltaTable(str(site.driver / "delta")).to_pyarrow_table().num_rows == 0


def test_doctor(site: Standalone, servers: str) -> None:
    checks = {one["check"]: one["found"] for one in done(site, "doctor", "--server", servers)["checks"]}
    assert site.master in checks["session"] and "answers" in checks["server"], checks
