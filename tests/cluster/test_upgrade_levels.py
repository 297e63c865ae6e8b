"""Three servers of a build that writes a lower level of commands become servers of this one, one after another, while
publishers, members of a consumer with order per key, its dead letters and a mirror are at work; also back and forth, as
docs/upgrade.md says, while the first one is the only new one.

`JETCLUSTER_PREVIOUS` names another commit, branch or tag to begin with."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from testkit.client import Client, ClientError, Msg, create_stream
from testkit.consumer_client import SECOND, Inbox, ack_fields
from testkit.harness import TOP, ProcessCluster, eventually, frozen
from testkit.ledger import Ledger, check_exactly_once, read_all, until_acked, wait_newest
from testkit.previous import git
from tests.cluster.test_upgrade import LAME_DUCK, LONGEST_GAP, change, leaving, level_of, runs_from, sources

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.cluster,
    pytest.mark.alone,
    pytest.mark.started,
    pytest.mark.timeout(400),
    pytest.mark.ours("upgrades this tree's own servers"),
]

LEVELS = "jetcluster/stream/log/levels.py"
DEAD_LETTER_LEVEL = 5
"""A build below this level has no dead letters."""
KEYS = 50
PAUSE = 0.01
"""Seconds between two messages of a publisher."""
GIVEN_UP = 20
"""One message in so many is terminated, whenever it comes."""
REFUSED = 7
"""One in so many of the others is refused the first time that it comes."""


@pytest.fixture(scope="module")
def lower() -> Path:
    """The last commit before this level."""
    raised = git(TOP, "log", "-1", "--format=%H", "-GLEVEL: Final = [0-9]", "--", LEVELS)
    return sources(f"{raised}^" if raised else "", "of a lower level")


async def publish(cluster: ProcessCluster, at: int, ledger: Ledger, stop: asyncio.Event) -> None:
    """Publishes one message after the other, each until it is acked, at any server."""
    count, turn, open_ = 0, at, False
    while True:
        with contextlib.suppress(ClientError, OSError, TimeoutError):
            async with await Client.connect(cluster.urls[turn % 3], within=1.0) as client:
                while not leaving(client):
                    if stop.is_set() and not open_:
                        return
                    payload, open_ = b"p%d-%d" % (at, count), True
                    headers = {"Nats-Msg-Id": payload.decode()}
                    ack = await client.request(f"k.{count % KEYS}", payload, within=1.0, headers=headers)
                    if ledger.take(payload, ack):
                        count, open_ = count + 1, False
                    await asyncio.sleep(PAUSE)
        turn += 1
        await asyncio.sleep(PAUSE)


class Members:
    """Clients that share a consumer with order per key; each ends with its server, and comes again at another one."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster = cluster
        self.settled: set[int] = set()
        """Sequences of which an ack or a term went out."""
        self.out: dict[bytes, set[int]] = {}
        """By subject what came and is not settled."""
        self.newest: dict[bytes, int] = {}
        self.seen: set[bytes] = set()
        self.wrong: list[str] = []

    async def run(self, at: int) -> None:
        while True:
            with contextlib.suppress(ClientError, OSError, TimeoutError):
                async with await Client.connect(self.cluster.urls[at % 3], within=1.0) as client:
                    while not leaving(client):
                        await self._pull(client)
            at += 1
            await asyncio.sleep(0.02)

    async def _pull(self, client: Client) -> None:
        inbox = Inbox(client)
        pull = json.dumps({"batch": 20, "expires": SECOND // 2}).encode()
        client.publish("$JS.API.CONSUMER.MSG.NEXT.K.W", pull, inbox.subject.encode())
        with contextlib.suppress(AssertionError):  # not even a status: its server is going
            while (msg := await inbox.one(within=1.0)).status in (0, 100):
                if not msg.status:
                    client.publish(msg.reply.decode(), self._take(msg))
        inbox.close()
        await client.flush()

    def _take(self, msg: Msg) -> bytes:
        """Judges a delivery; returns what is said of it."""
        deliveries, seq, _, _ = ack_fields(msg)
        out = self.out.setdefault(msg.subject, set())
        if seq not in self.settled:
            if others := out - {seq}:
                self.wrong.append(f"{seq} of {msg.subject!r} came while {others} were out")
            if seq < self.newest.get(msg.subject, 0):
                self.wrong.append(f"{seq} of {msg.subject!r} came after {self.newest[msg.subject]}")
            self.newest[msg.subject] = seq
        self.seen.add(msg.data)
        if deliveries == 1 and seq % REFUSED == 0 and not is_given_up(msg.data):
            out.add(seq)
            return b"-NAK"
        out.discard(seq)
        self.settled.add(seq)
        return b"+TERM" if is_given_up(msg.data) else b"+ACK"


def is_given_up(payload: bytes) -> bool:
    return int(payload.rpartition(b"-")[2]) % GIVEN_UP == 0


async def make_streams(client: Client) -> None:
    """K with the consumer W, its mirror, and the stream of W's dead letters."""
    await create_stream(client, "S", ["s"], 3)  # what `change` waits for
    await create_stream(client, "K", ["k.*"], 3)
    await create_stream(client, "D", ["dead.>"], 3)
    await create_stream(client, "M", [], 3, mirror={"name": "K"})
    metadata = {
        "jetcluster.max_ack_pending_per_subject": "1",
        "jetcluster.dead_letter.subject": "dead.{subject}",
        "jetcluster.dead_letter.on_term": "true",
        "jetcluster.dead_letter.on_max_deliver": "false",
    }
    consumer = {"durable_name": "W", "ack_policy": "explicit", "ack_wait": 2 * SECOND, "metadata": metadata}
    await client.api("CONSUMER.CREATE.K.W", {"stream_name": "K", "config": consumer})


async def test_an_upgrade_over_a_level_loses_nothing_of_what_is_new(lower: Path, tmp_path: Path) -> None:
    if int(level_of(lower)) < DEAD_LETTER_LEVEL:
        pytest.skip(f"the build of {lower.name} has no dead letters")
    cluster = ProcessCluster(3, root=tmp_path, config=LAME_DUCK, monitor=True)
    for node in cluster.nodes:
        node.env = {"PYTHONPATH": str(lower)}
    async with cluster:
        assert {runs_from(node) for node in cluster.nodes} == {lower}
        async with await cluster[0].connect() as client:
            await make_streams(client)
        members = Members(cluster)
        tasks = [asyncio.create_task(members.run(at)) for at in range(3)]
        whole, stop = Ledger(), asyncio.Event()
        publishers = [asyncio.create_task(publish(cluster, at, whole, stop)) for at in range(3)]
        first = cluster[0]
        for tree in (TOP, lower, TOP):  # the way back while others are still old
            await change(cluster, first, tree)
            await until_acked(whole, 200)
        for node in cluster.nodes[1:]:
            await change(cluster, node, TOP)
            await until_acked(whole, 200)
        stop.set()
        await asyncio.gather(*publishers)
        await eventually(lambda: members.seen >= whole.acked.keys(), 60, "not all is delivered")
        await eventually(lambda: _is_done(cluster), 60, "not all is settled")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not members.wrong, members.wrong[:5]
        await _accounts(cluster, whole)
        gap = whole.longest_gap()
        print(f"level {level_of(lower)} to {level_of(TOP)}: {len(whole.acked)} acks, longest gap {gap:.2f} s")
        assert gap < LONGEST_GAP


async def _is_done(cluster: ProcessCluster) -> bool:
    async with await cluster[0].connect() as client:
        info = await client.api("CONSUMER.INFO.K.W")
        return (info["num_pending"], info["num_ack_pending"], info["dead_letters"]["waiting"]) == (0, 0, 0)


async def _accounts(cluster: ProcessCluster, whole: Ledger) -> None:
    """Every replica, asked alone, has every acked message once; so has the mirror, and each message that was given up
    has one letter."""
    for stream in ("S", "K", "D"):
        await cluster.wait_current(stream)
    letters = sorted(payload for payload in whole.acked if is_given_up(payload))
    for node in cluster.nodes:
        async with await node.connect() as client:
            for stream in ("K", "D", "M"):
                await wait_newest(client, stream)
            with frozen([other for other in cluster.nodes if other is not node]):
                check_exactly_once(whole, await read_all(client, "K"))
                assert sorted((await read_all(client, "D")).values()) == letters
                check_exactly_once(whole, await read_all(client, "M"))
