"""The machine and the configuration file, as `doctor` sees them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from jetcluster.cli import machine
from jetcluster.cli.machine import Machine, clock_state_of_kernel, sync_times
from jetcluster.doctor.facts import MachineFacts


def facts(tmp_path: Path, text: str, root: Path | None = None) -> MachineFacts:
    path = tmp_path / "server.conf"
    path.write_text(text)
    return Machine(root or tmp_path, lambda: (True, "a test")).facts(str(path))[0]


@contextmanager
def listening(greeting: bytes = b"") -> Iterator[int]:
    """A port whose first visitors are greeted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    with listener.accept()[0] as link:
                        link.sendall(greeting)
                except OSError:
                    return

        Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_a_file_that_is_not_valid(tmp_path: Path) -> None:
    found = facts(tmp_path, "port: [")
    assert found.problem
    found = facts(tmp_path, "ping_interval: 5")
    assert "ping_interval" in found.problem, "a start only warns, -t refuses it"
    assert facts(tmp_path, "port: 4999").problem == ""


def test_what_the_kernel_says(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/net/core").mkdir(parents=True)
    (tmp_path / "proc/sys/net/core/somaxconn").write_text("128\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("67108864\n")
    found = facts(tmp_path, "port: 4999")
    assert (found.somaxconn, found.memory_limit) == (128, 64 << 20)
    assert (found.clock_synchronized, found.clock_source) == (True, "a test")
    found = facts(tmp_path, "port: 4999", tmp_path / "nowhere")
    assert (found.somaxconn, found.memory_limit) == (None, None)


def test_the_store_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    found = facts(tmp_path, f'port: 4999, jetstream {{ store_dir: "{tmp_path}/not/yet" }}')
    assert found.store == f"{tmp_path}/not/yet"
    assert len(found.sync_seconds) == machine.SYNCS
    assert found.disk_size and found.disk_free
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server.conf"]
    assert facts(tmp_path, "port: 4999").sync_seconds == ()


def test_a_slow_disk_is_not_asked_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SYNC_SECONDS", 0.0)
    assert len(list(sync_times(tmp_path))) == 1


def test_a_store_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path) -> Iterator[float]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine, "sync_times", refused)
    found = facts(tmp_path, f'port: 4999, jetstream {{ store_dir: "{tmp_path}" }}')
    assert (found.store_error, found.sync_seconds) == ("Permission denied", ())


def test_ports_that_are_taken(tmp_path: Path) -> None:
    with listening() as other, listening(b'INFO {"server_name": "n9"} \r\n') as nats:
        found = facts(tmp_path, f"host: 127.0.0.1, server_name: n1, port: {nats}, http_port: {other}")
        assert found.taken_ports == (("clients", nats, True), ("monitoring", other, False))
        found = facts(tmp_path, f"host: 127.0.0.1, server_name: n9, port: {nats}, http_port: {other}")
        assert found.taken_ports == (), "it is the server itself"


def test_routes(tmp_path: Path) -> None:
    with listening() as there, socket.create_server(("127.0.0.1", 0)) as gone:
        free = gone.getsockname()[1]
        gone.close()
        text = (
            "port: -1, cluster { name: c, listen: 127.0.0.1:6999, routes: [nats://127.0.0.1:%d, nats://127.0.0.1:%d, "
            "nats://u:p@no.such.host.invalid:6222, nats://127.0.0.1:6999] }"
        )
        found = facts(tmp_path, text % (there, free))
    assert [address for address, _ in found.unreachable] == [f"127.0.0.1:{free}"], "the last is the server itself"
    assert [host for host, _ in found.unresolved] == ["no.such.host.invalid"]


def test_the_kernel_tells_of_the_clock_or_why_it_does_not() -> None:
    synchronized, source = clock_state_of_kernel()
    assert synchronized in (True, False, None)
    assert source


def test_without_the_kernels_word_and_without_timedatectl(monkeypatch: pytest.MonkeyPatch) -> None:
    class Libc:
        def adjtimex(self, _buffer: object) -> int:
            return -1

    def absent(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(machine.ctypes, "CDLL", lambda *_, **__: Libc())
    monkeypatch.setattr(machine.subprocess, "run", absent)
    synchronized, source = clock_state_of_kernel()
    assert synchronized is None
    assert source.endswith("there is no timedatectl")
