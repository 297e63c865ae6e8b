"""Tasks and executors are killed while they restore an archive: each sequence is there once, and in order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jetcluster.client.connection import Connection
from jetcluster.protocol import headers as header_block
from testkit.harness import TOP, ProcessCluster
from tests.spark.jobs import run
from tests.spark.restoring import KILLS, MASTERS
from tests.spark.stored import Stored, contents, delete
from tests.spark.streams import create, fill
from tests.spark.test_archive import mixed

pytestmark = [
    pytest.mark.thorough(shared=False),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(900),  # it starts Spark
]

COUNT = 4000


@pytest.fixture(scope="module")
def archive(spark: Any, cluster: ProcessCluster, servers: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, what was stored): about a dozen files."""
    folder = tmp_path_factory.mktemp("kills") / "archive"
    with Connection(cluster.urls) as connection:
        create(connection, "MORTAL", allow_atomic=True)
        fill(connection, mixed("MORTAL", COUNT))
        delete(connection, "MORTAL", [1, 700, 701, COUNT])
        words = ["--stream", "MORTAL", "--out", folder, "--max-per-batch", "2000", "--rows-per-file", "350"]
        run(spark, servers, "archive", *words)
        found = contents(connection, "MORTAL")
        connection.api("STREAM.DELETE.MORTAL")
    return folder, found


@pytest.mark.parametrize("what", list(MASTERS))
@pytest.mark.parametrize("mode", ["exact", "fence"])
def test_what_restores_is_killed(
    mode: str, what: str, archive: tuple[Path, list[Stored]], servers: str, tmp_path: Path
) -> None:
    folder, messages = archive
    name = f"REBORN{mode}{what}"
    words = [servers, str(folder), str(tmp_path), mode, name, what]
    command = [sys.executable, "-m", "tests.spark.restoring", *words]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False, timeout=840)
    assert done.returncode == 0, done.stderr[-3000:]
    fields = json.loads(done.stdout.splitlines()[-1])
    assert (fields["rows"], fields["killed"]) == (len(messages), KILLS)
    with Connection(servers.split(",")) as late:
        found = contents(late, name)
        late.api(f"STREAM.DELETE.{name}")
    if mode == "exact":
        assert (fields["attempts"], fields["verified"]) == (1, True), "only the tasks of the dead are tried again"
        assert found == messages
    else:
        assert fields["added"] == len(messages)
        assert [(m.subject, m.data) for m in found] == [(m.subject, m.data) for m in messages]
        assert [int(header_block.get(m.block, b"Jc-Source-Seq") or 0) for m in found] == [m.seq for m in messages]
