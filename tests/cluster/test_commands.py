"""Operators' commands on a cluster with TLS in both directions, through a context of the `nats` tool."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jetcluster.cli.commands import run_command
from testkit.certificates import Authority
from testkit.harness import ProcessCluster

pytestmark = pytest.mark.cluster

ACCOUNTS = """
accounts {
  SYS { users: [ { user: admin, password: pw } ] }
  APP { jetstream: enabled, users: [ { user: app, password: pw } ] }
}
system_account: SYS
"""


@pytest.fixture
def cluster(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessCluster]:
    """Three nodes; `admin.json` and `app.json` are the contexts of their users."""
    authority = Authority(tmp_path)
    found = ProcessCluster(server=server, config=authority.tls("node", ", verify: true") + ACCOUNTS)
    certificate, key = authority.issue("operator")
    for user in ("admin", "app"):
        context = {"url": ",".join(found.urls), "user": user, "password": "pw", "ca": str(authority.file),
                   "cert": str(certificate), "key": str(key)}  # fmt: skip
        (tmp_path / f"{user}.json").write_text(json.dumps(context))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # not the contexts of whoever runs it
    try:
        for node in found.nodes:
            node.spawn()
        yield found
    finally:
        found.stop_all()


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The output of a command that succeeds."""
    capsys.readouterr()
    code = run_command([*words, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)


def becomes(code: int, *words: str, within: float = 20.0) -> None:
    end = time.monotonic() + within
    while run_command([*words, "--timeout", "1s"]) != code:
        assert time.monotonic() < end, words
        time.sleep(0.2)


def test_a_cluster_through_its_commands(cluster: ProcessCluster, capsys: pytest.CaptureFixture[str]) -> None:
    admin, app = ("--context", "admin.json"), ("--context", "app.json")
    becomes(0, "health", *admin)
    becomes(0, "object", "add", "b", "--replicas", "3", *app)
    becomes(0, "health", *admin)
    state = as_json(capsys, "status", *admin)
    assert [(one["name"], one["health"]) for one in state["servers"]] == [("n1", "ok"), ("n2", "ok"), ("n3", "ok")]
    assert [one["meta"] for one in state["servers"]].count("leader") == 1 and state["meta_size"] == 3
    (stream,) = state["streams"]
    assert (stream["account"], stream["name"], len(stream["replicas"]), stream["holders"]) == (
        "APP", "OBJ_b", 2, ["n1", "n2", "n3"],
    )  # fmt: skip
    assert [one["name"] for one in as_json(capsys, "streams", *app)] == ["OBJ_b"]
    assert [one["account"] for one in as_json(capsys, "streams", *admin)] == ["APP"]
    assert as_json(capsys, "consumers", "OBJ_b", *app) == as_json(capsys, "consumers", "APP/OBJ_b", *admin) == []
    accounts = {one["name"]: one for one in as_json(capsys, "users", *admin)}
    assert [user["name"] for user in accounts["SYS"]["users"]] == ["admin"] and accounts["APP"]["jetstream"]
    for command in ("status", "health", "users"):
        assert run_command([command, *app]) == 2
        assert "of account 'APP'" in capsys.readouterr().err

    lost = next(node for node in cluster.nodes if node.name != stream["leader"])
    lost.kill9()
    becomes(1, "health", *admin)
    state = as_json(capsys, "status", *admin)
    assert [one["name"] for one in state["servers"] if one["health"] == "no answer"] == [lost.name]
    assert run_command(["status", *admin]) == 0
    out = capsys.readouterr().out
    assert f"- {lost.name}: no answer" in out and max(map(len, out.splitlines())) <= 80


def test_without_the_authority_or_the_user_it_ends_at_once(
    cluster: ProcessCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    becomes(0, "health", "--context", "admin.json")
    url = cluster[0].url
    begun = time.monotonic()
    for words, reason in (
        (["-s", url], "certificate verify failed"),
        (["--context", "admin.json", "--password", "wrong"], "Authorization Violation"),
        (["-s", "nats://127.0.0.1:1", "--context", "admin.json"], "no server could be reached"),
    ):
        capsys.readouterr()
        assert run_command(["decommission", "n3", *words]) == 2
        assert reason in capsys.readouterr().err
    assert time.monotonic() - begun < 5
