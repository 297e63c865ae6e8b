"""Reads of every strength at a mirror behind a leaf link, of a hub that is ours or a nats-server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client as NATS

from testkit.client import Client, Msg
from testkit.harness import eventually, find_server

from .leaf_pair import OURS, THEIRS, LeafPair, linked

pytestmark = pytest.mark.cluster

GET = "$JS.API.DIRECT.GET.ORIGIN"


async def api(client: NATS, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = await client.request(f"$JS.API.{subject}", json.dumps(body).encode(), timeout=5)
    found = json.loads(reply.data)
    assert "error" not in found, found
    return dict(found)


async def read(client: Client, subject: str = GET, **wishes: Any) -> tuple[str, Msg]:
    """(payload, or the status of a refusal; the answer) of the newest message on `o`."""
    wanted = json.dumps({"last_by_subj": "o", "read_info": True, **wishes}).encode()
    answer = await client.request(subject, wanted, 8.0)
    refused = answer.header.split(b"\r\n")[0].decode().removeprefix("NATS/1.0").strip()
    return answer.data.decode() or refused, answer


def seconds(told: Msg) -> float:
    text = told.get("Nats-Staleness") or ""
    for unit, factor in (("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    assert text.endswith("s"), text
    minutes, _, rest = text.removesuffix("s").rpartition("m")
    return 60 * float(minutes or 0) + float(rest)


@pytest.mark.parametrize("hub", [OURS, THEIRS])
async def test_a_mirror_at_the_edge_says_how_old_it_is(hub: str, tmp_path: Path) -> None:
    if find_server(hub) is None:
        pytest.skip("nats-server is not on this machine: run `make tools`")
    async with LeafPair(hub, OURS, tmp_path) as pair:
        origin = {"name": "ORIGIN", "subjects": ["o"], "allow_direct": True}
        await api(pair.at_hub, "STREAM.CREATE.ORIGIN", origin)
        jetstream = pair.at_hub.jetstream()
        await jetstream.publish("o", b"1")
        mirror = {"name": "ORIGIN", "external": {"api": "$JS.hub.API"}}
        await api(pair.at_leaf, "STREAM.CREATE.COPY", {"name": "COPY", "mirror": mirror, "mirror_direct": True})
        edge, at_hub = await pair.leaf.connect(), await pair.hub.connect()

        async def known() -> bool:
            found, told = await read(edge)
            return found == "1" and told.get("Nats-Staleness") != "unknown"

        await eventually(known, 30, "the mirror answers and knows how old it is")
        found, told = await read(edge)
        assert (told.get("Nats-Answered-As"), told.get("Nats-Answered-By")) == ("mirror", "leaf")
        # Within a bound that only a question can prove, and the token of a session.
        assert (await read(edge, max_staleness=1))[0] == "1"
        for number in range(2, 8):
            ack = await jetstream.publish("o", b"%d" % number)
            found, told = await read(edge, min_last_seq=ack.seq)
            assert found == str(number) and told.get("Nats-Applied-Sequence") == str(ack.seq)
            reply = await edge.request(GET + ".o", b"", 5.0, {"Nats-Min-Last-Sequence": str(ack.seq)})
            assert reply.data == b"%d" % number
        found, _ = await read(edge, consistency="linearizable")
        assert found == ("7" if hub == OURS else "503 No Leader"), "a nats-server's leader does not prove that it leads"
        if hub == OURS:
            for client in (at_hub, edge):
                for subject in ("$JS.hub.API.DIRECT_LEADER.GET.ORIGIN", "$JS.hub.API.DIRECT.GET.ORIGIN"):
                    found, told = await read(client, subject)
                    assert (found, told.get("Nats-Answered-By"), told.get("Nats-Answered-As")) == ("7", "hub", "leader")
        await pair.relay.cut()
        ack = await jetstream.publish("o", b"late")
        await asyncio.sleep(2.0)
        found, told = await read(edge, max_staleness=3600 * 10**9)
        assert found == "7" and seconds(told) >= 1.9, told
        found, told = await read(edge, max_staleness=10**9)
        assert found == "503 No Leader" and seconds(told) >= 1.9, told
        found, told = await read(edge, min_last_seq=ack.seq)
        assert (found, told.get("Nats-Applied-Sequence")) == ("503 Min Last Sequence", "7")
        assert (await read(edge))[0] == "7", "who asks for nothing is answered"
        await pair.relay.open()
        await linked(pair.leaf, within=60)

        async def again() -> bool:
            found, _ = await read(edge, max_staleness=10**9)
            return found == "late"

        await eventually(again, 60, "the mirror has caught up")
        edge.close()
        at_hub.close()
