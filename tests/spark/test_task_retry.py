"""A worker process dies in the midst of a partition, and Spark tries that task again in the same job: the source gives
each row once, the sink stores each row once. In a session that tries tasks again, so in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jetcluster.client.connection import Connection
from testkit.harness import TOP, ProcessCluster
from tests.spark.dying import DEATHS, ROWS, SOURCE, target
from tests.spark.stored import contents, state
from tests.spark.streams import create, fill

pytestmark = pytest.mark.thorough


@pytest.mark.timeout(400)  # it starts Spark
def test_tasks_that_are_tried_again(cluster: ProcessCluster, connection: Connection, tmp_path: Path) -> None:
    create(connection, SOURCE)
    fill(connection, [("retried.x", b"%d" % n) for n in range(1, ROWS + 1)])
    for mode in ("none", "msgId", "fence"):
        create(connection, target(mode), subjects=[f"{target(mode)}.>"], allow_atomic=True)
    command = [sys.executable, "-m", "tests.spark.dying", ",".join(cluster.urls), str(tmp_path)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False, timeout=360)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"rows": ROWS, "different": ROWS, "first": 1, "last": ROWS}

    tries: dict[str, set[int]] = {}
    for line in (tmp_path / "tries").read_text().splitlines():
        what, attempt, _ = line.split()
        tries.setdefault(what, set()).add(int(attempt))
    kinds = ("read", "write-none", "write-msgid", "stream-write-fence")
    assert tries == {kind: set(range(DEATHS + 1)) for kind in kinds}, "each was killed twice, and done the third time"

    whole = [b"%d" % n for n in range(1, ROWS + 1)]
    assert [m.data for m in contents(connection, target("fence"))] == whole
    assert sorted(int(m.data) for m in contents(connection, target("msgId"))) == list(range(1, ROWS + 1))
    without = state(connection, target("none"))["messages"]
    assert without > ROWS, "without ids the rows before the death are there twice"
