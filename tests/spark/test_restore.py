"""Archive and back: byte for byte with its gaps as a new stream, or published behind a fence or with ids."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from jetcluster.archive import manifest
from jetcluster.archive.storage import open_archive
from jetcluster.client.connection import Connection
from jetcluster.client.restore_transfer import RestoreTransfer
from jetcluster.protocol import headers as header_block
from testkit.harness import ProcessCluster, find_server
from tests.spark.jobs import fails, run
from tests.spark.stored import contents, delete, state
from tests.spark.streams import create, fill
from tests.spark.test_archive import mixed

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(300),  # the first one starts Spark and a cluster
]

COUNT = 2000


@pytest.fixture(scope="module")
def archived(
    spark: Any, cluster: ProcessCluster, servers: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """(folder, what was stored, state) of a stream that is gone: headers, holes inside and at both ends, a
    message about as large as the server takes."""
    with Connection(cluster.urls) as connection:
        create(connection, "KEPT", allow_atomic=True, metadata={"owner": "tests"})
        large = ("kept.large", random.Random(6).randbytes(connection.max_payload - 1000), b"")  # headers are added
        fill(connection, [*mixed("KEPT", 1000), large, *mixed("KEPT", COUNT - 1001, 1000)])
        delete(connection, "KEPT", [1, 2, 500, 501, 1300, COUNT - 1, COUNT])
        folder = tmp_path_factory.mktemp("restore") / "archive"
        run(spark, servers, "archive", "--stream", "KEPT", "--out", folder, "--max-per-batch", "700")
        found = contents(connection, "KEPT"), state(connection, "KEPT")
        connection.api("STREAM.DELETE.KEPT")
    yield folder, *found


@pytest.fixture(autouse=True)
def gone(cluster: ProcessCluster) -> Iterator[None]:
    """The restored stream takes the same subjects in every test."""
    yield
    with Connection(cluster.urls) as connection:
        for name in connection.api("STREAM.NAMES")["streams"] or []:
            if name.startswith("BACK") or name == "KEPT":
                connection.api(f"STREAM.DELETE.{name}")


def test_exact(spark: Any, connection: Connection, servers: str, archived: Any) -> None:
    folder, messages, before = archived
    done = run(spark, servers, "restore", "--from", folder, "--stream", "BACK").fields
    assert (done["rows"], done["deleted"], done["verified"]) == (COUNT - 7, 5, True)
    assert contents(connection, "BACK") == messages  # sequences, subjects, header blocks, payloads and times
    after = state(connection, "BACK")
    for key in ("messages", "bytes", "first_seq", "last_seq", "num_deleted", "first_ts", "num_subjects"):
        assert after.get(key) == before.get(key), key
    info = connection.api("STREAM.INFO.BACK")
    assert (info["config"]["metadata"]["owner"], info["config"]["num_replicas"]) == ("tests", 3)
    again = run(spark, servers, "restore", "--from", folder, "--stream", "BACK").fields
    assert (again["was_there"], again["verified"]) == (True, True)
    connection.request("kept.1", b"more")
    text, code = fails(spark, servers, "restore", "--from", folder, "--stream", "BACK")
    assert (code, "exists already, and differs from the archive" in text) == (2, True), text


async def test_exact_into_nats_server(spark: Any, archived: Any, tmp_path: Path) -> None:
    if find_server("nats-server") is None:
        pytest.skip("nats-server is not on this machine: run `make tools` (needs Go and its module proxy)")
    folder, messages, _ = archived
    async with ProcessCluster(1, "nats-server", root=tmp_path / "peer") as peer:
        words = ["--from", folder, "--stream", "BACK", "--replicas", "1"]
        assert run(spark, peer[0].url, "restore", *words).fields["verified"]
        with Connection(peer.urls) as connection:
            assert contents(connection, "BACK") == messages


def test_exact_up_to_a_sequence(spark: Any, connection: Connection, servers: str, archived: Any) -> None:
    folder, messages, _ = archived
    run(spark, servers, "restore", "--from", folder, "--stream", "BACK", "--upto-seq", "1000", "--replicas", "1")
    assert contents(connection, "BACK") == [m for m in messages if m.seq <= 1000]
    assert connection.request("kept.1", b"next").json()["seq"] == 1001


def test_exact_is_all_or_nothing(
    spark: Any, connection: Connection, servers: str, archived: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks in the middle, as it does when we or the server are killed: the next try begins anew, when
    the server has removed what was made."""
    folder, messages, _ = archived
    pieces = 0
    put = RestoreTransfer._put

    def breaks(self: Any, piece: bytes) -> None:
        nonlocal pieces
        pieces += 1
        if pieces == 2:
            self._connection.close()
        put(self, piece)

    monkeypatch.setattr(RestoreTransfer, "_put", breaks)
    done = run(spark, servers, "restore", "--from", folder, "--stream", "BACK").fields
    assert (done["attempts"], done["verified"]) == (2, True)
    assert contents(connection, "BACK") == messages


def test_a_damaged_archive_is_refused(
    spark: Any, connection: Connection, servers: str, archived: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(archived[0], folder)
    file, other = (folder / manifest.load(open_archive(str(folder)))[at].files[0].path for at in (1, 2))
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    text, code = fails(spark, servers, "restore", "--from", folder, "--stream", "BACK")
    assert (code, "is missing or cut off" in text) == (4, True), text
    rows = pq.read_table(str(other), partitioning=None)
    flipped = [
        b"flipped" if s == 1600 else d for s, d in zip(*(rows[n].to_pylist() for n in ("seq", "data")), strict=True)
    ]
    pq.write_table(rows.set_column(rows.schema.get_field_index("data"), "data", [flipped]), other)
    held = folder / "_manifest" / "2.json"
    found = json.loads(held.read_text())
    found["files"][0][1] = other.stat().st_size
    held.write_text(json.dumps(found))
    file.write_bytes(whole)
    for mode in ("fence", "exact"):
        text, code = fails(spark, servers, "restore", "--from", folder, "--stream", "BACK", "--mode", mode, "--create")
        assert (text, code) == ("the archived message 1600 is damaged: it does not match its digest", 4)
        if mode == "fence":
            connection.api("STREAM.DELETE.BACK")


def test_behind_the_fence(spark: Any, connection: Connection, servers: str, archived: Any) -> None:
    """Half of it, then all of it, and once more: every message once, in order."""
    folder, messages, _ = archived
    words = ["--from", folder, "--stream", "BACK", "--mode", "fence", "--create", "--source-seq"]
    run(spark, servers, "restore", *words, "--upto-seq", "1000")
    assert run(spark, servers, "restore", *words).fields["added"] == sum(m.seq > 1000 for m in messages)
    assert run(spark, servers, "restore", *words).fields["added"] == 0
    found = contents(connection, "BACK")
    assert [(m.subject, m.data) for m in found] == [(m.subject, m.data) for m in messages]
    assert [int(header_block.get(m.block, b"Jc-Source-Seq") or 0) for m in found] == [m.seq for m in messages]
    for back, original in zip(found, messages, strict=True):  # its own header lines, bytes and order
        assert back.block.startswith(original.block[:-2] or b"NATS/1.0\r\n")
    connection.request("kept.1", b"guest")
    text, code = fails(spark, servers, "restore", *words)
    assert (code, "was written by another writer" in text) == (4, True), text


def test_an_interrupted_run_goes_on_in_an_archive_that_was_compacted(
    spark: Any, connection: Connection, servers: str, tmp_path: Path
) -> None:
    """It numbers rows: batches become one, and others come behind them."""
    create(connection, "PACKED", allow_atomic=True)
    out, before = tmp_path / "archive", tmp_path / "before"

    def archive(rows: int, first: int, batch: int, *more: str) -> None:
        fill(connection, mixed("PACKED", rows, first))
        run(spark, servers, "archive", "--stream", "PACKED", "--out", out, "--max-per-batch", str(batch), *more)

    archive(200, 0, 10, "--no-compact")
    shutil.copytree(out, before)
    archive(50, 200, 1000)
    assert len(manifest.load(open_archive(str(out)))) < 5
    messages = contents(connection, "PACKED")
    connection.api("STREAM.DELETE.PACKED")
    words = ["--mode", "fence", "--create", "--stream", "BACK"]
    run(spark, servers, "restore", "--from", before, *words, "--upto-seq", "155")  # in the midst of a batch
    assert state(connection, "BACK")["last_seq"] == 155
    assert run(spark, servers, "restore", "--from", out, *words).fields["added"] == 95
    assert [(m.subject, m.data) for m in contents(connection, "BACK")] == [(m.subject, m.data) for m in messages]


def test_with_ids(spark: Any, connection: Connection, servers: str, archived: Any) -> None:
    folder, messages, _ = archived
    words = ["--from", folder, "--stream", "BACK", "--mode", "msgid"]
    text, code = fails(spark, servers, "restore", *words)
    assert (code, text) == (2, "there is no stream BACK; --create makes it as it was archived")
    run(spark, servers, "restore", *words, "--create")
    assert run(spark, servers, "restore", *words).fields["added"] == 0
    found = contents(connection, "BACK")
    for subject in {m.subject for m in messages}:
        assert [m.data for m in found if m.subject == subject] == [m.data for m in messages if m.subject == subject]
    ids = {header_block.get(m.block, b"Nats-Msg-Id") for m in found}
    assert ids == {b"KEPT/%d" % m.seq for m in messages}


async def test_the_server_that_takes_the_archive_dies(
    spark: Any, cluster: ProcessCluster, archived: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, messages, _ = archived
    victim, *others = cluster.nodes
    put = RestoreTransfer._put

    def kills(self: Any, piece: bytes) -> None:
        if victim.alive and self._connection.url == victim.url:
            victim.kill9()
        put(self, piece)

    monkeypatch.setattr(RestoreTransfer, "_put", kills)
    urls = ",".join([victim.url, *(node.url for node in others)])
    try:
        done = run(spark, urls, "restore", "--from", folder, "--stream", "BACK").fields
        assert not victim.alive
        assert done["attempts"] >= 2
    finally:
        if not victim.alive:
            await victim.start()
    await cluster.wait_current("BACK")
    with Connection(cluster.urls) as connection:
        assert contents(connection, "BACK") == messages
