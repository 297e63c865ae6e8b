"""`jetcluster doctor`: findings for people and as JSON, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jetcluster.cli import doctor
from jetcluster.cli.commands import run_command
from jetcluster.cli.common import DONE, NOT_REACHED
from jetcluster.cli.doctor import BAD, lines, summary
from jetcluster.doctor import catalogue as kinds
from jetcluster.doctor.finding import Finding, Subject
from jetcluster.doctor.report import Collector, Report
from tests.unit.client.fake_server import Peer, hmsg, msg

ABSENT = kinds.ABSENT.found(Subject("n3"), "n3 is absent: it was last heard 56 s ago", silent_seconds=56.0)
NOTES = [kinds.ONE_REPLICA.found(Subject(stream=f"S{n}"), f"S{n} has one replica, on n1") for n in range(8)]


def report(*found: Finding) -> Report:
    collector = Collector()
    collector.add(found)
    return collector.report()


def serving(*found: Finding, **more: Any) -> Peer:
    """A server that has these findings for the system account, or answers with `error`."""

    def reply(subject: bytes, to: bytes, _headers: bytes, body: bytes) -> bytes:
        if not subject.startswith(b"$SYS.REQ.SERVER.") or not subject.endswith(b".FINDINGS"):
            return hmsg(to, b"NATS/1.0 503\r\n\r\n")
        assert json.loads(body) == {"cluster": True}
        data = {"servers": ["n1", "n2"], "unanswered": [], **report(*found).to_dict()}
        return msg(to, json.dumps(more or {"data": data}).encode())

    return Peer(reply)


def config(tmp_path: Path, text: str = 'server_name: n1, host: "127.0.0.1", port: -1') -> str:
    path = tmp_path / "server.conf"
    path.write_text(text)
    return str(path)


def test_the_exit_code_is_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ABSENT, *NOTES) as peer:
        assert run_command(["doctor", "-s", peer.url]) == BAD
    out = capsys.readouterr().out
    assert out.startswith(
        "bad   JC101  A server of the cluster is absent\n  - n3 is absent: it was last heard 56 s ago\n"
    )
    assert out.endswith("1 bad, 0 warnings, 8 notes. Looked at: 2 servers\n")
    with serving(*NOTES) as peer:
        assert run_command(["doctor", "-s", peer.url]) == DONE
    with serving() as peer:
        assert run_command(["doctor", "-s", peer.url]) == DONE
    assert capsys.readouterr().out.endswith("Nothing is wrong. Looked at: 2 servers\n")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ABSENT) as peer:
        assert run_command(["doctor", "-s", peer.url, "--json"]) == BAD
    found = json.loads(capsys.readouterr().out)
    assert (found["servers"], found["machine"], found["counts"]["bad"]) == (["n1", "n2"], False, 1)
    assert found["findings"][0]["figures"] == {"silent_seconds": 56.0}


def test_a_cluster_that_cannot_be_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_command(["doctor", "-s", "nats://127.0.0.1:1"]) == NOT_REACHED
    assert "no server could be reached" in capsys.readouterr().err
    assert run_command(["doctor", "-s", "nats://127.0.0.1:1", "--config", config(tmp_path)]) == NOT_REACHED
    assert "this machine" in capsys.readouterr().out, "the machine is looked at all the same"
    with serving(error={"code": 503, "description": "too much is being worked on"}) as peer:
        assert run_command(["doctor", "-s", peer.url]) == NOT_REACHED
    assert "too much is being worked on" in capsys.readouterr().err


def test_a_user_of_another_account_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with Peer(lambda subject, to, headers, body: hmsg(to, b"NATS/1.0 503\r\n\r\n")) as peer:
        assert run_command(["doctor", "-s", peer.url]) == NOT_REACHED
    assert "servers answer this to a user of the system account" in capsys.readouterr().err


def test_a_server_that_does_not_know_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    def reply(subject: bytes, to: bytes, _headers: bytes, _body: bytes) -> bytes:
        return msg(to, b"{}") if subject.endswith(b".IDZ") else hmsg(to, b"NATS/1.0 503\r\n\r\n")

    with Peer(reply) as peer:
        assert run_command(["doctor", "-s", peer.url]) == NOT_REACHED
    assert "does not know this request" in capsys.readouterr().err


def test_the_machine_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_command(["doctor", "--offline"]) == NOT_REACHED
    assert "--config" in capsys.readouterr().err
    assert run_command(["doctor", "--offline", "--config", config(tmp_path, "port: [")]) == BAD
    assert capsys.readouterr().out.startswith("bad   JC510  The configuration file is not valid\n")
    assert run_command(["doctor", "--offline", "--config", config(tmp_path)]) == DONE
    assert run_command(["doctor", "--offline", "--json", "--config", config(tmp_path, "port: 4999")]) == DONE
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "JC502" in {one["code"] for one in found["findings"]}, "the configuration's own findings"


def test_many_of_a_code_are_cut() -> None:
    some = list(lines(report(*NOTES), 80, everything=False))
    assert some[6] == "    It is away while its server is, and lost with its disk", "once, as all have the same reason"
    assert some[7] == "  - and 3 more (--all, or --json)"
    assert sum(line.startswith("  - S") for line in lines(report(*NOTES), 80, everything=True)) == 8
    assert max(map(len, some)) <= 80


def test_the_summary() -> None:
    assert summary(report(ABSENT), [], machine=True) == "1 bad, 0 warnings, 0 notes. Looked at: this machine"


def test_a_broken_answer_is_no_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(data={"servers": []}) as peer:
        assert run_command(["doctor", "-s", peer.url]) == NOT_REACHED
    assert "cannot be read" in capsys.readouterr().err
    assert doctor.TITLES["JC101"] == kinds.ABSENT.seen
