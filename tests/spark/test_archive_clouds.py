"""Archives in Google Cloud Storage and in Azure: a model of Google's XML API, and Microsoft's Azurite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jetcluster.archive import manifest
from jetcluster.archive.storage import open_archive
from jetcluster.backup.storage import BackupStorageError, PresentError
from jetcluster.client.connection import Connection
from tests.spark import archives
from tests.spark.jobs import fails, run
from tests.spark.object_store import STORES
from tests.spark.stored import contents, delete
from tests.spark.streams import create, fill, numbered
from tests.spark.test_archive import mixed
from tests.spark.test_archive_s3 import queried

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'jetcluster[archive]'")

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(300),  # the first one starts Spark and a cluster
]


@pytest.fixture(scope="module", params=list(STORES))
def store(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, str]]]:
    """(URL of an empty bucket or container, environment of those who use it)."""
    with STORES[request.param]("history") as env:
        yield f"{request.param}://history", dict(env)


@pytest.fixture
def url(store: tuple[str, dict[str, str]], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place of the test's own."""
    for name, value in store[1].items():
        monkeypatch.setenv(name, value)
    return f"{store[0]}/{request.node.originalname}"


@pytest.fixture
def workers(spark: Any, store: tuple[str, dict[str, str]]) -> None:
    """Workers of Spark have the environment of the session's start, so the store's is given to them as a setting."""
    for name, value in store[1].items():
        spark.sparkContext.environment[name] = value


def test_objects(url: str) -> None:
    storage = open_archive(url)
    storage.create("a/b", b"stored")
    with pytest.raises(PresentError):
        storage.create("a/b", b"other")
    storage.create("a/b", b"stored")  # repeated, as after a lost answer
    odd = "a/subject=ü %25/day=1.parquet"
    storage.write(odd, bytes(range(256)) * 100)
    names = [f"a/{n:03}" for n in range(20)]
    for name in names:
        storage.write(name, b"")
    assert sorted(one.path for one in storage.list("a")) == sorted(["a/b", odd, *names])
    with storage.open(odd) as file:
        file.seek(25_590)
        assert file.read() == bytes(range(246, 256))
    storage.delete("a/b")
    storage.delete("a/b")
    assert storage.read("a/b") is None
    with pytest.raises(BackupStorageError, match="there is no such bucket"):
        list(open_archive(url.replace("history", "nowhere")).list(""))


@pytest.mark.usefixtures("workers")
def test_archive_compaction_and_restore(spark: Any, connection: Connection, servers: str, url: str) -> None:
    name = f"IN{url[:2]}".upper()
    create(connection, name)
    fill(connection, mixed(name, 900))
    delete(connection, name, [1, 500, 900])
    words = ["--stream", name, "--out", url]
    done = run(spark, servers, "archive", *words, "--max-per-batch", "80", "--no-compact").fields
    assert (done["rows"], done["batches"]) == (897, 12)
    fill(connection, mixed(name, 100, 900))
    assert run(spark, servers, "archive", *words).fields["compacted"] >= 10
    held, messages = manifest.load(open_archive(url)), contents(connection, name)
    assert len(held) < 12
    assert {one.path for one in open_archive(url).list(f"stream={name}")} == {
        file.path for one in held for file in one.files
    }
    assert archives.rows(url) == [(m.seq, m.subject, m.block, m.data) for m in messages]
    words = ["--from", url, "--stream", f"FROM{name}", "--subjects", f"from{name}.>"]
    assert run(spark, servers, "restore", *words).fields["verified"]
    assert contents(connection, f"FROM{name}") == messages
    text, code = fails(spark, servers, "restore", "--from", url.replace("history", "nowhere"), "--stream", "X")
    assert (code, "there is no such bucket" in text) == (2, True), text


@pytest.mark.usefixtures("workers")
def test_history_and_stream_as_one_table(
    spark: Any, connection: Connection, servers: str, url: str, tmp_path: Path
) -> None:
    create(connection, "UNITED3")
    try:
        fill(connection, numbered("UNITED3", 500))
        run(spark, servers, "archive", "--stream", "UNITED3", "--out", url, "--max-per-batch", "100")
        connection.api("STREAM.PURGE.UNITED3", {"seq": 301})
        wanted = [n for n in range(1, 60) if n % 7 == 3]
        assert queried(servers, url, tmp_path) == [
            [500, 500, 500 * 501 // 2], [len(wanted)], [200, 200, 100], [*range(1, 501)]
        ]  # fmt: skip
    finally:
        with Connection(servers.split(",")) as late:  # the other one was silent for long
            late.api("STREAM.DELETE.UNITED3")
