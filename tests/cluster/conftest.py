"""Fixtures: a stream of its own for each test of consumers and number of replicas, and a small disk."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from testkit.consumer_client import Jet
from testkit.harness import ProcessCluster


@pytest.fixture(params=[1, 3], ids=["R1", "R3"])
async def jet(shared: ProcessCluster, server: str, request: pytest.FixtureRequest) -> AsyncIterator[Jet]:
    """A fresh stream; its client is connected to a node that is as likely its leader as not. Marker `stream(**config)`
    adds to the stream's configuration."""
    marker = request.node.get_closest_marker("stream")
    name = f"{request.node.originalname.removeprefix('test_')[:40].upper()}_R{request.param}"
    async with await shared[0].connect() as client:
        yield await Jet.start(client, name, request.param, server, **(marker.kwargs if marker else {}))
        await client.api(f"STREAM.DELETE.{name}")


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A tmpfs of the size that the module names in DISK_MIB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.module.DISK_MIB}m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a small disk needs the right to mount a tmpfs: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
