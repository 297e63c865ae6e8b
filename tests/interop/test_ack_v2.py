"""Acks and flow control of version 2 between servers: `js_ack_fc_v2` at ours and at nats-server, as hub and as leaf."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from testkit.harness import eventually, find_server

from .leaf_pair import OURS, THEIRS, LeafPair
from .test_leaf import (
    test_a_mirror_follows_a_stream_of_the_other_domain,
    test_key_value_bucket_of_the_other_domain,
)

__all__ = [  # run here with the pairs of this file
    "test_a_mirror_follows_a_stream_of_the_other_domain",
    "test_key_value_bucket_of_the_other_domain",
]

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.thorough]

FLAG = "feature_flags: {js_ack_fc_v2: true}\n"
PAIRS = [(OURS, FLAG, THEIRS, FLAG), (THEIRS, FLAG, OURS, ""), (OURS, "", THEIRS, FLAG), (OURS, FLAG, OURS, FLAG)]


@pytest.fixture(params=PAIRS, ids=lambda p: f"{p[0]}{'-v2' * bool(p[1])}-hub-{p[2]}{'-v2' * bool(p[3])}-leaf")
async def pair(request: pytest.FixtureRequest, tmp_path: Path, newest_peer: None) -> AsyncIterator[LeafPair]:
    hub, hub_config, leaf, leaf_config = request.param
    if find_server(THEIRS) is None and THEIRS in request.param:
        pytest.skip("nats-server is not on this machine: run `make tools`")
    async with LeafPair(hub, leaf, tmp_path, hub_config=hub_config, leaf_config=leaf_config) as found:
        found.v2 = {"hub": bool(hub_config), "edge": bool(leaf_config)}
        yield found


async def test_acks_of_each_kind_cross_the_link(pair: LeafPair) -> None:
    for client, domain in ((pair.at_leaf, "hub"), (pair.at_hub, "edge")):
        js = client.jetstream(domain=domain)
        await js.add_stream(name="ACKS", subjects=[f"acks.{domain}.>"])
        for n in range(6):
            await js.publish(f"acks.{domain}.{n}", b"%d" % n)
        await js.add_consumer("ACKS", ConsumerConfig(durable_name="c", ack_policy=AckPolicy.EXPLICIT))
        sub = await js.pull_subscribe_bind("c", "ACKS")
        messages = await sub.fetch(6, timeout=5)
        tokens = messages[0].reply.split(".")
        assert len(tokens) == (11 if pair.v2[domain] else 9) and (tokens[2] == domain) == pair.v2[domain]
        assert messages[2].metadata.sequence.stream == 3
        await messages[0].ack_sync()
        await messages[1].ack()
        await messages[2].term()
        await messages[3].in_progress()
        await messages[4].nak()
        await messages[5].nak(delay=600)
        (again,) = await sub.fetch(1, timeout=5)
        assert again.data == b"4" and again.metadata.num_delivered == 2
        await again.ack_sync()
        info = await js.consumer_info("ACKS", "c")
        assert (info.ack_floor.stream_seq, info.num_ack_pending) == (3, 2)


async def test_a_push_consumer_with_flow_control_across_the_link(pair: LeafPair) -> None:
    for client, domain in ((pair.at_leaf, "hub"), (pair.at_hub, "edge")):
        js = client.jetstream(domain=domain)
        await js.add_stream(name="FLOW", subjects=[f"flow.{domain}"])
        for _ in range(200):
            await js.publish(f"flow.{domain}", b"x" * 5000)
        got: list[Any] = []
        done = asyncio.Event()

        async def take(message: Any, got: list[Any] = got, done: asyncio.Event = done) -> None:
            got.append(message)
            if len(got) == 200:
                done.set()

        # no ordered consumer: that of nats-py 2.16 reads version 1 only
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, flow_control=True, idle_heartbeat=5)
        await js.subscribe(f"flow.{domain}", config=config, cb=take)
        await asyncio.wait_for(done.wait(), 30)
        assert [message.metadata.sequence.stream for message in got] == list(range(1, 201))


async def test_a_work_queue_is_read_by_a_stream_of_the_other_domain(pair: LeafPair) -> None:
    """Its durable consumer has the ack policy `flow_control`: answers to flow control settle what was stored."""
    for reader, upstream, domain, side in (
        (pair.at_leaf, pair.at_hub, "hub", "down"),
        (pair.at_hub, pair.at_leaf, "edge", "up"),
    ):
        above = upstream.jetstream()
        await above.add_stream(name=f"WORK_{side}", subjects=[f"work.{side}.>"], retention="workqueue")
        for n in range(150):
            await above.publish(f"work.{side}.{n}", b"%d" % n)
        source = {"name": f"WORK_{side}", "external": {"api": f"$JS.{domain}.API", "deliver": f"from.{domain}"}}
        body = json.dumps({"name": f"TAKEN_{side}", "storage": "file", "sources": [source]}).encode()
        made = json.loads((await reader.request(f"$JS.API.STREAM.CREATE.TAKEN_{side}", body, timeout=5)).data)
        assert "error" not in made, made
        below = reader.jetstream()

        async def taken(below: Any = below, above: Any = above, side: str = side) -> bool:
            there = (await below.stream_info(f"TAKEN_{side}")).state.messages
            left = (await above.stream_info(f"WORK_{side}")).state.messages
            return bool(there == 150 and left == 0)

        await eventually(taken, 30, "the queue's messages are not taken and settled", every=0.2)
