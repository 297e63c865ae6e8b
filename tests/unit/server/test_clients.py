"""The clients of a server: how many there may be, what is left of those that are gone, and the parts that all of them
use.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from jetcluster.config.account_options import AccountLimitOptions, AccountOptions
from testkit.server_rig import Nobody, ServerRig


def test_there_are_no_more_than_max_connections() -> None:
    rig = ServerRig(max_connections=2)
    clients = rig.server.clients
    first, second, third = rig.client(), rig.client(), rig.client()
    assert third.closed == "Maximum Connections Exceeded" and list(clients) == [first.connection, second.connection]
    assert (len(clients), clients.connected, clients.total, clients.is_full) == (2, 2, 2, False)
    clients.handshakes += 1
    assert clients.is_full
    clients.handshakes -= 1
    assert clients.shed(1) == 1 and second.closed and not first.closed, "the newest go"
    assert clients.shed(-1) == 1 and first.closed, "less than none is none"


def test_an_account_has_its_own_limit() -> None:
    limits = AccountLimitOptions(max_connections=2)
    rig = ServerRig(accounts={"$G": AccountOptions("$G", limits=limits)})
    clients, peers = rig.server.clients, [rig.client() for _ in range(2)]
    assert not clients.has_room("$G") and clients.has_room("other")
    limits.max_connections = 1
    clients.shed_of("$G")
    assert [peer.closed for peer in peers] == ["", "Maximum Account Connections Exceeded"]
    assert clients.of_account("$G") == [peers[0].connection]


def test_a_login_looks_at_no_other_client() -> None:
    """Where an account has a limit: tens of thousands that came back at once looked at each other, a minute long."""
    limits = AccountLimitOptions(max_connections=3)
    rig = ServerRig(accounts={"$G": AccountOptions("$G", limits=limits), "B": AccountOptions("B", limits=limits)})
    clients, peers = rig.server.clients, [rig.client() for _ in range(3)]
    first, second, third = (peer.connection for peer in peers)
    clients.__dict__["_present"] = Unwalked(clients.__dict__["_present"])
    assert rig.client().closed == "Maximum Account Connections Exceeded"
    clients.departs(first)
    assert clients.has_room("$G"), "one that has departed counts no more"
    clients.forget(first)
    clients.enters(second, "B")
    clients.forget(third)
    again = [rig.client() for _ in range(4)]
    assert [bool(peer.closed) for peer in again] == [False, False, False, True] and clients.has_room("B")
    clients.forget(second)
    clients.forget(second)
    assert clients.has_room("$G") is False


class Unwalked(dict[int, Any]):
    """Nobody may look at all of them."""

    def items(self) -> NoReturn:
        raise AssertionError("a walk over all clients")

    values = __iter__ = items


def test_one_that_has_departed_counts_for_no_limit_but_is_there() -> None:
    rig = ServerRig(max_connections=1)
    gone = rig.client().connection
    rig.server.clients.departs(gone)
    assert (len(rig.server.clients), rig.server.clients.connected) == (1, 0)
    assert not rig.client().closed
    rig.server.clients.forget(gone)
    rig.server.clients.forget(gone)
    assert len(rig.server.clients.closed) == 1, "once"


def test_what_is_left_of_one_that_is_gone(rig: ServerRig) -> None:
    told: list[str] = []

    class Watcher:
        def connected(self, client: object) -> None:
            told.append("connected")

        def disconnected(self, client: object) -> None:
            told.append("disconnected")

    rig.server.clients.watch(Watcher())
    peer = rig.client(b"SUB a 1")
    peer.send(b"PUB a 3", b"abc")
    slow = rig.client()
    slow.connection.abort("Slow Consumer (Pending Bytes)")
    peer.connection.close("Client Closed")
    totals = rig.server.clients.totals()
    assert (totals.in_msgs, totals.out_bytes) == (1, 3)
    assert rig.server.clients.closed_totals["$G"].slow_consumers == 1
    assert [(one.cid, one.reason, one.subscriptions) for one in rig.server.clients.closed] == [
        (2, "Slow Consumer (Pending Bytes)", 0), (1, "Client Closed", 1)
    ]  # fmt: skip
    assert told == ["connected", "connected", "disconnected", "disconnected"]
    assert rig.server.clients.get(1) is None


def test_one_whose_handshake_came_to_nothing_has_been_a_connection(rig: ServerRig) -> None:
    client = rig.server.new_client()
    client.end_unmade("TLS Handshake Failure")
    rig.server.clients.count_failed_handshake(client)
    assert rig.server.clients.total == len(rig.server.clients.closed) == 1 and not rig.server.clients


def test_no_number_is_given_twice() -> None:
    parts = ServerRig().server.parts
    assert [parts.new_cid() for _ in range(3)] == [1, 2, 3]


async def test_work_that_is_under_way_is_known_until_it_is_done() -> None:
    parts, go_on = ServerRig().server.parts, asyncio.Event()

    async def work() -> None:
        await go_on.wait()

    parts.spawn(work())
    assert len(parts.tasks) == 1
    go_on.set()
    await asyncio.gather(*parts.tasks)
    await asyncio.sleep(0)
    assert not parts.tasks


def test_at_first_there_is_nobody_to_look_anything_up() -> None:
    assert ServerRig().server.parts.look_up(PermissionError()) is None


def test_a_limit_of_subscriptions_is_a_limit() -> None:
    rig = ServerRig(max_subscriptions=1000)
    client = rig.client(*[b"SUB a.%d 1%d" % (n, n) for n in range(1000)])
    assert client.ask(b"SUB b 2") == b"-ERR 'maximum subscriptions exceeded'\r\n"
    assert client.ask(b"UNSUB 17", b"SUB b 2") == b""
    assert len(client.connection.subscriptions) == 1000


# A client's connection as its server and monitoring know it.


def told(frames: bytes) -> list[dict[str, Any]]:
    """The INFOs in what a client was sent."""
    return [json.loads(line[5:]) for line in frames.split(b"\r\n") if line.startswith(b"INFO ")]


def test_a_message_may_be_as_large_as_the_smallest_limit_says() -> None:
    limits = AccountLimitOptions(max_payload=1000)
    rig = ServerRig(max_payload=5000, accounts={"$G": AccountOptions("$G", limits=limits)})
    client = rig.client().connection
    assert client.max_payload == 1000
    limits.max_payload = -1
    assert client.max_payload == 5000


def test_the_first_info_and_a_later_one() -> None:
    client = ServerRig(server_name="n1").client().connection
    first, later = client.info(first=True), client.info(first=False)
    assert (first["client_id"], first["client_ip"], "connect_info" in first) == (1, "127.0.0.1", False)
    assert (later["connect_info"], later["remote_account"]) == (True, "$G")


def test_without_a_user_it_is_not_asked_to_log_in_where_there_is_one_for_it() -> None:
    assert ServerRig(Nobody()).server.new_client().info(first=True)["auth_required"] is True
    assert "auth_required" not in ServerRig(Nobody(), no_auth_user="u").server.new_client().info(first=True)


def test_info_comes_unasked_only_after_the_first_ping() -> None:
    peer = ServerRig().client()
    peer.connection.send_info()
    assert told(peer.read()) == []
    assert len(told(peer.ask(b"PING"))) == 1
    peer.connection.send_info()
    peer.connection.send_lame_duck()
    assert [info.get("ldm", False) for info in told(peer.read())] == [False, True]


def test_lines_about_it_say_who_it_is(rig: ServerRig) -> None:
    peer = rig.client(connect=b'CONNECT {"verbose":false,"name":"n","lang":"python","version":"1"}\r\n')
    assert peer.connection.head() == '127.0.0.1:5000 - cid:1 - "v1:python:n"'
    peer.connection.user = "u"
    assert peer.connection.head().endswith(' - "$G/user:u"')


def test_an_advisory_shows_what_is_known() -> None:
    rig = ServerRig(server_name="n1")
    found = rig.client().connection.client_info()
    assert (found["id"], found["acc"], found["server"], found["kind"], found["rtt"]) == (1, "$G", "n1", "Client", 0)
    assert "user" not in found, "it has not said one"
