"""Findings of real servers: the same from whichever is asked, and from `jetcluster doctor`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetcluster.cli.commands import run_command
from testkit.client import Client, ClientError, create_stream
from testkit.harness import Node, ProcessCluster, eventually

pytestmark = pytest.mark.cluster

CONFIG = """
jetstream { max_file_store: 1GB }
console: true
system_account: SYS
accounts {
  SYS { users: [ { user: sys, password: pw } ] }
  APP { jetstream: enabled, users: [ { user: app, password: pw } ] }
}
no_auth_user: app
"""


async def found(node: Node) -> dict[str, list[dict[str, Any]]]:
    """The findings of all servers by code, as this one says them."""
    page = await node.monitor("findingsz?cluster=1")
    codes: dict[str, list[dict[str, Any]]] = {}
    for one in page["findings"]:
        codes.setdefault(one["code"], []).append(one)
    return codes


async def doctor(node: Node, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    words = ["doctor", "--json", "-s", f"nats://127.0.0.1:{node.port}", "--user", "sys", "--password", "pw"]
    code = await asyncio.to_thread(run_command, words)
    return code, json.loads(capsys.readouterr().out)


async def refused(client: Client, name: str, **config: Any) -> None:
    with pytest.raises(ClientError):
        await create_stream(client, name, [f"{name}.>"], 3, **config)


async def test_every_server_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    async with ProcessCluster(3, config=CONFIG, monitor=True) as cluster, await cluster[0].connect() as client:
        await create_stream(client, "S", ["s.>"], 3)
        await create_stream(client, "ALONE", ["a"], 1)
        await cluster.wait_current("S")
        home = (await client.api("STREAM.INFO.ALONE"))["cluster"]["leader"]
        consumer = {"durable_name": "C", "ack_policy": "explicit", "max_ack_pending": 2}
        await client.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": consumer})
        for number in range(5):
            await client.request(f"s.{number}", b"", 5.0)
        client.subscribe("inbox", lambda message: None)
        client.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch": 2}', b"inbox")
        await refused(client, "LARGE", max_bytes=2 << 30)

        async def seen() -> bool:
            codes = await found(cluster[2])
            return {"JC312", "JC321", "JC402"} <= set(codes)

        await eventually(seen, 10.0, "the findings do not come")
        codes = await found(cluster[1])
        assert "JC101" not in codes and "JC301" not in codes
        assert codes["JC402"][0]["what"] == "C waits for acks: 2 of max_ack_pending 2 are open"
        assert "3 messages wait behind them" in codes["JC402"][0]["why"]
        assert [one["stream"] for one in codes["JC312"]] == ["ALONE"]
        assert codes["JC321"][0]["why"].startswith(
            "0 of 3 servers fit, 3 replicas are asked for; n1: 2.0 GiB are asked"
        )
        code, told = await doctor(cluster[0], capsys)
        assert (code, told["servers"], told["counts"]["bad"]) == (0, ["n1", "n2", "n3"], 0)

        cluster[2].kill9()

        async def missed() -> bool:  # an answer may be a second old
            return all([{"JC101", "JC202", "JC302"} <= set(await found(node)) for node in (cluster[0], cluster[1])])

        await eventually(missed, 15.0, "nobody misses the server")
        for node in (cluster[0], cluster[1]):
            codes = await found(node)
            assert [one["server"] for one in codes["JC101"]] == ["n3"]
            assert codes["JC101"][0]["what"].startswith("n3 is absent: it was last heard ")
            assert [one["stream"] for one in codes["JC302"]] == ["S"]
            away = [one["what"] for one in codes.get("JC301", ())]
            lost = ["ALONE has no leader: none of the servers of its replicas is there (n3)"]
            assert away == (lost if home == "n3" else []), "nobody but the asked one can tell"
        code, told = await doctor(cluster[1], capsys)
        assert (code, told["servers"], told["counts"]["bad"]) == (1, ["n1", "n2"], 1 + (home == "n3"))

        cluster[1].kill9()

        async def gone() -> bool:
            codes = await found(cluster[0])
            return "JC201" in codes and "S" in {one["stream"] for one in codes.get("JC301", ())}

        await eventually(gone, 15.0, "the last server does not say that nobody leads")
        codes = await found(cluster[0])
        assert codes["JC201"][0]["why"].startswith("1 of 3 members are there, 2 are needed.")
        leaderless = {one["stream"]: one["why"] for one in codes["JC301"]}
        assert leaderless["S"].startswith("Seen by n1: 1 of its 3 replicas are there, 2 are needed.")
        assert ("ALONE" in leaderless) is (home != "n1")
