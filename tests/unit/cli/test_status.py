"""`jetcluster status` and `health` against a server that answers for a whole cluster."""

from __future__ import annotations

import json

import pytest

from jetcluster.cli import status
from jetcluster.cli.commands import run_command
from jetcluster.cli.common import DONE, NOT_REACHED
from tests.unit.cli.fake_cluster import follower, healthy, options, page, serving, stream

PING = "$SYS.REQ.SERVER.PING"
STREAMS = {"n1": (stream("S", "n1", (follower("n2", lag=5),)),)}


def test_the_screen_and_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(healthy("n1", "n2", streams=STREAMS)) as peer:
        assert run_command(["status", "-s", peer.url]) == DONE
        out = capsys.readouterr().out
        assert "cluster c1: 2 of 2 servers answer; meta leader: n1" in out and "- stream A/S: n2 lags by 5" in out
        assert run_command(["status", "-s", peer.url, "--json"]) == DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["healthy"], found["troubles"], found["meta_leader"]) == (True, [], "n1")
    assert [server["name"] for server in found["servers"]] == ["n1", "n2"]
    assert found["streams"][0]["replicas"][0]["lag"] == 5


def test_watching_goes_on_until_it_is_stopped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [0, 0]

    def sleep(_: float) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()

    monkeypatch.setattr(status.time, "sleep", sleep)
    with serving(healthy("n1")) as peer:
        assert status.run_status(options(peer), as_json=True, watch=True, every=1.0) == DONE
        left += [0]
        assert status.run_status(options(peer), as_json=False, watch=True, every=1.0) == DONE
    out = capsys.readouterr().out
    assert out.count('{"healthy": true') == 3 and out.count("cluster c1: 1 of 1 servers") == 2


def test_watching_servers_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["status", "--watch", "-s", "nats://127.0.0.1:1"]
    assert run_command(words) == NOT_REACHED
    assert "no server could be reached" in capsys.readouterr().err


def test_health_is_an_exit_code_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    answers = healthy("n1", "n2")
    with serving(answers) as peer:
        assert run_command(["health", "-s", peer.url]) == DONE
        answers[f"{PING}.HEALTHZ"][1] = page("n2", status="unavailable", error="the disk is full")
        assert run_command(["health", "-s", peer.url]) == status.UNHEALTHY
        assert run_command(["health", "-s", peer.url, "--json"]) == status.UNHEALTHY
    assert capsys.readouterr().out.splitlines() == [
        "cluster c1 is healthy", "n2: the disk is full", '{"healthy": false, "troubles": ["n2: the disk is full"]}',
    ]  # fmt: skip


def test_health_of_one_server(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {f"{PING}.HEALTHZ": [page("n1", status="ok")]}
    with serving(answers) as peer:
        assert run_command(["health", "n1", "-s", peer.url]) == DONE
        assert json.loads(peer.published[-1][3]) == {"details": True, "server_name": "n1", "exact_match": True}
        answers[f"{PING}.HEALTHZ"] = [page("n1", status="error", errors=[{"error": "x"}, {"error": "y"}])]
        assert run_command(["health", "n1", "-s", peer.url]) == status.UNHEALTHY
        answers[f"{PING}.HEALTHZ"] = []
        assert run_command(["health", "n9", "-s", peer.url, "--timeout", "100ms"]) == status.UNHEALTHY
    assert capsys.readouterr().out.splitlines() == ["n1 is healthy", "x", "y", "n9 does not answer within 0.1 s"]


@pytest.mark.parametrize("command", ["status", "health", "users"])
def test_a_user_who_may_not_ask_is_told_how(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"$SYS.REQ.USER.INFO": [page("n1", user="joe", account="A")]}) as peer:
        assert run_command([command, "-s", peer.url]) == NOT_REACHED
    assert "user 'joe' is of account 'A'" in capsys.readouterr().err
