"""`jetcluster users`: accounts and users, put together from all servers."""

from __future__ import annotations

import json

import pytest

from jetcluster.cli import users
from jetcluster.cli.commands import run_command
from jetcluster.cli.common import DONE
from jetcluster.cli.users import AccountState, described
from tests.unit.cli.fake_cluster import Json, healthy, page, serving
from tests.unit.client.fake_server import Peer, msg

PING = "$SYS.REQ.SERVER.PING"


def client(user: str, account: str, name: str = "", messages: int = 5) -> Json:
    return {"authorized_user": user, "account": account, "name": name, "subscriptions": 2, "pending_bytes": 10,
            "in_msgs": messages, "out_msgs": 1}  # fmt: skip


def cluster() -> dict[str, list[Json]]:
    answers = healthy("n1", "n2")
    answers[f"{PING}.ACCOUNTZ"] = [
        page(name, system_account="SYS", accounts=["A", "B", "SYS"]) for name in ("n1", "n2")
    ]
    answers[f"{PING}.CONNZ"] = [
        page("n2", total=2, connections=[client("joe", "A", "app"), client("", "A")]),
        page("n1", total=2, connections=[client("joe", "A", "app"), client("admin", "SYS")]),
    ]
    limits = {"conn": 100, "subs": -1, "disk_storage": 5_000, "wildcards": True}
    answers["$SYS.REQ.ACCOUNT.A.INFO"] = [page("n1", jetstream_enabled=True, decoded_jwt={"nats": {"limits": limits}})]
    return answers


def test_users_of_all_servers_by_account(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(cluster()) as peer:
        assert run_command(["users", "-s", peer.url]) == DONE
        assert run_command(["users", "-s", peer.url, "--json"]) == DONE
    *lines, as_json = capsys.readouterr().out.splitlines()
    assert lines[0] == "account A: JetStream: 1.0 kB in files; limits: conn 100, disk_storage 5,000"
    assert lines[2].split() == ["(no", "user)", "1", "2", "10", "B", "5", "1", "n2"]
    assert lines[3].split() == ["joe", "2", "4", "20", "B", "10", "2", "n1,", "n2"]
    assert lines[4:6] == ["account B", "  nobody is connected"]
    assert lines[6] == "account SYS: the system account"
    a, _, system = json.loads(as_json)
    assert a["users"][1]["clients"] == ["app"] and a["limits"] == {"conn": 100, "disk_storage": 5000}
    assert system["system"] and [user["name"] for user in system["users"]] == ["admin"]


def test_all_pages_of_connections_are_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(users, "PAGE", 2)
    clients = [client(f"u{n}", "A") for n in range(5)]
    answers = cluster()

    def reply(subject: bytes, to: bytes, _headers: bytes, body: bytes) -> bytes:
        if subject != f"{PING}.CONNZ".encode():
            return b"".join(msg(to, json.dumps(one).encode()) for one in answers.get(subject.decode(), [page("n1")]))
        at = json.loads(body)["offset"]
        pages = [page("n1", total=5, connections=clients[at : at + 2]), page("n2", total=0, connections=[])]
        return b"".join(msg(to, json.dumps(one).encode()) for one in pages)

    with Peer(reply) as peer:
        assert run_command(["users", "-s", peer.url, "--json"]) == DONE
    account = json.loads(capsys.readouterr().out)[0]
    assert [user["name"] for user in account["users"]] == ["u0", "u1", "u2", "u3", "u4"]


def test_usage_beside_its_limit() -> None:
    account = AccountState("A", jetstream=True, storage=5, reserved_storage=10_000, reserved_memory=2_000)
    assert described(account) == ": JetStream: 5 B in files of 10.0 kB, 0 B in memory of 2.0 kB"
    assert described(AccountState("A")) == ""
