"""Advisories about streams and API calls: subjects, accounts and fields, the same on nats-server."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from testkit.client import Client, ClientError, create_stream
from testkit.harness import Node, ProcessCluster, eventually
from tests.cluster.test_membership import CONFIG

pytestmark = pytest.mark.cluster

ENVELOPE = {"type", "id", "timestamp"}
CLIENT = {
    "start",
    "host",
    "id",
    "acc",
    "user",
    "name",
    "lang",
    "ver",
    "rtt",
    "server",
    "cluster",
    "kind",
    "client_type",
}


class Ear:
    """Collects advisories of one node, for account A and for the system account, by the last part of the subject."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, dict[str, Any]]] = []
        self._clients: list[Client] = []

    async def listen(self, node: Node) -> None:
        for user, account in (("a", "A"), ("s", "$SYS")):
            client = await Client.connect(f"nats://{user}:{user}@127.0.0.1:{node.port}")
            client.subscribe("$JS.EVENT.ADVISORY.>", lambda m, at=account: self._take(at, m))
            await client.flush()
            self._clients.append(client)

    def _take(self, account: str, msg: Any) -> None:
        self.heard.append((account, msg.subject.decode().removeprefix("$JS.EVENT.ADVISORY."), msg.json()))

    def of(self, subject: str, account: str = "A") -> list[dict[str, Any]]:
        return [event for at, where, event in self.heard if (at, where) == (account, subject)]

    async def wait(self, subject: str, count: int = 1, account: str = "A", within: float = 10.0) -> dict[str, Any]:
        await eventually(
            lambda: len(self.of(subject, account)) >= count, within, f"{subject} is not published in {account}"
        )
        return self.of(subject, account)[count - 1]

    def close(self) -> None:
        for client in self._clients:
            client.close()


def check(event: dict[str, Any], type: str, fields: set[str], extra: set[str] | None = None) -> None:
    """All of `fields` besides the envelope, and at most `extra` more."""
    assert event["type"] == f"io.nats.jetstream.advisory.v1.{type}"
    assert isinstance(event["id"], str) and len(event["id"]) == 22
    assert event["timestamp"].endswith("Z")
    found = set(event) - ENVELOPE
    assert fields <= found <= fields | (extra or set()), found ^ fields


async def ask(client: Client, subject: str, body: Any = None) -> None:
    with contextlib.suppress(ClientError):
        await client.api(subject, body)


async def test_stream_actions_and_audit(server: str) -> None:
    ear = Ear()
    async with ProcessCluster(3, server, config=CONFIG) as nodes, await nodes[0].connect() as client:
        await ear.listen(nodes[1])
        await asyncio.sleep(0.3)  # the listener's interest is on its way
        await create_stream(client, "S", ["s"], 3)
        # nats-server does not tell who asked; we do.
        created = await ear.wait("STREAM.CREATED.S")
        check(created, "stream_action", {"stream", "action"}, {"client"})
        assert (created["stream"], created["action"]) == ("S", "create")
        for account, fields in (
            ("A", {"stream", "leader", "replicas"}),
            ("$SYS", {"account", "stream", "leader", "replicas"}),
        ):
            elected = await ear.wait("STREAM.LEADER_ELECTED.S", account=account)
            check(elected, "stream_leader_elected", fields)
            assert sorted(replica["name"] for replica in elected["replicas"]) == ["n1", "n2", "n3"]
            assert elected["leader"] in ("n1", "n2", "n3")
            for replica in elected["replicas"]:
                assert {"name", "current", "active", "peer"} <= set(replica) <= {
                    "name", "current", "active", "peer", "lag", "offline",
                }  # fmt: skip
        assert (await ear.wait("STREAM.LEADER_ELECTED.S", account="$SYS"))["account"] == "A"
        await ask(client, "STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3, "max_msgs": 5})
        assert (await ear.wait("STREAM.UPDATED.S"))["action"] == "modify"
        await client.request("s", b"1")
        await ask(client, "STREAM.INFO.NONE")
        await ask(client, "STREAM.MSG.GET.S", {"seq": 1})
        await ask(client, "STREAM.MSG.GET.S", {"seq": 9})
        await ask(client, "STREAM.MSG.DELETE.S", {"seq": 1})
        await ask(client, "STREAM.DELETE.S")
        assert (await ear.wait("STREAM.DELETED.S"))["action"] == "delete"
        await ear.wait("API", 6)
        await asyncio.sleep(0.5)
        audits = ear.of("API")
        for audit in audits:
            check(audit, "api_audit", {"server", "client", "subject", "response"}, {"request"})
            assert audit["server"] in ("n1", "n2", "n3")
            assert set(audit["client"]) == CLIENT, set(audit["client"]) ^ CLIENT
            assert (audit["client"]["acc"], audit["client"]["user"], audit["client"]["server"]) == ("A", "a", "n1")
            assert (audit["client"]["kind"], audit["client"]["client_type"]) == ("Client", "nats")
        # A message that was found is not published: whoever listens would read the whole stream.
        in_order = sorted(audits, key=lambda audit: str(audit["timestamp"]))
        assert [(a["subject"].removeprefix("$JS.API.STREAM."), "error" in a["response"]) for a in in_order] == [
            ("CREATE.S", False), ("UPDATE.S", False), ("INFO.NONE", True),
            ("MSG.GET.S", True), ("MSG.DELETE.S", False), ("DELETE.S", False),
        ]  # fmt: skip
        assert not [where for at, where, _ in ear.heard if at == "$SYS" and where.startswith(("API", "STREAM.CREATED"))]
        ear.close()


async def test_a_new_leader_of_the_meta_group_is_told_in_the_system_account(server: str) -> None:
    ear = Ear()
    async with ProcessCluster(3, server, config=CONFIG) as nodes:
        await ear.listen(nodes[1])
        await asyncio.sleep(0.3)  # the listener's interest is on its way
        async with await Client.connect(f"nats://s:s@127.0.0.1:{nodes[0].port}") as client:
            await ask(client, "META.LEADER.STEPDOWN")
        told = await ear.wait("DOMAIN.LEADER_ELECTED", account="$SYS")
        check(told, "domain_leader_elected", {"leader", "replicas", "cluster"}, {"client"})
        assert {one["name"] for one in told["replicas"]} == {"n1", "n2", "n3"}
        assert told["leader"] in {one["peer"] for one in told["replicas"]} and told["cluster"] == "C"
        assert not ear.of("DOMAIN.LEADER_ELECTED")
        ear.close()


async def test_a_leader_without_its_majority_says_so(server: str) -> None:
    ear = Ear()
    async with ProcessCluster(3, server, config=CONFIG) as nodes:
        async with await nodes[0].connect() as client:
            await create_stream(client, "S", ["s"], 3)
            await create_stream(client, "ONE", ["one"], 1)
            await client.request("s", b"1")
        await asyncio.sleep(1)
        leader = await nodes.stream_leader("S")
        await ear.listen(leader)
        for node in nodes.nodes:
            if node is not leader:
                node.kill9()
        # nats-server looks every so often whether it has heard of anybody within 10 s.
        user = await ear.wait("STREAM.QUORUM_LOST.S", within=40)
        check(user, "stream_quorum_lost", {"stream", "replicas"})
        system = await ear.wait("STREAM.QUORUM_LOST.S", account="$SYS")
        check(system, "stream_quorum_lost", {"account", "stream", "replicas"})
        assert (user["stream"], system["account"]) == ("S", "A")
        for event in (user, system):
            assert {replica["name"]: replica["current"] for replica in event["replicas"]} == {
                node.name: node is leader for node in nodes.nodes
            }
        assert not ear.of("STREAM.QUORUM_LOST.ONE")
        ear.close()


async def test_pauses_are_published_when_they_begin_and_end(single: ProcessCluster) -> None:
    def at(seconds: float) -> str:
        return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")

    async with await single[0].connect() as client:
        await create_stream(client, "S", ["s"], 1)
        told: list[dict[str, Any]] = []
        client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.PAUSE.S.C", lambda msg: told.append(msg.json()))

        async def hears(paused: bool, until: str | None = None) -> None:
            await eventually(lambda: bool(told), 5.0, "nothing was published")
            event = told.pop(0)
            assert event["paused"] is paused and not told
            assert until is None or event["pause_until"].rstrip("Z")[:22] == until.rstrip("Z")[:22]

        soon = at(0.7)
        config = {"durable_name": "C", "ack_policy": "explicit", "pause_until": soon}
        await client.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
        await hears(True, soon)
        await hears(False, soon)  # by itself
        soon = at(0.7)
        await client.api("CONSUMER.PAUSE.S.C", {"pause_until": soon})
        await hears(True, soon)
        await hears(False, soon)
        await client.api("CONSUMER.PAUSE.S.C", {"pause_until": at(60)})
        await hears(True)
        await client.api("CONSUMER.PAUSE.S.C", {})
        await hears(False, "0001-01-01T00:00:00Z")
        await client.api("CONSUMER.PAUSE.S.C", {})  # it was not paused
        await asyncio.sleep(0.3)
        assert not told
