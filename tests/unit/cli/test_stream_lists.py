"""`jetcluster streams` and `consumers`, through the API of an account and through the system account."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.cli.commands import run_command
from jetcluster.cli.common import DONE, NOT_REACHED, REFUSED
from tests.unit.cli.fake_cluster import NO_JETSTREAM, NOT_FOUND, follower, healthy, jsz, serving, stream
from tests.unit.client.fake_server import Peer, msg

API = "$JS.API"


def info(name: str, leader: str = "n1", replicas: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {**stream(name, leader, replicas), "config": {"name": name}}


def consumer(name: str, pending: int, unacked: int = 0, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_pending": pending, "num_ack_pending": unacked, "num_waiting": 1, "num_redelivered": 0,
            "ack_floor": {"stream_seq": 3}, "cluster": {"leader": "n1", "replicas": [follower("n2", lag=4)]},
            "config": {}, **more}  # fmt: skip


def unwrapped(rows: list[str]) -> list[str]:
    """Joins the lines in which the last column goes on."""
    found: list[str] = []
    for row in rows:
        assert len(row) <= 80
        if row.startswith(" "):
            found[-1] += f" {row.strip()}"
        else:
            found.append(row.rstrip())
    return found


def test_streams_of_an_account_in_pages(capsys: pytest.CaptureFixture[str]) -> None:
    infos = [info("B", replicas=(follower("n2", offline=True),)), info("A"), info("C", leader="")]

    def reply(_subject: bytes, to: bytes, _headers: bytes, body: bytes) -> bytes:
        at = json.loads(body)["offset"]
        return msg(to, json.dumps({"total": 3, "streams": infos[at : at + 2]}).encode())

    with Peer(reply) as peer:
        assert run_command(["streams", "-s", peer.url]) == DONE
        assert run_command(["streams", "-s", peer.url, "--json"]) == DONE
    head, *rows, as_json = capsys.readouterr().out.splitlines()
    assert head.split() == ["stream", "leader", "replicas", "messages", "size", "consumers", "lag"]
    rows = unwrapped(rows)
    assert [row.split()[0] for row in rows] == ["A", "B", "C"]
    assert rows[1].endswith("n2 is offline, last heard of 12s ago") and "no leader" in rows[2]
    assert [one["name"] for one in json.loads(as_json)] == ["A", "B", "C"]


def test_a_stream_that_nobody_answers_for_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({f"{API}.STREAM.LIST": [{"total": 2, "streams": [info("A")], "missing": ["B"]}]}) as peer:
        assert run_command(["streams", "-s", peer.url]) == DONE
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("A") and second.startswith("B") and second.rstrip().endswith("nobody answers for it")


def test_streams_of_all_accounts_for_the_system_account(capsys: pytest.CaptureFixture[str]) -> None:
    answers = healthy("n1", "n2", streams={"n1": (stream("S", "n1"),), "n2": (stream("T", "n2"),)})
    with serving({**answers, f"{API}.STREAM.LIST": [NO_JETSTREAM]}) as peer:
        assert run_command(["streams", "-s", peer.url]) == DONE
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["stream", "A/S", "A/T"]
    with serving(answers) as peer:  # nats-server answers nothing there
        assert run_command(["streams", "-s", peer.url, "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)[0]["account"] == "A"


def test_streams_that_are_on_no_server_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    answers = healthy("n1", "n2", streams={"n1": (stream("S", "n1"),)})
    one = {"account": "A", "name": "GONE", "servers": []}
    answers["$SYS.REQ.SERVER.PING.JSZ"][0]["data"]["meta_cluster"]["lost"] = {"streams": 3, "first": [one]}
    with serving(answers) as peer:
        assert run_command(["streams", "-s", peer.url]) == DONE
        shown = capsys.readouterr()
        assert run_command(["streams", "-s", peer.url, "--json"]) == DONE
    assert shown.err == "jetcluster streams: 2 more streams are on no server that answers\n"
    row, last = shown.out.splitlines()[1:]
    assert row.split()[:2] == ["A/GONE", "-"] and row.rstrip().endswith("it is on no server any more")
    assert last.split()[:2] == ["A/S", "n1"]
    assert [one["trouble"] for one in json.loads(capsys.readouterr().out)] == ["it is on no server any more", ""]


def test_an_account_without_jetstream(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({f"{API}.STREAM.LIST": [NO_JETSTREAM]}) as peer:
        assert run_command(["streams", "-s", peer.url]) == REFUSED
    assert "the account of this user has no JetStream" in capsys.readouterr().err
    with serving({f"{API}.STREAM.LIST": [{"total": 0, "streams": None}]}) as peer:
        assert run_command(["streams", "-s", peer.url]) == DONE
    assert capsys.readouterr().out == "there are no streams\n"


def test_consumers_the_slowest_first(capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        consumer("fast", 0, dead_letters={"waiting": 12}, order_per_key={"keys_waiting": 70_000, "members": 3}),
        consumer("slow", 500, order_per_key={"keys_waiting": 7, "members": 3}),
        consumer("stuck", 0, 1000, paused=True),
        consumer("push", 1, config={"deliver_subject": "x"}, cluster=None),
    ]  # fmt: skip
    with serving({f"{API}.CONSUMER.LIST.S": [{"total": 4, "consumers": found}]}) as peer:
        assert run_command(["consumers", "S", "-s", peer.url]) == DONE
        assert run_command(["consumers", "S", "-s", peer.url, "--json"]) == DONE
    _, *rows, as_json = capsys.readouterr().out.splitlines()
    rows = unwrapped(rows)
    assert [row.split()[0] for row in rows] == ["stuck", "slow", "push", "fast"]
    assert "pull, paused" in rows[0] and "1,000" in rows[0] and "push, unbound" in rows[2]
    assert "pull, keys: 7," in rows[1] and rows[1].endswith("n1; n2 lags by 4")
    assert "pull, letters: 12" in rows[3]
    assert [one["name"] for one in json.loads(as_json)] == ["stuck", "slow", "push", "fast"]


def test_consumers_through_the_system_account(capsys: pytest.CaptureFixture[str]) -> None:
    led = {**stream("S", "n1"), "consumer_detail": [consumer("here", 7)]}
    followed = {**stream("S", "n1"), "consumer_detail": [consumer("stale", 9)]}
    answers = healthy("n1", "n2")
    answers["$SYS.REQ.SERVER.PING.JSZ"] = [jsz("n2", followed), jsz("n1", led)]
    with serving(answers) as peer:
        assert run_command(["consumers", "A/S", "-s", peer.url]) == DONE
        body = json.loads(next(body for subject, _, _, body in peer.published if subject.endswith(b"JSZ")))
        assert (body["acc"], body["consumer"]) == ("A", True)
        assert run_command(["consumers", "A/T", "-s", peer.url]) == REFUSED
        answers["$SYS.REQ.SERVER.PING.JSZ"] = [jsz("n2", followed)]
        assert run_command(["consumers", "A/S", "-s", peer.url]) == REFUSED
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split()[0] == "here"
    assert "no server reports a stream T of account A" in err and "stream A/S has no leader that answers" in err


def test_more_consumers_than_a_server_puts_into_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    answers = healthy("n1", "n2")
    error = {"server": {"name": "n2", "id": "Nn2"}, "error": {"code": 413, "description": "the reply is too large"}}
    answers["$SYS.REQ.SERVER.PING.JSZ"] = [jsz("n1"), error]
    with serving(answers) as peer:
        assert run_command(["consumers", "A/S", "-s", peer.url]) == REFUSED
    told = "n2 does not list them (the reply is too large); a user of account A gets them in pages: consumers S"
    assert told in capsys.readouterr().err
    answers["$SYS.REQ.SERVER.PING.JSZ"] = [jsz("n1")]
    with serving(answers) as peer:
        assert run_command(["consumers", "A/S", "-s", peer.url, "--timeout", "1s"]) == REFUSED
        assert "n2 did not list them in time" in capsys.readouterr().err
        assert run_command(["streams", "-s", peer.url, "--timeout", "1s"]) == DONE
    assert capsys.readouterr().err == "jetcluster streams: n2 did not list their streams in time\n"


def test_consumers_for_a_user_without_jetstream(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({f"{API}.CONSUMER.LIST.S": [NO_JETSTREAM]}) as peer:
        assert run_command(["consumers", "S", "-s", peer.url]) == REFUSED
    assert "a user of the system account asks for ACCOUNT/S" in capsys.readouterr().err


def test_consumers_of_no_stream(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({f"{API}.CONSUMER.LIST.S": [NOT_FOUND], f"{API}.CONSUMER.LIST.T": [{"total": 0}]}) as peer:
        assert run_command(["consumers", "S", "-s", peer.url]) == REFUSED
        assert run_command(["consumers", "T", "-s", peer.url]) == DONE
        assert run_command(["consumers", "/", "-s", peer.url]) == NOT_REACHED
    out, err = capsys.readouterr()
    assert out == "stream T has no consumers\n" and "stream not found" in err
