"""A client's connection as its server and monitoring know it."""

from __future__ import annotations

import json
from typing import Any

from jetcluster.config.account_options import AccountLimitOptions, AccountOptions
from testkit.server_rig import Bench, Nobody


def told(frames: bytes) -> list[dict[str, Any]]:
    """The INFOs in what a client was sent."""
    return [json.loads(line[5:]) for line in frames.split(b"\r\n") if line.startswith(b"INFO ")]


def test_a_message_may_be_as_large_as_the_smallest_limit_says() -> None:
    limits = AccountLimitOptions(max_payload=1000)
    bench = Bench(max_payload=5000, accounts={"$G": AccountOptions("$G", limits=limits)})
    client = bench.client().connection
    assert client.max_payload == 1000
    limits.max_payload = -1
    assert client.max_payload == 5000


def test_the_first_info_and_a_later_one() -> None:
    client = Bench(server_name="n1").client().connection
    first, later = client.info(first=True), client.info(first=False)
    assert (first["client_id"], first["client_ip"], "connect_info" in first) == (1, "127.0.0.1", False)
    assert (later["connect_info"], later["remote_account"]) == (True, "$G")


def test_without_a_user_it_is_not_told_to_log_in_where_there_is_one_for_it() -> None:
    assert Bench(Nobody()).server.new_client().info(first=True)["auth_required"] is True
    assert "auth_required" not in Bench(Nobody(), no_auth_user="u").server.new_client().info(first=True)


def test_info_comes_unasked_only_after_the_first_ping() -> None:
    peer = Bench().client()
    peer.connection.send_info()
    assert told(peer.read()) == []
    assert len(told(peer.ask(b"PING"))) == 1
    peer.connection.send_info()
    peer.connection.send_lame_duck()
    assert [info.get("ldm", False) for info in told(peer.read())] == [False, True]


def test_lines_about_it_say_who_it_is() -> None:
    bench = Bench()
    peer = bench.client(connect=b'CONNECT {"verbose":false,"name":"n","lang":"python","version":"1"}\r\n')
    assert peer.connection.head() == '127.0.0.1:5000 - cid:1 - "v1:python:n"'
    peer.connection.user = "u"
    assert peer.connection.head().endswith(' - "$G/user:u"')


def test_an_advisory_shows_what_is_known() -> None:
    bench = Bench(server_name="n1")
    found = bench.client().connection.client_info()
    assert (found["id"], found["acc"], found["server"], found["kind"], found["rtt"]) == (1, "$G", "n1", "Client", 0)
    assert "user" not in found, "it has not said one"
