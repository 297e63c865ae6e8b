"""The parts of `make kubernetes` that need no Kubernetes: name service, pause image, what it says is missing."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.load import Book
from tests.kubernetes.plane import images, needs
from tests.kubernetes.plane.names import addresses, answer

TOP = Path(__file__).resolve().parents[2]


def service(name: str, address: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": {"clusterIP": address}}


def ends(name: str, *endpoints: dict[str, Any]) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": name}
    return {"metadata": {"namespace": "ns", "labels": labels}, "endpoints": list(endpoints)}


def test_names_of_services_and_pods() -> None:
    pods = [
        {"addresses": ["198.18.0.5"], "hostname": "jc-0", "conditions": {"ready": True}},
        {"addresses": ["198.18.0.6"], "hostname": "jc-1", "conditions": {"ready": False}},
    ]
    services = [service("jc", "198.19.0.9"), service("jc-headless", "None")]
    found = addresses(services, [ends("jc-headless", *pods), ends("jc", *pods)])
    assert found == {
        "jc.ns.svc.cluster.local": ["198.19.0.9"],
        "jc-headless.ns.svc.cluster.local": ["198.18.0.5"],
        "jc-0.jc-headless.ns.svc.cluster.local": ["198.18.0.5"],
    }


def query(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, kind, 1)


@pytest.mark.parametrize(
    ("name", "kind", "code", "records"),
    [("A.Svc", 1, 0, ["1.2.3.4"]), ("a.svc", 28, 0, []), ("b.svc", 1, 3, []), ("empty.svc", 1, 0, [])],
)
def test_answers_of_the_name_service(name: str, kind: int, code: int, records: list[str]) -> None:
    asked = query(name, kind)
    found = answer(asked, {"a.svc": ["1.2.3.4"], "empty.svc": []})
    number, flags, questions, count, _, _ = struct.unpack(">HHHHHH", found[:12])
    assert (number, flags & 15, questions, count) == (7, code, 1, len(records))
    assert found[12 : len(asked)] == asked[12:]
    tail = found[len(asked) :]
    assert [".".join(map(str, tail[n * 16 + 12 : n * 16 + 16])) for n in range(count)] == records


def test_rubbish_is_no_question() -> None:
    with pytest.raises((IndexError, struct.error)):
        answer(b"\x00" * 12 + b"\x3fabc", {})


def test_the_pause_image_has_its_layer(tmp_path: Path) -> None:
    if needs.program("cc") is None:
        pytest.skip("no C compiler on this machine")
    images.make_pause(tmp_path / "pause.tar")
    with tarfile.open(tmp_path / "pause.tar") as whole:
        (entry,) = json.load(whole.extractfile("manifest.json") or io.BytesIO())
        layer = whole.extractfile(entry["Layers"][0])
        assert layer is not None and entry["RepoTags"] == [images.PAUSE_NAME]
        with tarfile.open(fileobj=layer) as files:
            assert files.getmember("pause").mode == 0o755


def test_without_root_one_line_says_so(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        command = [sys.executable, "-m", "tests.kubernetes"]
    else:
        command = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-m", "tests.kubernetes"]
    env = {"PYTHONPATH": str(TOP), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=TOP, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "not run: it needs root" in done.stdout, done
    assert len(done.stdout.splitlines()) == 1


def test_the_longest_gap_says_what_happened_to_the_connection() -> None:
    book = Book(ack_times=[10.0, 10.2, 12.7, 12.8, 13.9], events=[(10.5, "disconnected"), (12.0, "connected to a")])
    assert book.gaps() == "longest gap 2.5 s (disconnected after 0.3 s, connected to a after 1.8 s), 1 more from 1 s on"
    assert Book(ack_times=[1.0, 1.5]).gaps() == "longest gap 0.5 s (connected)"
