"""Fast-ingest batches (ADR-50): the same messages to nats-server and to ours, and every answer compared."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg

from testkit.harness import Node, find_server, free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.interop, pytest.mark.thorough]

Step = tuple[str, bytes, dict[str, str] | None]
"""Reply subject behind the inbox, payload, headers."""
QUIET = 0.06
"""Seconds without an answer after which the next message is sent."""


def msg(
    seq: int, op: int | None = None, *, id: str = "b", flow: int = 2, gap: str = "ok", data: bytes = b"x",
    h: dict[str, str] | None = None,
) -> Step:  # fmt: skip
    return f"{id}.{flow}.{gap}.{seq}.{min(seq - 1, 1) if op is None else op}.$FI", data, h


WRONG = {"Nats-Expected-Last-Sequence": "99"}
SAME = {"Nats-Msg-Id": "1"}
BATCH = {"Nats-Batch-Id": "q", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"}
PLUS = {"Nats-Incr": "+2"}

STORIES: dict[str, tuple[list[Step], dict[str, Any]]] = {
    "plain": ([msg(1), msg(2), msg(3), msg(4), msg(5, 2), msg(5, 4)], {}),
    "eob": ([msg(1), msg(2), msg(3), msg(4, 3)], {}),
    "single": ([msg(1, 2), msg(1, 2)], {}),
    "gap ok": ([msg(1), msg(2), msg(5), msg(6), msg(7, 2)], {}),
    "gap fail": ([msg(1, gap="fail"), msg(2, gap="fail"), msg(5, gap="fail"), msg(6, gap="fail")], {}),
    "backward": ([msg(1), msg(2), msg(3), msg(2), msg(4)], {}),
    "ping": ([msg(1), msg(2), msg(2, 4), msg(4, 4), msg(5), msg(5, 4), msg(6, 3)], {}),
    "ping fail": ([msg(1, gap="fail"), msg(2, gap="fail"), msg(4, 4, gap="fail"), msg(5, gap="fail")], {}),
    "unknown": ([msg(2), msg(3, 2), msg(3, 3), msg(3, 4), msg(1, 4)], {}),
    "disabled": ([msg(1), ("x.$FI", b"", None)], {"allow_batched": False}),
    "patterns": (
        [
            (f"{mark}.$FI", b"", None)
            for mark in (
                "1", "b.2.ok.1.5", "b.2.ok.0.0", "b.2.maybe.1.0", "b.2.ok.2.0", "b.2.ok.1.1", "b.2.ok.1.3",
                "b.2.ok.18446744073709551615.1", "b.2.ok.18446744073709551614.1", "b.2.ok.a.0", "b.2.ok.1.-1",
                "a.x.ok.1.0", "a.0.ok.2.3", "a.99999.ok.1.0", "a.0.ok.2.3", "a." + "9" * 30 + ".ok.1.0", "a.0.ok.2.3",
                "x" * 64 + ".2.ok.1.0", "x" * 65 + ".2.ok.1.0",
            )
        ],
        {},
    ),
    "refused first": ([msg(1, h=WRONG), msg(2), msg(3, 3)], {}),
    "refused commit": ([msg(1), msg(2), msg(3, 2, h=WRONG)], {}),
    "refused single": ([msg(1, 2, h=WRONG)], {}),
    "refused fail": ([msg(1, gap="fail"), msg(2, gap="fail", h=WRONG), msg(3, gap="fail")], {}),
    "refused fail first": ([msg(1, gap="fail", h=WRONG), msg(2, gap="fail")], {}),
    "refused fail commit": ([msg(1, gap="fail"), msg(2, gap="fail"), msg(3, 2, gap="fail", h=WRONG)], {}),
    "refused fail single": ([msg(1, 2, gap="fail", h=WRONG)], {}),
    "level": ([msg(1, h={"Nats-Required-Api-Level": "1"}), msg(2, h={"Nats-Required-Api-Level": "99"}), msg(3)], {}),
    "size": ([msg(1), msg(2, data=b"y" * 20), msg(3), msg(4, 2)], {"max_msg_size": 10}),
    "atomic headers": ([msg(1, h={"Nats-Batch-Id": "q"}), msg(2, h=BATCH), msg(3, 3)], {"allow_atomic": True}),
    "counter": (
        [msg(n, op, h=PLUS, data=b"") for n, op in ((1, 0), (2, 1), (3, 2), (1, 2))], {"allow_msg_counter": True}
    ),
    "rollup": (
        [msg(1), msg(2), msg(3, h={"Nats-Rollup": "sub"}), msg(4, 2, h={"Nats-Rollup": "all"})],
        {"allow_rollup_hdrs": True},
    ),
    "ttl": ([msg(1, h={"Nats-TTL": "1h"}), msg(2, 2, h={"Nats-TTL": "x"})], {"allow_msg_ttl": True}),
    "discard new": ([msg(n, gap="fail", flow=1) for n in (1, 2, 3, 4)], {"discard": "new", "max_msgs": 2}),
    "no ack": ([msg(1), msg(2), msg(3), msg(5), msg(6, 2)], {"no_ack": True}),
    "two batches": (
        [msg(1, flow=4), *(msg(n, flow=4, id="c") for n in range(1, 8)), msg(2, 2, flow=4), msg(8, 2, id="c")], {}
    ),
    "transform": ([msg(1), msg(2, 2)], {"subject_transform": {"src": "s.a", "dest": "s.b"}}),
    "memory": ([msg(1), msg(2), msg(3, 2)], {"storage": "memory"}),
} | {
    f"duplicates {gap}": (
        [msg(1, h=SAME, gap=gap), msg(2, h=SAME, gap=gap), msg(3, gap=gap), msg(4, h=SAME, gap=gap),
         msg(5, 2, h=SAME, gap=gap), msg(1, 2, h=SAME, gap=gap)], {}
    )
    for gap in ("ok", "fail")
}  # fmt: skip


async def tell(
    port: int, stories: dict[str, tuple[list[Step], dict[str, Any]]], quiet: float = QUIET
) -> dict[str, Any]:
    """All answers in each story, message by message, and what the stream holds at its end. `quiet`: so many seconds
    without an answer mean that there is none."""
    nc = await nats.connect(f"nats://127.0.0.1:{port}", max_reconnect_attempts=0)
    heard: list[tuple[str, str]] = []
    answered = asyncio.Event()

    async def take(message: Msg) -> None:
        heard.append((message.subject, message.data.decode()))
        answered.set()

    async def api(subject: str, body: object) -> Any:
        return json.loads((await nc.request(f"$JS.API.{subject}", json.dumps(body).encode(), timeout=5)).data)

    told: dict[str, Any] = {}
    for number, (name, (steps, config)) in enumerate(stories.items()):
        stream = {"name": "S", "subjects": ["s.>"], "allow_batched": True, **config}
        made = await api("STREAM.CREATE.S", stream)
        for _ in range(20):
            if made.get("error", {}).get("err_code") != 10049:
                break  # else nats-server still removes the files of the stream before
            await asyncio.sleep(0.1)
            made = await api("STREAM.CREATE.S", stream)
        assert "error" not in made, (name, made)
        sub = await nc.subscribe(f"inbox{number}.>", cb=take)
        told[name] = []
        for reply, data, headers in steps:
            await nc.publish("s.a", data, reply=f"inbox{number}.{reply}", headers=headers)
            while True:
                answered.clear()
                try:
                    async with asyncio.timeout(quiet):
                        await answered.wait()
                except TimeoutError:
                    break
            told[name].append([(at.removeprefix(f"inbox{number}."), body) for at, body in heard])
            heard.clear()
        await sub.unsubscribe()
        state = (await api("STREAM.INFO.S", {}))["state"]
        told[name].append((state["messages"], state["last_seq"]))
        await api("STREAM.DELETE.S", {})
    await nc.close()
    return told


async def started(kind: str, folder: Path) -> Node:
    command = find_server(kind)
    if command is None:
        pytest.skip(f"{kind} is not on this machine: run `make tools`")
    (port,) = free_ports(1)
    args = ["-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / kind)]
    node = Node(kind, command, folder / kind, port, args)
    await node.start()
    return node


async def test_every_answer_is_that_of_nats_server(tmp_path: Path) -> None:
    nodes = [await started(kind, tmp_path) for kind in ("nats-server", "jetcluster")]
    try:
        theirs, ours = [await tell(node.port, STORIES) for node in nodes]
        differ = [name for name in STORIES if theirs[name] != ours[name]]
        if differ:  # an answer that came late on a busy machine belongs to the next step: once more
            again = {name: STORIES[name] for name in differ}
            for told, node in ((theirs, nodes[0]), (ours, nodes[1])):
                told |= await tell(node.port, again, 10 * QUIET)
        for name in STORIES:
            assert ours[name] == theirs[name], name
    finally:
        for node in nodes:
            node.kill9()
