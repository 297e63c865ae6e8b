from __future__ import annotations

import json
from pathlib import Path

import pytest

from jetcluster.config.runtime_files import (
    PidFileError,
    listener_url,
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
