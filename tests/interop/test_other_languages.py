"""Stock clients in other languages: the suites in `go/` (nats.go) and `js/` (nats.js), on R1 and R3.

They are built here; where the toolchain or its package index is missing, the reason is printed.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from testkit.harness import ProcessCluster, free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.long, pytest.mark.thorough]
HERE = Path(__file__).parent


def build(command: list[str], folder: Path) -> None:
    """Skips the tests when it fails: what is missing then is a toolchain or a package, not a feature of ours."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{command[0]}: {error}")
    if done.returncode:
        pytest.skip(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}")


@pytest.fixture(scope="module")
def go_suite(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("no Go on this machine")
    folder = tmp_path_factory.mktemp("go")
    shutil.copytree(HERE / "go", folder, dirs_exist_ok=True)
    build([go, "build", "-o", "suite", "."], folder)
    return [str(folder / "suite")]


@pytest.fixture(scope="module")
def js_suite(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("no Node.js with npm on this machine")
    folder = tmp_path_factory.mktemp("js")
    shutil.copytree(HERE / "js", folder, dirs_exist_ok=True)
    build([npm, "install", "--silent", "--no-audit", "--no-fund"], folder)
    return [node, str(folder / "suite.mjs")]


async def run(cluster: ProcessCluster, command: list[str], replicas: int, url: str = "") -> None:
    words = [*command, url or cluster[0].url, str(replicas)]
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 200)
    except TimeoutError:
        process.kill()
        raise
    text = output.decode(errors="replace")
    print(text)
    assert process.returncode == 0, text[-1500:]
    assert "FAIL" not in text and text.count("ok ") >= 9


@pytest.mark.parametrize("replicas", [1, 3])
async def test_nats_go(tidy: ProcessCluster, go_suite: list[str], replicas: int) -> None:
    await run(tidy, go_suite, replicas)


@pytest.mark.parametrize("replicas", [1, 3])
async def test_nats_js(tidy: ProcessCluster, js_suite: list[str], replicas: int) -> None:
    await run(tidy, js_suite, replicas)


async def test_nats_js_over_websocket(js_suite: list[str]) -> None:
    """The same suite by `wsconnect`, through one node of a cluster."""
    node, script = js_suite
    cluster = ProcessCluster(3, config="websocket {}")
    ports = free_ports(3)
    for one, port in zip(cluster.nodes, ports, strict=True):
        block = f"websocket {{ host: 127.0.0.1, port: {port}, no_tls: true, compression: true }}\n"
        (one.root / "server.conf").write_text(block)
    async with cluster:
        await run(cluster, [node, "--experimental-websocket", script], 3, f"ws://127.0.0.1:{ports[2]}")
