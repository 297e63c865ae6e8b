"""`jetcluster bench` against a server: every mode does what its name says and takes its stream away again."""

from __future__ import annotations

import json
import subprocess
import sys

from jetcluster.cli.bench import MODES
from testkit.harness import ProcessCluster


async def test_every_mode_gives_a_line() -> None:
    async with ProcessCluster(1) as nodes:
        words = [
            "bench",
            "-s",
            nodes[0].url,
            "--seconds",
            "0.2",
            "--streams",
            "3",
            "--pid",
            f"n1={nodes[0].pid}",
            "--json",
        ]
        done = subprocess.run([sys.executable, "-m", "jetcluster", *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        lines = {line["name"].split()[0]: line for line in json.loads(done.stdout)}
        assert set(lines) == {"js-pub", "js-batch", "js-fast", "direct-get", "core", "create"}, MODES
        assert all(line["messages"] > 0 for line in lines.values())
        assert set(lines["js-pub"]["cpu_s_per_million"]) == {"n1", "client"}
        async with await nodes[0].connect() as client:
            assert (await client.api("STREAM.NAMES"))["total"] == 0
