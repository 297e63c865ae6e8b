"""Direct Gets that come together are answered like one by one (replica/reads/answers.py, membership.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetcluster import native
from jetcluster.protocol.bus import Outgoing
from jetcluster.replica.reads import answers as replies
from jetcluster.store.api import DamagedError
from testkit.sim.nodes import ACCOUNT, Cluster, Node
from testkit.sim.shared import virtual_time
from testkit.twins.bus import FakeOrigin

GET = b"$JS.API.DIRECT.GET.S"
BODIES = [
    b'{"seq":1}', b'{"seq": 2}', b'{"seq":99}', b'{"last_by_subj":"s.1"}', b'{"last_by_subj":"none"}',
    b'{"seq":0}', b"", b'{"next_by_subj":"s.*","seq":2}', b'{"seq":1,"batch":3}', b'{"last_by_subj":"s.*"}',
    b'{"seq":3,"no_hdr":true}', b"nonsense", b'{"seq":4}', b'{"multi_last":["s.*"]}', b'{"seq":5}',
]  # fmt: skip
KEYS = [
    (b"s.1", b""),
    (b"s.2", b""),
    (b"none", b""),
    (b"s.*", b""),
    (b"s.1", b'{"no_hdr":true}'),
    (b"s.2", b"x"),
    (b">", b""),
]

compiled_only = pytest.mark.skipif(native.plain_get is None, reason=f"no compiled loops: {native.why_pure}")


class Reader:
    """Asks one node and keeps what comes to its inboxes, by inbox."""

    def __init__(self, node: Node) -> None:
        self.router = node.accounts[ACCOUNT]
        self.got: dict[bytes, list[tuple[bytes, bytes]]] = {}
        self.order: list[bytes] = []
        self.router.subscribe(b"_INBOX.*.*", self._take)

    def _take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: object) -> None:
        self.got.setdefault(subject, []).append((headers, payload))
        self.order.append(subject)

    def run(self, requests: list[Outgoing]) -> int:
        bulk = self.router.route_of(requests[0][0]).bulk
        assert bulk is not None
        return bulk(requests, FakeOrigin())

    def run_all(self, requests: list[Outgoing]) -> None:
        while requests:
            requests = requests[self.run(requests) :]

    def one_by_one(self, requests: list[Outgoing]) -> None:
        for subject, reply, headers, payload in requests:
            single = self.router.route_of(subject).single
            assert single is not None
            single(subject, reply, headers, payload, FakeOrigin())


async def filled(cluster: Cluster, payload: bytes = b"", **config: Any) -> Node:
    await cluster.create("S", 1, subjects=["s.*"], **config)
    for number in range(1, 6):
        headers = b"NATS/1.0\r\nA: b\r\n\r\n" if number % 2 else b""
        await cluster["A"].publish_again(b"s.%d" % (number % 3), b"%d" % number + payload, headers)
    node = cluster.leader("S")
    await cluster.until(lambda: node.reads("S"), what="it answers")
    return node


def asked(bodies: list[bytes], name: bytes = b"a") -> list[Outgoing]:
    return [(GET, b"_INBOX.%b.%d" % (name, place), b"", body) for place, body in enumerate(bodies)]


@virtual_time
@pytest.mark.parametrize("compiled", [True, False])
async def test_a_run_gets_the_answers_that_its_requests_get_alone(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native, "plain_get", None)
    async with Cluster() as cluster:
        reader = Reader(await filled(cluster))
        bodies = asked(BODIES)
        keys: list[Outgoing] = [(GET + b"." + k, b"_INBOX.k.%d" % i, b"", body) for i, (k, body) in enumerate(KEYS)]
        for requests in (bodies, keys):
            reader.run_all(requests)
            await asyncio.sleep(0.1)
            together, order, reader.got, reader.order = reader.got, reader.order, {}, []
            reader.one_by_one(requests)
            await asyncio.sleep(0.1)
            assert reader.got == together and len(together) == len(requests)
            at_once = [
                reply for subject, reply, _, body in requests if b"*" not in subject + body and b">" not in subject
            ]
            for answers in (order, reader.order):
                assert [reply for reply in dict.fromkeys(answers) if reply in at_once] == at_once
            reader.got, reader.order = {}, []


@compiled_only
@virtual_time
async def test_a_request_that_is_not_plain_ends_a_run() -> None:
    async with Cluster() as cluster:
        reader = Reader(await filled(cluster))
        requests = asked([b'{"seq":1}', b'{"seq":2,"no_hdr":true}', b'{"seq":3}'])
        assert [reader.run(requests), reader.run(requests[1:])] == [1, 1]
        assert reader.order == [b"_INBOX.a.0", b"_INBOX.a.1"]


@virtual_time
async def test_no_reply_subject_no_answer() -> None:
    async with Cluster() as cluster:
        node = await filled(cluster)
        reader = Reader(node)
        one, other = asked([b'{"seq":1}', b'{"seq":2}'])
        reader.run_all([(one[0], b"", b"", one[3]), other])
        assert reader.order == [other[1]]


@compiled_only
@virtual_time
async def test_a_run_ends_with_its_bytes_and_the_rest_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "RUN_BYTES", 2500)
    async with Cluster() as cluster:
        reader = Reader(await filled(cluster, b"." * 1000))
        requests = asked([b'{"seq":%d}' % seq for seq in (1, 2, 3, 4, 5)])
        assert reader.run(requests) == 3
        assert reader.order == [reply for _, reply, _, _ in requests[:3]]


@compiled_only
@virtual_time
async def test_a_run_ends_at_a_message_that_cannot_be_read() -> None:
    """Its requester gets a 503, and those after it another replica."""
    async with Cluster() as cluster:
        node = await filled(cluster)
        reader, store = Reader(node), node.replica("S").store
        sound = store.get

        def get(seq: int) -> Any:
            if seq == 2:
                raise DamagedError(2, 2)
            return sound(seq)

        store.get = get
        requests = asked([b'{"seq":1}', b'{"seq":2}', b'{"seq":3}'])
        assert reader.run(requests) == 2
        assert reader.order == [b"_INBOX.a.0", b"_INBOX.a.1"]
        assert reader.got[b"_INBOX.a.1"] == [(b"NATS/1.0 503\r\n\r\n", b"")]
        assert not node.reads("S")


@compiled_only
@virtual_time
async def test_what_was_confirmed_is_not_read_from_a_replica_that_is_damaged_since() -> None:
    """Nobody else has this stream, so all that could not be answered is refused."""
    async with Cluster() as cluster:
        node = await filled(cluster, read_consistency="strong")
        reader, store = Reader(node), node.replica("S").store
        sound = store.get

        def get(seq: int) -> Any:
            if seq == 2:
                raise DamagedError(2, 2)
            return sound(seq)

        store.get = get
        assert reader.run(asked([b'{"seq":1}', b'{"seq":2}', b'{"seq":3}', b'{"seq":4}'])) == 4
        assert reader.run(asked([b'{"seq":3}', b'{"seq":4}'], b"b")) == 2
        await asyncio.sleep(0.1)
        refused = [(b"NATS/1.0 503\r\n\r\n", b"")]
        assert reader.got.pop(b"_INBOX.a.0")[0][1] == b"1"
        assert len(reader.got) == 5 and all(found == refused for found in reader.got.values())


@compiled_only
@virtual_time
async def test_what_raises_in_a_run_raises_alone() -> None:
    async with Cluster() as cluster:
        node = await filled(cluster)
        reader, store = Reader(node), node.replica("S").store
        sound = store.get

        def get(seq: int) -> Any:
            if seq == 3:
                raise RuntimeError("a bug")
            return sound(seq)

        store.get = get
        requests = asked([b'{"seq":%d}' % seq for seq in (1, 2, 3, 4)])
        assert reader.run(requests) == 2
        assert reader.order == [b"_INBOX.a.0", b"_INBOX.a.1"]
        with pytest.raises(RuntimeError):
            reader.run(requests[2:])
        assert reader.run(requests[3:]) == 1 and reader.order[2:] == [b"_INBOX.a.3"]


@compiled_only
@virtual_time
@pytest.mark.parametrize("consistency", ["default", "weak"])
async def test_a_run_waits_for_what_the_node_knows_to_be_committed(
    consistency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster() as cluster:
        node = await filled(cluster, read_consistency=consistency)
        reader, group = Reader(node), node.replica("S").group
        monkeypatch.setattr(group, "_apply", lambda: None)
        publishing = asyncio.ensure_future(node.publish(b"s.1", b"6"))
        await cluster.until(lambda: group.told_index > group.applied_index, what="the commit")
        requests = asked([b'{"seq":6}', b'{"seq":6}'])
        if consistency == "weak":
            assert reader.run(requests) == 1
            assert reader.got[b"_INBOX.a.0"][0][0].startswith(b"NATS/1.0 404"), "as it is"
        else:
            assert reader.run(requests) == 2 and not reader.order
        monkeypatch.undo()
        group.mark()
        await publishing
        await asyncio.sleep(0.1)
        if consistency == "default":
            assert reader.order == [b"_INBOX.a.0", b"_INBOX.a.1"]
            assert [reader.got[reply][0][1] for reply in reader.order] == [b"6", b"6"]
