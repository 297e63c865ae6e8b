"""What nats-server's mirrors and sources get on a stream whose messages go when they are acknowledged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.api.upstreams import make_durable, waits_for_acks
from jetcluster.model.consumer import ConsumerConfig
from tests.unit.cluster.nodes import Cluster, Node
from tests.unit.cluster.virtual_loop import virtual_time
from tests.unit.replica.test_mirror_host import fill, stop, with_api

ASKED: dict[str, Any] = {
    "name": "JS_SRC_x", "deliver_policy": "by_start_sequence", "opt_start_seq": 4, "ack_policy": "none",
    "ack_wait": 79_200_000_000_000, "max_deliver": 1, "flow_control": True, "deliver_subject": "$JS.S.a",
    "idle_heartbeat": 1_000_000_000, "inactive_threshold": 10_000_000_000, "direct": True, "sourcing": True,
}  # fmt: skip


def test_only_where_messages_would_go_unseen() -> None:
    link = ConsumerConfig.model_validate(ASKED)
    assert waits_for_acks(link, {"retention": "workqueue"}) and waits_for_acks(link, {"retention": "interest"})
    assert not waits_for_acks(link, {"retention": "limits"})
    assert not waits_for_acks(ConsumerConfig.model_validate({**ASKED, "sourcing": False}), {"retention": "interest"})


def test_what_it_becomes() -> None:
    link = ConsumerConfig.model_validate(ASKED)
    assert make_durable(link) == 4
    wire = link.to_wire()
    assert wire == {
        "durable_name": "JS_SRC_x", "name": "JS_SRC_x", "deliver_policy": "all", "ack_policy": "flow_control",
        "replay_policy": "instant", "max_ack_pending": 1000, "flow_control": True, "deliver_subject": "$JS.S.a",
        "idle_heartbeat": 1_000_000_000, **{k: v for k, v in wire.items() if k == "priority_policy"},
    }  # fmt: skip


async def ask(node: Node, **more: Any) -> dict[str, Any]:
    body = json.dumps({"stream_name": "UP", "config": {**ASKED, **more}}).encode()
    answer: dict[str, Any] = json.loads((await node.request(b"$JS.API.CONSUMER.CREATE.UP", body))[2])
    return answer


@virtual_time
@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_it_goes_on_where_it_says_and_what_it_has_is_acknowledged(retention: str) -> None:
    async with Cluster() as cluster:
        apis = with_api(cluster)
        await cluster.create("UP", retention=retention)
        first = await ask(cluster["B"], deliver_policy="all", opt_start_seq=0)
        assert first["config"]["ack_policy"] == "flow_control" and first["name"] == "JS_SRC_x"
        await fill(cluster["A"], 10)
        leader = await cluster.led("UP")
        got: list[bytes] = []
        listening = leader.bus.subscribe(b"$JS.S.a", lambda _s, _r, _h, payload, _o: payload and got.append(payload))
        await cluster.until(lambda: len(got) == 10, what="all are delivered")
        assert leader.replica("UP").store.messages == 10, "none is gone"
        leader.bus.unsubscribe(listening)
        again: list[bytes] = []
        leader.bus.subscribe(b"$JS.S.b", lambda _s, _r, _h, payload, _o: payload and again.append(payload))
        found = await ask(cluster["C"], deliver_subject="$JS.S.b")
        assert (found["delivered"]["consumer_seq"], found["config"]["deliver_subject"]) == (0, "$JS.S.b")
        await cluster.until(lambda: len(again) == 7, what="from 4 on")
        assert again == [b"%d" % n for n in range(3, 10)]
        await cluster.until(lambda: all(node.replica("UP").store.first_seq == 4 for node in cluster), what="1 to 3 go")
        await stop(apis)
