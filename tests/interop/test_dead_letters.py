"""Dead letters with stock nats-py: a target that does not exist until later, is full, and servers that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StreamConfig
from nats.js.errors import APIError, ServerError

from testkit.harness import Node, ProcessCluster, eventually, find_server, free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180), pytest.mark.long]

META = {"jetcluster.dead_letter.subject": "dead.{subject}", "jetcluster.dead_letter.on_term": "true"}
MESSAGES = 80
ROOM = 40
"""Letters that the target has at first: more than a search reads at a time."""
TROUBLE = (nats.errors.Error, APIError, OSError, TimeoutError, asyncio.IncompleteReadError)


def config(**more: Any) -> ConsumerConfig:
    fields = {"durable_name": "C", "ack_policy": AckPolicy.EXPLICIT, "ack_wait": 0.5, "max_deliver": 1}
    return ConsumerConfig(**{**fields, "metadata": dict(META), **more})


async def letters(js: JetStreamContext) -> list[nats.js.api.RawStreamMsg]:
    """All that DEAD has."""
    state = (await js.stream_info("DEAD")).state
    return [await js.get_msg("DEAD", seq) for seq in range(state.first_seq, state.last_seq + 1)]


async def waiting(nc: nats.aio.client.Client) -> dict[str, Any]:
    answer = json.loads((await nc.request("$JS.API.CONSUMER.INFO.WORK.C", timeout=5)).data)
    found: dict[str, Any] = answer["dead_letters"]
    return found


@pytest.mark.parametrize("allow_direct", [False, True])
async def test_each_message_given_up_has_one_letter_through_kills_and_a_full_target(
    cluster: ProcessCluster, server: str, allow_direct: bool
) -> None:
    if server == "nats-server":
        pytest.skip("nats-server has no dead letters")
    nc = await nats.connect(cluster.urls, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    js = nc.jetstream(timeout=10)
    queue = StreamConfig(name="WORK", subjects=["work.>"], num_replicas=3, retention=RetentionPolicy.WORK_QUEUE)
    await js.add_stream(queue)
    await js.add_consumer("WORK", config())
    for number in range(MESSAGES):
        await js.publish(f"work.{number}", b"%d" % number, headers={"A": str(number), "Nats-Msg-Id": f"own-{number}"})
    sub = await js.pull_subscribe_bind("C", "WORK")
    got: list[Any] = []
    while len(got) < MESSAGES:
        with contextlib.suppress(*TROUBLE):
            got += await sub.fetch(MESSAGES - len(got), timeout=2)
    await got[0].term()

    async def given_up() -> bool:
        return bool((await waiting(nc))["waiting"] == MESSAGES)

    await eventually(given_up, 20, "all are given up")
    assert (await js.stream_info("WORK")).state.messages == MESSAGES, "kept until the letters are there"
    await eventually(_told(nc, "no stream takes their subject"), 20, "it says why")

    dead = StreamConfig(name="DEAD", subjects=["dead.>"], num_replicas=3, max_msgs=ROOM, discard=DiscardPolicy.NEW)
    dead.allow_direct = allow_direct
    await js.add_stream(dead)

    async def stored(count: int) -> bool:
        with contextlib.suppress(*TROUBLE):
            return (await js.stream_info("DEAD")).state.messages == count
        return False

    await eventually(lambda: stored(ROOM), 60, "as many as there is room for")
    await eventually(_told(nc, "maximum messages exceeded"), 60, "it says that the target is full")
    assert (await js.stream_info("WORK")).state.messages == MESSAGES - ROOM

    owner = (await js.consumer_info("WORK", "C")).cluster.leader  # type: ignore[union-attr]
    node = next(node for node in cluster.nodes if node.name == owner)
    node.kill9()  # the next owner looks through what is there before it sends more
    await asyncio.sleep(0.5)
    await node.start()
    await eventually(_told(nc, "maximum messages exceeded"), 60, "it has looked through and tries again")
    dead.max_msgs = 1000
    await js.update_stream(dead)
    info = await js.consumer_info("WORK", "C")
    assert info.cluster is not None and info.cluster.leader is not None
    for name in (info.cluster.leader, (await js.stream_info("WORK")).cluster.leader):  # type: ignore[union-attr]
        node = next(node for node in cluster.nodes if node.name == name)
        await asyncio.sleep(0.3)
        node.kill9()
        await asyncio.sleep(0.5)
        await node.start()

    async def freed() -> bool:
        with contextlib.suppress(*TROUBLE):
            return (await js.stream_info("WORK")).state.messages == 0
        return False

    await eventually(freed, 90, "all originals are freed")
    found = await letters(js)
    assert sorted(int(letter.data or b"") for letter in found) == list(range(MESSAGES)), "one letter of each"
    for letter in found:
        number, headers = (letter.data or b"").decode(), letter.headers or {}
        assert letter.subject == f"dead.work.{number}" and headers["A"] == number
        assert headers["Nats-Dead-Letter-Msg-Id"] == f"own-{number}"
        assert headers["Nats-Dead-Letter-Sequence"] == str(int(number) + 1)
        assert headers["Nats-Dead-Letter-Reason"] == ("terminated" if number == "0" else "max_deliver")
    assert await waiting(nc) == {"waiting": 0}
    await nc.close()


def _told(nc: nats.aio.client.Client, error: str) -> Any:
    async def told() -> bool:
        with contextlib.suppress(*TROUBLE):
            return (await waiting(nc)).get("last_error") == error
        return False

    return told


async def test_a_letter_goes_back_by_a_stock_publish_and_bad_wishes_are_refused(
    tidy: ProcessCluster, server: str
) -> None:
    if server == "nats-server":
        pytest.skip("nats-server has no dead letters")
    nc = await nats.connect(tidy.urls)
    js = nc.jetstream(timeout=10)
    await js.add_stream(name="WORK", subjects=["work.>"], num_replicas=3)
    await js.add_stream(name="DEAD", subjects=["dead.>"], num_replicas=3)
    for text, more in (
        ("requires max_deliver", {"max_deliver": None}),
        ("ack policy", {"ack_policy": AckPolicy.NONE, "ack_wait": None, "max_deliver": None}),
        ("consumer gets", {"metadata": {"jetcluster.dead_letter.subject": "work.dead"}}),
        ("literal subject", {"metadata": {"jetcluster.dead_letter.subject": "dead.*"}}),
        ("literal first token", {"metadata": {"jetcluster.dead_letter.subject": "{subject}"}}),
    ):
        with pytest.raises(ServerError, match=text):
            await js.add_consumer("WORK", config(**more))
    await js.add_consumer("WORK", config(max_deliver=5))
    with pytest.raises(APIError, match="dead letters would come back to consumers: C"):
        await js.update_stream(name="WORK", subjects=["work.>", "dead.x"], num_replicas=3)
    await js.publish("work.x", b"again")
    (msg,) = await (await js.pull_subscribe_bind("C", "WORK")).fetch(1, timeout=5)
    await nc.request(msg.reply, b"+TERM no such order", timeout=5)

    async def stored() -> bool:
        return (await js.stream_info("DEAD")).state.messages == 1

    await eventually(stored, 20, "the letter is there")
    letter = await js.get_msg("DEAD", 1)
    assert letter.headers is not None and letter.headers["Nats-Dead-Letter-Term-Reason"] == "no such order"
    back = letter.headers["Nats-Dead-Letter-Subject"]
    for _ in range(2):  # interrupted before the delete, and begun again
        await js.publish(back, letter.data or b"", headers={"Nats-Msg-Id": "replay:" + letter.headers["Nats-Msg-Id"]})
    await js.delete_msg("DEAD", 1)
    assert (await js.stream_info("WORK")).state.messages == 2
    (msg,) = await (await js.pull_subscribe_bind("C", "WORK")).fetch(1, timeout=5)
    assert msg.data == b"again"
    await nc.request(msg.reply, b"+TERM", timeout=5)
    await eventually(stored, 20, "it is given up again")
    again = await js.get_msg("DEAD", 2)
    assert again.headers is not None
    twin = {"Nats-Msg-Id": "replay:" + again.headers["Nats-Msg-Id"]}
    ack = await js.publish(back, b"again", headers=twin)  # what a replay does that is interrupted before the delete
    await js.delete_msg("WORK", ack.seq)  # consumed; the stream still knows the id
    for text in ("1 letters would be", "1 letters were", "0 letters were"):
        code, out = await replay(tidy, *["--dry-run"] * ("would" in text))
        assert code == 0 and text in out, out
    assert (await js.stream_info("WORK")).state.messages == 2
    assert (await js.stream_info("DEAD")).state.messages == 0
    await js.delete_stream("WORK")
    await js.delete_stream("DEAD")
    await nc.close()


async def replay(shared: ProcessCluster, *words: str) -> tuple[int | None, str]:
    """Runs `jetcluster replay DEAD`; returns the exit code and what it prints."""
    command = (sys.executable, "-m", "jetcluster", "replay", "DEAD", "-s", shared.urls[0], *words)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return process.returncode, out.decode()


@pytest.mark.parametrize("direct", [False, True])
async def test_what_the_stream_has_forgotten_is_looked_for_and_else_left(
    shared: ProcessCluster, server: str, direct: bool
) -> None:
    if server == "nats-server":
        pytest.skip("nats-server has no dead letters")
    nc = await nats.connect(shared.urls)
    js = nc.jetstream(timeout=10)
    work = StreamConfig("WORK", subjects=["work.>"], num_replicas=3, duplicate_window=0.2, allow_direct=direct)
    await js.add_stream(work)
    await js.add_stream(name="DEAD", subjects=["dead.>"], num_replicas=3)
    await js.add_consumer("WORK", config(max_deliver=5))
    for name in ("back", "gone"):
        await js.publish(f"work.{name}", b"once")
    for msg in await (await js.pull_subscribe_bind("C", "WORK")).fetch(2, timeout=5):
        await nc.request(msg.reply, b"+TERM", timeout=5)

    async def stored() -> bool:
        return (await js.stream_info("DEAD")).state.messages == 2

    await eventually(stored, 20, "the letters are there")
    for letter in await letters(js):  # both go back by a replay that is interrupted, and one is consumed
        assert letter.headers is not None
        subject, headers = letter.headers["Nats-Dead-Letter-Subject"], {}
        headers["Nats-Msg-Id"] = "replay:" + letter.headers["Nats-Msg-Id"]
        ack = await js.publish(subject, b"once", headers=headers)
        if subject == "work.gone":
            await js.delete_msg("WORK", ack.seq)
    await asyncio.sleep(0.3)  # longer than the window
    code, out = await replay(shared)
    assert code == 1 and "gone to work.back" in out and "left, an earlier replay" in out and "1 left" in out, out
    assert ((await js.stream_info("WORK")).state.messages, (await js.stream_info("DEAD")).state.messages) == (3, 1)
    code, out = await replay(shared, "--again")
    assert code == 0 and "gone to work.gone" in out, out
    assert ((await js.stream_info("WORK")).state.messages, (await js.stream_info("DEAD")).state.messages) == (4, 0)
    await js.delete_stream("WORK")
    await js.delete_stream("DEAD")
    await nc.close()


async def test_letters_that_go_in_a_circle_of_consumers_end(tidy: ProcessCluster, server: str) -> None:
    if server == "nats-server":
        pytest.skip("nats-server has no dead letters")
    nc = await nats.connect(tidy.urls)
    js = nc.jetstream(timeout=10)
    circle = (("WORK", "work.x", "dead.x"), ("DEAD", "dead.x", "work.x"))
    for stream, subject, target in circle:
        await js.add_stream(name=stream, subjects=[subject], num_replicas=3, retention=RetentionPolicy.WORK_QUEUE)
        wish = {f"jetcluster.dead_letter.{key}": value for key, value in (("subject", target), ("on_term", "true"))}
        await js.add_consumer(stream, config(max_deliver=5, ack_wait=30, metadata=wish))
    await js.publish("work.x", b"round")
    for hop in range(9):
        (msg,) = await (await js.pull_subscribe_bind("C", circle[hop % 2][0])).fetch(1, timeout=10)
        assert (msg.data, (msg.headers or {}).get("Nats-Dead-Letter-Hops")) == (b"round", str(hop) if hop else None)
        await nc.request(msg.reply, b"+TERM", timeout=5)
    await eventually(_told(nc, "a message was a dead letter 8 times"), 20, "the ninth letter is not sent")
    assert [(await js.stream_info(stream)).state.messages for stream in ("WORK", "DEAD")] == [1, 0]
    await nc.close()


ACCOUNTS = """
accounts {
  A {
    users: [ {user: a, password: p} ]
    exports: [ {service: "bank.>"} ]
  }
  B {
    jetstream: enabled
    users: [
      {user: all, password: p}
      {user: some, password: p, permissions: {publish: ["$JS.API.>", "own.>"], subscribe: "_INBOX.>"}}
    ]
    imports: [ {service: {account: A, subject: "bank.>"}} ]
  }
}
"""


async def test_nobody_has_the_server_publish_to_another_account_where_he_may_not(tmp_path: Path) -> None:
    command = find_server("jetcluster")
    assert command is not None
    (port,) = free_ports(1)
    (tmp_path / "s.conf").write_text(ACCOUNTS + f'jetstream {{ store_dir: "{tmp_path}/js" }}\n')
    words = ["-a", "127.0.0.1", "-p", str(port), "-c", str(tmp_path / "s.conf")]
    node = Node("jetcluster", command, tmp_path, port, words)
    await node.start()
    try:
        clients = [await nats.connect(f"nats://{user}:p@127.0.0.1:{port}") for user in ("all", "some")]
        free, bound = (client.jetstream(timeout=10) for client in clients)
        await free.add_stream(name="WORK", subjects=["work.>"])
        for subject, refused in (("bank.{subject}", True), ("bank.pay", True), ("own.{subject}", False)):
            wish = config(metadata={"jetcluster.dead_letter.subject": subject})
            if refused:
                with pytest.raises(ServerError, match="dead_letter subject is not permitted"):
                    await bound.add_consumer("WORK", wish)
            else:
                await bound.add_consumer("WORK", wish)
                await free.delete_consumer("WORK", "C")
            await free.add_consumer("WORK", wish)
            await free.delete_consumer("WORK", "C")
        for client in clients:
            await client.close()
    finally:
        node.kill9()


async def command(*arguments: str) -> None:
    """`jetcluster` with these arguments, which must succeed."""
    done = await asyncio.create_subprocess_exec(sys.executable, "-m", "jetcluster", *arguments)
    assert await done.wait() == 0


@pytest.mark.parametrize("window", [120.0, 1.0])
async def test_letters_of_an_older_backup_are_not_stored_again(
    tidy: ProcessCluster, server: str, window: float, tmp_path: Path
) -> None:
    """They waited when the backup was made, and were stored before the stream was lost. `window`: that of the target,
    which knows the ids itself in the first case, and has to be looked through in the other."""
    if server == "nats-server":
        pytest.skip("nats-server has no dead letters")
    nc = await nats.connect(tidy.urls)
    js = nc.jetstream(timeout=10)
    await js.add_stream(name="WORK", subjects=["work.>"], num_replicas=3)
    await js.add_consumer("WORK", config())
    for number in range(4):
        await js.publish(f"work.{number}", b"%d" % number)
    sub = await js.pull_subscribe_bind("C", "WORK")
    assert len(await sub.fetch(3, timeout=5)) == 3

    def wait_for(count: int) -> Any:
        async def told() -> bool:
            with contextlib.suppress(*TROUBLE, KeyError):
                return bool((await waiting(nc))["waiting"] == count)
            return False

        return told

    await eventually(wait_for(3), 20, "three are given up")
    options = ["-s", tidy.urls[0], "--no-context", "--stream", "WORK"]
    await command("backup", str(tmp_path / "saved"), *options)
    await js.add_stream(name="DEAD", subjects=["dead.>"], num_replicas=3, duplicate_window=window)
    await eventually(wait_for(0), 60, "their letters are stored")
    assert (await js.stream_info("DEAD")).state.messages == 3
    await asyncio.sleep(window if window < 10 else 0)
    await js.delete_stream("WORK")
    await command("restore", str(tmp_path / "saved"), *options)
    await eventually(wait_for(0), 60, "no letter waits")
    assert sorted(letter.data or b"" for letter in await letters(js)) == [b"0", b"1", b"2"]
    assert len(await sub.fetch(1, timeout=5)) == 1, "it goes on with the message that was left"
    await nc.close()
