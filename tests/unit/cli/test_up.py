"""`jetcluster up`, with one real node where a process is the point."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

import jetcluster
from jetcluster.cli import up
from jetcluster.cli.local_cluster import HOST, ClusterError, LocalCluster, LocalNode, check_ports_free, held_ports

ENV = {**os.environ, "PYTHONPATH": str(Path(jetcluster.__file__).parents[1])}


def test_every_node_gets_its_own_ports_and_knows_all_routes(tmp_path: Path) -> None:
    cluster = LocalCluster(3, tmp_path, 4222)
    assert cluster.urls == [f"nats://{HOST}:{port}" for port in (4222, 4223, 4224)]
    ports = [port for node in cluster.nodes for port in (node.port, node.http_port, node.cluster_port)]
    assert len(set(ports)) == 9
    words = cluster.command(cluster.nodes[1])
    assert words[words.index("-n") + 1] == "n2"
    assert words[words.index("--cluster") + 1] == f"nats://{HOST}:{cluster.nodes[1].cluster_port}"
    assert words[words.index("--routes") + 1].count("nats://") == 3
    cluster.stop()
    alone = LocalCluster(1, tmp_path)
    assert "--cluster" not in alone.command(alone.nodes[0])
    alone.stop()


def test_nobody_who_asks_for_a_free_port_is_given_one_that_is_held() -> None:
    held = held_ports(20)
    ports = [one.getsockname()[1] for one in held]
    try:
        assert len(set(ports)) == 20
        assert check_ports_free(ports) is None  # a node can have it, which asks for this one
        others = []
        for _ in range(2000):
            with socket.socket() as other:
                other.bind((HOST, 0))
                others.append(other.getsockname()[1])
        assert not set(others) & set(ports)
        with socket.create_server((HOST, ports[0])) as node, socket.create_connection((HOST, ports[0])):
            node.accept()[0].close()
    finally:
        for one in held:
            one.close()


def test_a_cluster_has_its_ports_until_it_stops(tmp_path: Path) -> None:
    cluster = LocalCluster(1, tmp_path)
    with socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind((HOST, cluster.nodes[0].http_port))
        cluster.stop()
        other.bind((HOST, cluster.nodes[0].http_port))


def test_who_answers_something_else_than_a_page_is_no_healthy_node(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as other:
        node = LocalNode("n1", 1, other.getsockname()[1], 2, tmp_path)
        answers = threading.Thread(target=lambda: _say(other, b"INFO {}\r\n"))
        answers.start()
        assert node.fetch("/healthz") is None
        answers.join()


def _say(listening: socket.socket, answer: bytes) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.sendall(answer)
        connection.recv(1000)


def test_a_port_in_use_is_named_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert check_ports_free([port]) == port
        assert up.run_up(1, None, port) == 1
    assert f"port {port} is in use" in capsys.readouterr().err


def test_a_node_that_ends_at_once_is_reported_with_its_reason(tmp_path: Path) -> None:
    cluster = LocalCluster(1, tmp_path)
    node = cluster.nodes[0]
    node.directory.mkdir(parents=True)
    (node.directory / "jetstream").write_text("a file where a directory belongs")
    cluster.start()
    try:
        with pytest.raises(ClusterError, match="n1 ended with exit code 1"):
            cluster.wait_healthy(15.0)
    finally:
        cluster.stop()


def test_status_lines() -> None:
    row = up.NodeStatus("n1", "nats://h:1", "healthy", "leader", 2, 10, 1000, 3, 50_000_000)
    assert up.plain(row) == "n1 leader streams=2 messages=10 clients=3"
    assert up.plain(row._replace(state="no answer")) == "n1 no answer"


def test_the_table_is_whole_in_80_columns() -> None:
    row = up.NodeStatus("n1", f"nats://{HOST}:14222", "healthy", "follower", 1000, 10**9, 10**12, 12_345, 5 * 10**8)
    rows = [
        row,
        row._replace(state="not ready", role="no leader"),
        up.NodeStatus("n3", f"nats://{HOST}:3", "ended (137)", "", 0, 0, 0, 0, 0),
    ]
    out = io.StringIO()
    Console(file=out, width=80).print(up.table_of(rows, 80))
    lines = out.getvalue().splitlines()
    assert len(lines) == 4 and max(map(len, lines)) <= 80
    assert lines[1].split() == [
        "n1", "14222", "healthy", "follower", "1000", "1,000,000,000", "1.0", "TB", "12345", "500", "MB",
    ]  # fmt: skip
    assert "ended (137)" in lines[3]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`jetcluster up -n 1` and what it printed until the first status line."""
    command = [sys.executable, "-m", "jetcluster", "up", "-n", "1", "--port", "0", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV) as process:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if line.startswith("n1 "):
                break
        yield process, printed
        if process.poll() is None:
            process.kill()


def is_listening(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/varz", timeout=1):
            return True
    except (OSError, urllib.error.URLError):
        return False


def gone_within(url: str, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while is_listening(url):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_prints_how_to_connect_and_stops_cleanly(
    running: tuple[subprocess.Popen[str], str], number: signal.Signals, tmp_path: Path
) -> None:
    process, printed = running
    assert "1 node is up." in printed
    assert "nats.connect(['nats://127.0.0.1:" in printed
    assert "n1 single streams=0 messages=0 clients=0" in printed
    found = re.search(r"monitor +(\S+)", printed)
    assert found is not None
    assert is_listening(found[1])
    operator = re.search(r"operator +jetcluster status --context (\S+)", printed)
    assert operator is not None
    words = [sys.executable, "-m", "jetcluster", "health", "n1", "--context", operator[1]]
    assert subprocess.run(words, capture_output=True, text=True, env=ENV, timeout=20).stdout == "n1 is healthy\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=15)
    assert (process.returncode, err) == (0, "")
    assert f"cluster stopped; its data stays in {tmp_path}" in out
    assert not is_listening(found[1])
    assert "Server Exiting.." in (tmp_path / "n1" / "server.log").read_text()


@pytest.mark.cluster
def test_nodes_do_not_outlive_a_killed_up(running: tuple[subprocess.Popen[str], str]) -> None:
    process, printed = running
    found = re.search(r"monitor +(\S+)", printed)
    assert found is not None
    process.kill()
    assert gone_within(found[1], 10.0)
