"""The process as harnesses and operators see it: flags, files it writes, signals, exit codes, start-up time."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from testkit.client import Client, create_stream
from testkit.forks import die_with_parent
from testkit.harness import TOP, Node, ProcessCluster, eventually, find_server, free_ports
from testkit.ledger import publish_all

pytestmark = [pytest.mark.cluster, pytest.mark.started, pytest.mark.thorough]


def run(server: str, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = find_server(server)
    assert command is not None
    env = {**os.environ, "PYTHONPATH": str(TOP)}
    return subprocess.run(
        [*command, *args], capture_output=True, text=True, timeout=20, env=env, cwd=cwd, preexec_fn=die_with_parent
    )


def test_version_is_what_clients_parse(server: str) -> None:
    done = run(server, "-v")
    assert done.returncode == 0
    assert re.fullmatch(r"nats-server: v\d+\.\d+\.\d+\n", done.stdout)


def test_check_of_a_good_and_a_bad_configuration(server: str, tmp_path: Path) -> None:
    good = tmp_path / "good.conf"
    good.write_text("NAME: x\nport: 4333\nserver_name: $NAME\njetstream { store_dir: /tmp/x, max_file_store: 1GB }\n")
    done = run(server, "-t", "-c", str(good))
    assert (done.returncode, "is valid" in done.stdout + done.stderr) == (0, True)

    bad = tmp_path / "bad.conf"
    bad.write_text("port: 4333\nno_such_key: 1\n")
    done = run(server, "-c", str(bad))
    assert done.returncode == 1
    assert 'unknown field "no_such_key"' in done.stdout + done.stderr

    broken = tmp_path / "broken.conf"
    broken.write_text("port: 4333\njetstream {\n")
    assert run(server, "-t", "-c", str(broken)).returncode == 1
    missing = run(server, "-c", str(tmp_path / "nowhere.conf"))
    assert missing.returncode == 1
    assert "no such file or directory" in missing.stdout + missing.stderr


def test_unknown_flag_prints_usage(server: str) -> None:
    done = run(server, "--no-such-flag")
    assert "no-such-flag" in done.stdout + done.stderr


def test_port_in_use_is_fatal(server: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(server, "-a", "127.0.0.1", "-p", str(port), cwd=tmp_path)
    assert done.returncode == 1
    assert "[FTL]" in done.stderr
    assert f"127.0.0.1:{port}" in done.stderr
    assert "address already in use" in done.stderr


async def test_pid_file_ports_file_and_random_ports(server: str, tmp_path: Path) -> None:
    cluster = ProcessCluster(1, server, root=tmp_path / "nodes")
    node = cluster[0]
    node.args = ["-a", "127.0.0.1", "--port=-1", "-m", "-1", "--ports_file_dir", str(tmp_path),
                 "-P", str(tmp_path / "pid"), "-l", str(tmp_path / "log"), "-n=files"]  # fmt: skip
    node.log_path = tmp_path / "log"
    node.spawn()
    try:
        await node.wait_ready()
        ports_file = tmp_path / f"nats-server_{node.pid}.ports"
        await eventually(lambda: ports_file.exists(), 5, "no ports file")
        ports = json.loads(ports_file.read_text())
        assert (tmp_path / "pid").read_text().strip() == str(node.pid)
        async with await Client.connect(ports["nats"][0]) as client:
            assert client.info["server_name"] == "files"
            assert client.info["headers"] is True
        node.http_port = int(ports["monitoring"][0].rpartition(":")[2])
        assert (await node.monitor("healthz"))["status"] == "ok"
        assert (await node.monitor("varz"))["server_name"] == "files"
        assert re.search(r"^\[\d+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} \[INF\] ", node.log(), re.M)
        assert await node.stop() in (0, 1)
        assert not ports_file.exists()
    finally:
        node.kill9()


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signals_end_it_promptly(server: str, number: signal.Signals) -> None:
    async with ProcessCluster(1, server) as single:
        single[0].signal(number)
        assert await single[0].wait_exit(3) in (0, 1)


@pytest.mark.alone
async def test_signal_command_by_pid_and_pid_file(server: str, tmp_path: Path) -> None:
    async with ProcessCluster(1, server, flags=["-P", str(tmp_path / "pid")]) as single:
        done = await asyncio.to_thread(run, server, "--signal", f"quit={tmp_path / 'pid'}")
        assert done.returncode == 0, done.stderr
        await single[0].wait_exit(5)
    async with ProcessCluster(1, server) as single:
        done = await asyncio.to_thread(run, server, "-sl", f"stop={single[0].pid}")
        assert done.returncode == 0, done.stderr
        assert await single[0].wait_exit(5) == -signal.SIGKILL


async def test_reopen_of_the_log_file(server: str, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    cluster = ProcessCluster(1, server, root=tmp_path / "nodes", flags=["-l", str(log)])
    cluster[0].log_path = log
    async with cluster as single:
        log.rename(tmp_path / "old.log")
        single[0].signal(signal.SIGUSR1)
        await eventually(lambda: log.exists(), 5, "the log is not opened again")


async def test_lame_duck_sends_clients_away(server: str) -> None:
    config = "lame_duck_duration: '30s'\nlame_duck_grace_period: '1s'\n"
    async with ProcessCluster(1, server, config=config) as single:
        client = await single[0].connect()
        single[0].signal(signal.SIGSTOP)  # both wait, as on a machine that has no time for it
        single[0].signal(signal.SIGUSR2)
        single[0].signal(signal.SIGTERM)  # an orchestrator's, right behind its pre-stop hook
        single[0].signal(signal.SIGCONT)
        await eventually(lambda: client.info.get("ldm") is True, 5, "no INFO with ldm")
        with pytest.raises((OSError, Exception)):
            await single[0].connect(within=1.0)
        client.close()
        await single[0].wait_exit(40)


async def test_config_file_with_include_users_and_variables(server: str, tmp_path: Path) -> None:
    # a variable of the including file is not seen in the included one
    (tmp_path / "users.conf").write_text(
        'PW = "s3cret"\nusers = [ { user: "ann", password: $PW }, { user: bob, password: "b" } ]\n'
    )
    config = f"""
# comments in both styles
// and units
LIMIT = 64KB
max_payload: $LIMIT
authorization {{
  include "{os.path.relpath(tmp_path / "users.conf", tmp_path / "nodes" / "n1")}"
}}
"""
    cluster = ProcessCluster(1, server, root=tmp_path / "nodes", config=config)
    node = cluster[0]
    await node.start()
    try:
        with pytest.raises(Exception, match=r"(?i)authorization violation"):
            await Client.connect(node.url)
        with pytest.raises(Exception, match=r"(?i)authorization violation"):
            await Client.connect(f"nats://ann:wrong@127.0.0.1:{node.port}")
        async with await Client.connect(f"nats://ann:s3cret@127.0.0.1:{node.port}") as client:
            assert client.info["max_payload"] == 65536
            assert client.info["auth_required"] is True
    finally:
        node.kill9()


async def test_accounts_do_not_see_each_other(server: str, tmp_path: Path) -> None:
    config = """
accounts {
  A { jetstream: enabled, users: [ { user: a, password: a } ] }
  B { jetstream: enabled, users: [ { user: b, password: b } ] }
}
"""
    cluster = ProcessCluster(1, server, root=tmp_path / "nodes", config=config)
    node = cluster[0]
    await node.start()
    try:
        async with (
            await Client.connect(f"nats://a:a@127.0.0.1:{node.port}") as a,
            await Client.connect(f"nats://b:b@127.0.0.1:{node.port}") as b,
        ):
            await create_stream(a, "S", ["s"], 1)
            assert (await b.api("STREAM.NAMES", {}))["total"] == 0
            await create_stream(b, "S", ["s"], 1)
            assert len((await publish_all(a, "s", [b"x", b"y"])).acked) == 2
            assert (await b.api("STREAM.INFO.S"))["state"]["messages"] == 0
    finally:
        node.kill9()


async def test_flags_win_over_the_config_file(server: str, tmp_path: Path) -> None:
    cluster = ProcessCluster(1, server, root=tmp_path / "nodes", config="port: 1\nserver_name: from_file\n")
    node = cluster[0]
    await node.start()
    try:
        async with await node.connect() as client:
            assert client.info["server_name"] == "n1"
    finally:
        node.kill9()


@pytest.mark.alone
async def test_cold_start_and_meta_leader_in_time(server: str) -> None:
    """Harnesses wait at most 2 s for the port and 2 s for the meta leader of a fresh cluster. Other
    processes can only make it slower, so the best of three counts."""
    loop = asyncio.get_running_loop()
    for left in (2, 1, 0):
        async with ProcessCluster(1, server) as single:
            ready = single[0].ready_seconds
        start = loop.time()
        async with ProcessCluster(3, server):
            leader = loop.time() - start
        print(f"one node ready after {ready:.3f} s, three nodes with a meta leader after {leader:.3f} s")
        if ready < 1.5 and leader < 6:  # goals 0.5 s and 2 s (make bench); a loaded CI machine gets three times that
            return
        assert left, "too slow three times"


@pytest.mark.alone
@pytest.mark.parametrize("given", ["flags", "file"])
async def test_it_listens_long_before_it_is_ready(server: str, tmp_path: Path, given: str) -> None:
    """Runners of clients' tests try to connect once, 0.1 s after the start; INFO may take as long as a start does.
    Other processes can only make it slower, so the best of five counts."""
    command = find_server(server)
    assert command is not None
    file = tmp_path / "c.conf"
    found = []
    for number in range(5):
        port = free_ports(1)[0]
        file.write_text(f"listen: 127.0.0.1:{port}\njetstream {{ store_dir: '{tmp_path}/{number}' }}\n")
        words = ["-c", str(file)] if given == "file" else ["-a", "127.0.0.1", "-p", str(port)]
        start = time.monotonic()
        process = subprocess.Popen(
            [*command, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(TOP)}, preexec_fn=die_with_parent,
        )  # fmt: skip
        try:
            while True:
                try:
                    connection = socket.create_connection(("127.0.0.1", port), 10)
                    break
                except OSError:
                    assert time.monotonic() - start < 20 and process.poll() is None
                    time.sleep(0.002)
            listening = time.monotonic() - start
            with connection:
                assert connection.recv(5) == b"INFO "
            found.append((listening, time.monotonic() - start))
        finally:
            process.kill()
            process.wait()
    print(f"seconds until it listens, and until INFO: {found}")
    best = min(listening for listening, _ in found)
    assert best < 0.05 or best < 0.3 * min(informed for _, informed in found), found


async def test_a_full_stderr_pipe_does_not_stop_it(server: str) -> None:
    """nats.py's own test helper stops reading the server's output after "Server is ready"."""
    command = find_server(server)
    assert command is not None
    port = free_ports(1)[0]
    env = {**os.environ, "PYTHONPATH": str(TOP)}
    process = subprocess.Popen(
        [*command, "-a", "127.0.0.1", "-p", str(port), "-DV"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, preexec_fn=die_with_parent,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if b"Server is ready" in line:
                break
        async with await Client.connect(f"nats://127.0.0.1:{port}") as client:
            for _ in range(4000 if server == "jetcluster" else 10):  # Go blocks here: only ours must not
                client.publish("trace.me", b"x" * 60)
            await client.flush(within=10)
    finally:
        process.kill()
        process.wait(10)
        process.stderr.close()
        process.stdout.close()  # type: ignore[union-attr]


def test_the_wrapper_script_is_one_process(tmp_path: Path) -> None:
    """Harnesses signal the pid that they spawned: scripts/nats-server must exec."""
    node = Node("wrap", [str(TOP / "scripts" / "nats-server")], tmp_path, free_ports(1)[0], [])
    node.args = ["-a", "127.0.0.1", "-p", str(node.port), "-P", str(tmp_path / "pid")]
    node.spawn()
    try:
        asyncio.run(node.wait_ready())
        assert (tmp_path / "pid").read_text().strip() == str(node.pid)
    finally:
        node.kill9()
