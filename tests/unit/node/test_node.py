"""A node's life: start, stop, and what it says when it cannot (node/node.py, node/node_jetstream.py)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jetcluster import logs
from jetcluster.api import dispatch
from jetcluster.config.options import JetStreamOptions, Options
from jetcluster.monitor.start import NodeMonitoring
from jetcluster.node.node import Node
from jetcluster.node.node_jetstream import StorageError
from jetcluster.server.listener import ListenError


def options(store: Path) -> Options:
    return Options(
        server_name="n1", host="127.0.0.1", port=-1, jetstream=JetStreamOptions(enabled=True, store_dir=str(store))
    )


async def started(store: Path) -> Node:
    node = Node(options(store), logs.get_logger("test"), monitoring=NodeMonitoring)
    await node.start()
    return node


def engine(node: Node) -> Any:
    assert node.jetstream is not None
    return node.jetstream.jetstream


async def create(node: Node, name: str) -> None:
    """Creates a stream through the API, as a client of this node."""
    done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    bus = node.server.account("$G")
    inbox = bus.subscribe(b"_INBOX.1", lambda subject, reply, headers, payload, origin: done.set_result(payload))
    config = {"name": name, "subjects": [name.lower()], "num_replicas": 1}
    bus.ask(b"$JS.API.STREAM.CREATE." + name.encode(), json.dumps(config).encode(), b"_INBOX.1")
    answer = json.loads(await asyncio.wait_for(done, 5))
    bus.unsubscribe(inbox)
    assert "error" not in answer, answer


async def test_a_started_node_loads_its_request_handlers_before_the_first_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients with short timeouts would wait for 0.1 s of imports."""
    loaded: list[Any] = []
    monkeypatch.setattr(dispatch, "_loaded", loaded)
    node = await started(tmp_path)
    try:
        async with asyncio.timeout(5):
            while not loaded:
                await asyncio.sleep(0.01)
    finally:
        await node.stop()


async def test_who_waits_for_messages_is_answered_when_the_server_stops(tmp_path: Path) -> None:
    node = await started(tmp_path)
    await create(node, "S")
    reader, writer = await asyncio.open_connection("127.0.0.1", node.server.port)
    config = b'{"stream_name":"S","config":{"name":"c","ack_policy":"explicit"}}'
    body = b'{"batch":5,"expires":30000000000}'
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\nSUB in.* 1\r\n')
    writer.write(b"PUB $JS.API.CONSUMER.CREATE.S.c in.made %d\r\n%s\r\n" % (len(config), config))
    await asyncio.wait_for(reader.readuntil(b'"type":"io.nats.jetstream.api.v1.consumer_create_response"'), 5)
    writer.write(b"PUB $JS.API.CONSUMER.MSG.NEXT.S.c in.next %d\r\n%s\r\nPING\r\n" % (len(body), body))
    await asyncio.wait_for(reader.readuntil(b"PONG\r\n"), 5)
    await asyncio.sleep(0.05)
    await node.stop()
    said = await asyncio.wait_for(reader.read(), 5)
    assert b"HMSG in.next 1 " in said
    assert b"NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 5\r\n" in said
    writer.close()


async def test_a_stopped_node_comes_back_with_its_streams_and_the_same_peer_id(tmp_path: Path) -> None:
    node = await started(tmp_path)
    peer = engine(node).network.me
    await create(node, "S")
    await node.stop()
    assert node.stopped.is_set() and node.exit_code == 0
    node = await started(tmp_path)
    try:
        assert engine(node).network.me == peer
        found = engine(node).assignment("$G", "S")
        assert found is not None and engine(node).replicas[found.gid].leading, "a client may publish at once"
    finally:
        await node.stop()


async def test_one_part_that_cannot_stop_does_not_keep_the_process(tmp_path: Path) -> None:
    node = await started(tmp_path)
    kv, real = node.jetstream._kv, node.server.stop  # type: ignore[union-attr]

    async def fail() -> None:
        await real()
        raise RuntimeError("a defect")

    node.server.stop = fail  # type: ignore[method-assign]
    await node.stop()
    assert node.stopped.is_set() and node.exit_code == 1
    with pytest.raises(Exception, match=r"(?i)clos"):
        kv.get(b"x")  # the store was closed all the same


async def test_a_store_that_cannot_be_used_is_a_clear_refusal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="storage directory is not a directory"):
        await started(tmp_path / "file")
    (tmp_path / "damaged" / "jetstream").mkdir(parents=True)
    (tmp_path / "damaged" / "jetstream" / "node.json").write_text("{")
    with pytest.raises(StorageError, match=r"node\.json is not JSON"):
        await started(tmp_path / "damaged")


async def test_a_journal_that_cannot_be_written_ends_the_process_with_a_code(tmp_path: Path) -> None:
    node = await started(tmp_path)
    node.storage_failed(OSError(5, "Input/output error"))
    assert node.stopped.is_set() and node.exit_code == 1
    await node.stop()


async def test_more_tags_than_can_be_sent_to_others_are_a_clear_refusal(tmp_path: Path) -> None:
    node = Node(
        replace(options(tmp_path), server_tags=[f"t{i}" for i in range(1000)]),
        logs.get_logger("test"),
        monitoring=NodeMonitoring,
    )
    with pytest.raises(ListenError, match="server_tags: "):
        await node.start()


async def test_a_node_that_was_left_out_stops_and_does_not_start_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = await started(tmp_path)
    assert node.jetstream is not None
    # It has just started, and follows a leader: by what it knew before.
    node.jetstream.left_out(3600, "the meta group was rescued without n1")
    async with asyncio.timeout(10):
        await node.stopped.wait()
    assert node.exit_code == 1
    with pytest.raises(StorageError, match=r"rescued without n1\. The node must not come back with it") as caught:
        await started(tmp_path)
    assert f"Move {tmp_path / 'jetstream'} away" in str(caught.value)
    (tmp_path / "jetstream").rename(tmp_path / "old")
    again = await started(tmp_path)
    await again.stop()


async def test_a_majority_that_was_up_meanwhile_goes_on(tmp_path: Path) -> None:
    """The rescue was a mistake, made on the other side of a partition: nobody is made to end the healthy side too."""
    node = await started(tmp_path)
    try:
        assert node.jetstream is not None
        node.jetstream._started -= 100
        for age in (5, 99, 10_000, 99_999_999_999):  # the last two are of before the store was made
            node.jetstream.left_out(age, "the meta group was rescued without n1")
        assert not node.exit_code and not (tmp_path / "jetstream" / "LEFT-OUT").exists()
        await create(node, "S")
        engine(node).meta.group.leader = None  # without a leader it was no majority
        node.jetstream.left_out(5, "the meta group was rescued without n1")
        assert node.exit_code == 1 and (tmp_path / "jetstream" / "LEFT-OUT").exists()
    finally:
        await node.stop()


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_node_that_is_to_start_again_during_its_start_ends_the_start_first(
    tmp_path: Path, *, stopped: bool
) -> None:
    """A removed server hears of it with its first link. Who stops it meanwhile does not want it to come back."""
    node = Node(options(tmp_path), logs.get_logger("test"), monitoring=NodeMonitoring)
    node.start_again()
    if stopped:
        node.interrupt()
    assert not node.stopped.is_set()
    await node.start()
    async with asyncio.timeout(10):
        await node.stopped.wait()
    assert node.again is not stopped and node.exit_code == 0
