from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from jetcluster.config.runtime_files import (
    PidFileError,
    PortsFileError,
    listener_url,
    ports_file,
    remove_ports_file,
    write_pid_file,
    write_ports_file,
)


def test_ports_file_has_the_literal_prefix_and_goes_away(tmp_path: Path) -> None:
    path = write_ports_file(
        str(tmp_path), {"nats": ["nats://127.0.0.1:1"], "monitoring": [], "cluster": ["nats://h:2"]}, 77
    )
    assert path.name == "nats-server_77.ports"
    assert path.read_text() == '{"nats":["nats://127.0.0.1:1"],"cluster":["nats://h:2"]}'
    assert json.loads(path.read_text())["nats"] == ["nats://127.0.0.1:1"]
    remove_ports_file(str(tmp_path), 77)
    assert list(tmp_path.iterdir()) == []
    remove_ports_file(str(tmp_path), 77)


def test_pid_file_is_a_bare_number(tmp_path: Path) -> None:
    write_pid_file(str(tmp_path / "p"), 4711)
    assert (tmp_path / "p").read_text() == "4711"
    with pytest.raises(PidFileError, match=r"^Could not write pidfile: open /nope/p: no such file or directory$"):
        write_pid_file("/nope/p")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "nats://127.0.0.1:1"),
        ("", "nats://127.0.0.1:1"),
        ("h", "nats://h:1"),
        ("::1", "nats://[::1]:1"),
        ("::", "nats://[::1]:1"),
    ],
)
def test_listener_urls_can_be_connected_to(host: str, url: str) -> None:
    assert listener_url("nats", host, 1) == url


def test_a_stale_pid_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text("99999999999")
    write_pid_file(str(path), 7)
    assert path.read_text() == "7"
    assert [one.name for one in tmp_path.iterdir()] == ["p"]


def test_a_link_that_somebody_has_put_there_is_not_followed(tmp_path: Path) -> None:
    """In a folder that is everybody's: what the link names is not overwritten, nor made by this server."""
    victim, folder = tmp_path / "victim", tmp_path / "run"
    folder.mkdir()
    for target in (victim, tmp_path / "nothing"):
        victim.write_text("precious")
        for name in ("p", "nats-server_7.ports", "nats-server_7.ports.partial", "p.partial"):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(target)
        write_pid_file(str(folder / "p"), 7)
        write_ports_file(str(folder), {"nats": ["nats://h:1"]}, 7)
        assert victim.read_text() == "precious" and not (tmp_path / "nothing").exists()
        assert (folder / "p").read_text() == "7" and not (folder / "p").is_symlink()
        assert json.loads((folder / "nats-server_7.ports").read_text()) == {"nats": ["nats://h:1"]}


def test_where_only_the_file_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is mounted by itself, or made for this server in a folder of root's, is written in place; a link is
    refused."""
    path = tmp_path / "p"
    path.write_text("12345678")

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.EBUSY, "mounted")

    monkeypatch.setattr(Path, "replace", refuse)
    write_pid_file(str(path), 7)
    assert path.read_text() == "7"
    assert [one.name for one in tmp_path.iterdir()] == ["p"]
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(PidFileError, match="too many levels of symbolic links"):
        write_pid_file(str(link), 8)
    assert path.read_text() == "7"
    with pytest.raises(PortsFileError, match=r"^Error writing ports file \("):
        write_ports_file(str(tmp_path), {"nats": ["nats://h:1"]}, 7)
    write_pid_file(os.devnull, 9)
    assert Path(os.devnull).is_char_device()


def test_two_servers_that_start_at_the_same_time(tmp_path: Path) -> None:
    """With the same pid file, and the same folder of ports files: whoever looks finds a whole file of one of them, and
    who ends takes away its own alone."""
    path, pids, wrong = tmp_path / "p", (41_111, 42), []
    ports = {pid: {"nats": [f"nats://127.0.0.1:{pid}"] * 50} for pid in pids}
    write_pid_file(str(path), pids[0])
    for pid in pids:
        write_ports_file(str(tmp_path), ports[pid], pid)
    begin = threading.Barrier(3)

    def start(pid: int) -> None:
        begin.wait()
        for _ in range(150):
            write_pid_file(str(path), pid)
            write_ports_file(str(tmp_path), ports[pid], pid)

    servers = [threading.Thread(target=start, args=(pid,)) for pid in pids]
    for server in servers:
        server.start()
    begin.wait()
    while any(server.is_alive() for server in servers):
        if path.read_text() not in [str(pid) for pid in pids]:
            wrong.append(path.read_text())
        wrong += [pid for pid in pids if json.loads(ports_file(str(tmp_path), pid).read_text()) != ports[pid]]
    for server in servers:
        server.join()
    assert not wrong
    remove_ports_file(str(tmp_path), pids[0])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["nats-server_42.ports", "p"]
