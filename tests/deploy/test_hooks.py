"""The scripts that the chart's hooks and init containers run, without Kubernetes: what they ask is played."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from testkit.harness import TOP, ProcessCluster, free_port

SCRIPTS = TOP / "deploy" / "docker"


def python(name: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(SCRIPTS / name), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env={**os.environ, **env})


# ---- scale-down.sh


def scale_down(folder: Path, cases: dict[str, tuple[int, str]]) -> subprocess.CompletedProcess[str]:
    """`cases`: by node, the exit code and the text of `jetcluster decommission`."""
    lines = [f"{node}) echo '{text}'; exit {code};;" for node, (code, text) in cases.items()]
    fake = folder / "jetcluster"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\ncase "$2" in\n' + "\n".join(lines) + "\nesac\n")
    fake.chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "NATS_URL": "nats://a:1,nats://b:1", "TMPDIR": str(folder)}
    command = [str(SCRIPTS / "scale-down.sh"), "60", *cases]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=20, check=False)


def test_nodes_are_taken_out_one_after_the_other(tmp_path: Path) -> None:
    done = scale_down(tmp_path, {"jc-4": (0, "jc-4: verified"), "jc-3": (0, "jc-3: verified")})
    assert (done.returncode, done.stdout) == (0, "jc-4: verified\njc-3: verified\n")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == [f"decommission jc-{n} --within 60 --server nats://a:1,nats://b:1" for n in (4, 3)]


def test_a_node_that_is_gone_already_is_no_error(tmp_path: Path) -> None:
    gone = (1, "server is not a member of the cluster")
    assert scale_down(tmp_path, {"jc-4": gone, "jc-3": (0, "done")}).returncode == 0


@pytest.mark.parametrize("code", [1, 2, 3])
def test_a_refusal_ends_it_before_the_next_node(tmp_path: Path, code: int) -> None:
    done = scale_down(tmp_path, {"jc-4": (code, "5 streams find no other place"), "jc-3": (0, "done")})
    assert done.returncode == code
    assert "find no other place" in done.stdout and "nothing is scaled down" in done.stderr
    assert len((tmp_path / "asked").read_text().splitlines()) == 1


# ---- smoke.py


@pytest.mark.cluster
@pytest.mark.ours("about the image")
async def test_the_smoke_test_of_a_release(tmp_path: Path) -> None:
    async with ProcessCluster(1, root=tmp_path, monitor=True) as single:
        node = single[0]
        client, monitor = f"127.0.0.1:{node.port}", f"127.0.0.1:{node.http_port}"
        done = python("smoke.py", "--client", client, monitor)
        assert (done.returncode, done.stdout) == (0, f"{monitor}: ok\n{client}: ok\n"), done.stderr
        nobody = f"127.0.0.1:{free_port()}"
        done = python("smoke.py", monitor, nobody)
        assert done.returncode == 1 and f"{nobody}: [Errno 111]" in done.stdout
        done = python("smoke.py", "--client", nobody, monitor)
        assert done.returncode == 1 and f"{nobody}: [Errno 111]" in done.stdout


# ---- zone.py


class Api(BaseHTTPRequestHandler):
    """The API server's node resource."""

    def do_GET(self) -> None:
        known = self.path == "/api/v1/nodes/node-1" and self.headers["Authorization"] == "Bearer t0ken"
        labels = {"topology.kubernetes.io/zone": "eu-1"}
        body = json.dumps({"metadata": {"name": "node-1", "labels": labels}} if known else {}).encode()
        self.send_response(200 if known else 403)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Starts the API with TLS; returns the environment of a pod."""
    import ssl

    from testkit.certificates import Authority

    authority = Authority(tmp_path)
    cert, key = authority.issue("api")
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("t0ken\n")
    shutil.copy(authority.file, account / "ca.crt")
    server = HTTPServer(("127.0.0.1", 0), Api)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    port = str(server.server_port)
    yield {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port, "SERVICE_ACCOUNT": str(account)}
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_zone_of_a_node(api: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "zone"
    done = python("zone.py", "node-1", "topology.kubernetes.io/zone", str(file), **api)
    assert (done.returncode, done.stderr) == (0, "") and file.read_text() == "eu-1"
    assert python("zone.py", "node-1", "example.org/rack", str(file), **api).returncode == 0
    assert file.read_text() == "", "a node without the label has no tag"
    done = python("zone.py", "node-2", "topology.kubernetes.io/zone", str(file), **api)
    assert done.returncode == 1 and "zone: node node-2: HTTP Error 403" in done.stderr
