"""Requests that came together wait for one confirmation (replica/reads/runs.py)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

import pytest

from jetcluster import native
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.replica.reads import confirm, waits
from jetcluster.replica.reads.confirm import ReadConfirmations
from jetcluster.replica.reads.runs import MAX_RUN, RunKind, Runs, no_body, plain_body
from jetcluster.replica.reads.waits import (
    MAX_DUE_TURN,
    MAX_REPLY_BACKLOG,
    MAX_SECONDS,
    MAX_WAIT_SECONDS,
    Read,
    ReadWaits,
)
from testkit.sim.nodes import Cluster, Node
from testkit.sim.shared import virtual_time
from testkit.twins.bus import FakeOrigin
from tests.unit.replica.test_mirror_host import ApiCluster, answers, copied, mirrored, without
from tests.unit.replica.test_read_runs import Reader, compiled_only
from tests.unit.replica.waits_rig import around


class Held:
    """Runs whose leader says `leader`, on a replica that has reached `reached`; `told`: by reply, what was told."""

    def __init__(self, told: dict[bytes, int] | None = None) -> None:
        self.leader: int | None = 5
        self.reached, self.asked = 5, 0
        self.log: list[tuple[str, bytes]] = []
        self._told = told
        loop: Any = asyncio.get_running_loop()
        tell = self._tell if told is not None else None
        self.backlog: dict[bytes, int] = {}
        self.trusted, self.damaged = True, b""
        shared = around(loop, loop, lambda reply: self.backlog.get(reply, 0))
        self.confirmations = ReadConfirmations(shared, self._ask, lambda: self.reached, tell)
        self.waits = ReadWaits(shared)
        self.runs = Runs(
            self.confirmations,
            self.waits,
            lambda request: self._note("on", request[1]),
            self._refuse,
            lambda reply: self._note("no room", reply),
            lambda: self.trusted,
        )

    async def _ask(self) -> int | None:
        self.asked += 1
        await asyncio.sleep(0.01)
        return self.leader

    async def _tell(self, reads: list[Read]) -> None:
        assert self._told is not None
        for read in reads:
            read.told = self._told.get(read.reply, 0)

    def _note(self, word: str, reply: bytes) -> None:
        self.log.append((word, reply))

    def _refuse(self, reply: bytes) -> None:
        self._note("refused", reply)

    def some(self, messages: Sequence[Outgoing], origin: Origin) -> int:
        """Answers three at most, as an answer has a bound of bytes."""
        for _, reply, _, _ in messages[:3]:
            self._note("together", reply)
            if reply == self.damaged:
                self.trusted = False
                self.confirmations.clear()
                return 2
        return min(3, len(messages))

    def one(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        self._note("alone", reply)

    def hold(self, bodies: Sequence[bytes], *, strict: bool = False, index: int = 0) -> int:
        messages = [(b"s", b"r%d" % number, b"", body) for number, body in enumerate(bodies)]
        return self.runs.hold(messages, FakeOrigin(), RunKind(no_body, self.some, self.one), strict=strict, index=index)


@virtual_time
async def test_one_confirmation_is_for_all_of_a_run() -> None:
    held = Held()
    assert held.hold([b""] * 7) == 7
    assert not held.log
    await asyncio.sleep(0.1)
    assert held.log == [("together", b"r%d" % number) for number in range(7)] and held.asked == 1


@virtual_time
@pytest.mark.parametrize("end", ["answered", "cleared"])
async def test_requests_that_come_one_by_one_in_a_turn_are_a_run(end: str) -> None:
    held, one, other = Held(), FakeOrigin(), FakeOrigin()
    kind = RunKind(no_body, held.some, held.one)
    count = MAX_RUN + 5
    for number in range(count):
        assert held.runs.gather((b"s", b"r%d" % number, b"", b""), one, kind, strict=False)
    assert held.runs.gather((b"s", b"alone", b"", b""), other, kind, strict=False)
    assert not held.runs.gather((b"s", b"no", b"", b"{}"), one, kind, strict=False), "it may have wishes"
    if end == "cleared":
        held.runs.clear()
        assert held.log == [("on", b"r%d" % number) for number in range(count)] + [("on", b"alone")]
    await asyncio.sleep(0.5)
    assert len(held.log) == count + 1
    if end == "answered":
        assert {word for word, _ in held.log} == {"together"} and held.asked == 1
        assert {reply for _, reply in held.log} == {b"alone", *(b"r%d" % number for number in range(count))}


@virtual_time
async def test_what_another_node_asks_for_is_answered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests come one by one."""
    if native.plain_get is None:
        pytest.skip(f"no compiled loops: {native.why_pure}")
    async with Cluster("ABCD") as cluster:
        await cluster.create("S")
        await cluster.all_read("S")
        (client,) = [node for node in cluster if not node.has("S")]
        ack = await client.publish(b"s", b"1")
        runs: list[int] = []
        inner: Any = vars(Runs)["_take"]

        def take(self: Runs, run: list[Outgoing], *rest: Any) -> None:
            runs.append(len(run))
            inner(self, run, *rest)

        monkeypatch.setattr(Runs, "_take", take)
        found = await client.requests(b"$JS.API.DIRECT.GET.S", [b'{"seq":%d}' % ack["seq"]] * 300)
        assert {payload for _, _, payload in found} == {b"1"} and len(found) == 300
        assert sum(runs) == 300 and len(runs) < 50, runs


@virtual_time
async def test_a_run_ends_before_a_request_that_may_have_wishes() -> None:
    held = Held()
    assert held.hold([b"", b"", b"{}", b""]) == 2
    assert held.hold([b"", b"{}", b""]) == 0, "one is no run"
    assert held.hold([b""] * (MAX_RUN + 5)) == MAX_RUN


@pytest.mark.parametrize(
    ("body", "plain"),
    [(b'{"seq":5}', True), (b'{"last_by_subj":"a"}', True), (b'{"seq":5,"min_last_seq":9}', False), (b"", False)],
)
def test_a_plain_body_has_no_wishes(body: bytes, plain: bool) -> None:
    assert plain_body(body) is (plain and native.plain_get is not None)


@virtual_time
async def test_a_run_waits_until_the_replica_is_there_or_is_handed_on() -> None:
    held = Held()
    held.leader = 6
    held.hold([b""] * 2)
    await asyncio.sleep(0.1)
    assert not held.log
    held.reached = 6
    held.confirmations.advanced()
    assert held.log == [("together", b"r0"), ("together", b"r1")]
    held.leader = 7
    held.hold([b""] * 2)
    await asyncio.sleep(MAX_WAIT_SECONDS + 0.1)
    assert held.log[2:] == [("on", b"r0"), ("on", b"r1")]


@virtual_time
async def test_a_run_is_answered_in_portions_that_others_get_in_between() -> None:
    held = Held()
    held.leader = 6
    held.hold([b""] * 7)
    alone = [functools.partial(held.log.append, (word, b"x")) for word in ("alone", "on", "refused")]
    held.confirmations.hold(*alone)
    await asyncio.sleep(0.1)
    held.reached = 6
    held.confirmations.advanced()
    assert len(held.log) == 4 and held.log[3] == ("alone", b"x")
    await asyncio.sleep(0)
    assert len(held.log) == 7
    await asyncio.sleep(0)
    assert held.log[4:] == [("together", b"r%d" % number) for number in range(3, 7)]


@virtual_time
@pytest.mark.parametrize("end", ["applied", "late", "cleared"])
async def test_a_run_waits_for_an_index_and_no_leader_is_asked(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "MAX_WAITING", 10)
    held = Held()
    for _ in range(2):
        held.log.clear()
        assert held.hold([b""] * 7, index=6) == 7
        assert held.hold([b""] * 4, index=6) == 4
        assert held.log == [("no room", b"r%d" % number) for number in range(4)]
        if end == "applied":
            held.waits.applied(5)
            assert len(held.log) == 4
            held.waits.applied(6)
            assert len(held.log) == 4 + 3, "others get in between"
        elif end == "cleared":
            held.waits.clear()
        await asyncio.sleep(MAX_WAIT_SECONDS + 0.1)
        word = "together" if end == "applied" else "on"
        assert held.log[4:] == [(word, b"r%d" % number) for number in range(7)] and not held.asked


@virtual_time
async def test_what_is_confirmed_at_once_is_answered_in_portions() -> None:
    held = Held()
    held.leader = 6
    for number in range(2 * MAX_DUE_TURN + 1):
        held.confirmations.hold(functools.partial(held.log.append, ("alone", b"%d" % number)), print, print)
    await asyncio.sleep(0.1)
    held.reached = 6
    held.confirmations.advanced()
    for count in (MAX_DUE_TURN, 2 * MAX_DUE_TURN, 2 * MAX_DUE_TURN + 1):
        assert len(held.log) == count
        await asyncio.sleep(0)


@virtual_time
async def test_the_rest_of_a_run_waits_until_its_requester_has_taken_the_first_answers() -> None:
    held = Held()
    held.backlog[b"r3"] = MAX_REPLY_BACKLOG + 1
    held.hold([b""] * 7)
    await asyncio.sleep(0.5)
    assert len(held.log) == 3
    held.confirmations.hold(functools.partial(held.log.append, ("alone", b"x")), print, print)
    await asyncio.sleep(0.1)
    assert held.log[3:] == [("alone", b"x")], "others do not wait for it"
    held.backlog.clear()
    await asyncio.sleep(0.1)
    assert len(held.log) == 8


@virtual_time
async def test_who_takes_nothing_keeps_no_place_for_ever() -> None:
    held = Held()
    held.backlog = {b"r%d" % number: MAX_REPLY_BACKLOG + 1 for number in range(9)}
    held.hold([b""] * 3)
    await asyncio.sleep(MAX_SECONDS - 0.1)
    assert not held.log
    await asyncio.sleep(0.2)
    assert len(held.log) == 3


@virtual_time
async def test_a_damaged_replica_hands_on_what_it_has_not_answered() -> None:
    """The run in which that was found ends so, and the others that were confirmed with it."""
    held = Held()
    held.damaged = b"r1"
    held.hold([b""] * 5)
    held.hold([b""] * 2)
    await asyncio.sleep(0.1)
    assert held.log[:2] == [("together", b"r0"), ("together", b"r1")]
    assert sorted(held.log[2:]) == [("on", b"r%d" % number) for number in (0, 1, 2, 3, 4)]


@virtual_time
async def test_without_a_leader_each_of_a_run_is_asked_for() -> None:
    held = Held({b"r1": 6})
    held.leader = None
    held.hold([b""] * 3)
    await asyncio.sleep(0.2)
    assert held.log == [("alone", b"r0"), ("alone", b"r2")], "who was told of nothing that is not here"
    await asyncio.sleep(MAX_SECONDS)
    assert held.log[2:] == [("refused", b"r1")]


@virtual_time
async def test_a_strict_run_needs_a_leader() -> None:
    held = Held({})
    held.leader = None
    held.hold([b""] * 2, strict=True)
    await asyncio.sleep(MAX_SECONDS - 0.1)
    assert not held.log
    await asyncio.sleep(0.2)
    assert held.log == [("refused", b"r0"), ("refused", b"r1")]


@virtual_time
@pytest.mark.parametrize("end", ["answered", "unled", "refused", "cleared"])
async def test_the_requests_of_runs_are_counted(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as may wait, and again so many after those have gone."""
    monkeypatch.setattr(waits, "MAX_WAITING", 10)
    held = Held({} if end == "unled" else None)
    held.leader = 5 if end == "answered" else None
    for _ in range(3):
        held.log.clear()
        assert held.hold([b""] * 8) == 8
        assert held.hold([b""] * 3) == 3
        assert held.log == [("no room", b"r%d" % number) for number in range(3)]
        if end == "cleared":
            held.confirmations.clear()
        await asyncio.sleep(MAX_SECONDS + 0.1)
        assert len(held.log) == 11
    assert held.hold([b""] * 8) == 8


@virtual_time
async def test_runs_that_wait_for_an_index_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "MAX_WAITING", 10)
    held = Held()
    held.leader = 6
    for _ in range(3):
        held.log.clear()
        for count in (8, 3):
            held.hold([b""] * count)
            await asyncio.sleep(0.05)
        assert held.log == [("no room", b"r%d" % number) for number in range(3)]
        await asyncio.sleep(MAX_WAIT_SECONDS + 0.1)
        assert len(held.log) == 11


async def mirror_reader(cluster: ApiCluster) -> tuple[Node, Reader]:
    """UP with five messages, and a client of a node that has only the mirror."""
    await mirrored(cluster)
    await copied(cluster, 5)
    node = next(node for node in without(cluster, "UP") if node.has("M"))
    await cluster.until(lambda: answers(node), what="it answers")
    await cluster.until(lambda: not node.replica("M").mirrors.links.newest(), what="nothing is on its way")
    return node, Reader(node)


def get(bodies: Sequence[bytes], subject: bytes = b"$JS.API.DIRECT.GET.UP") -> list[Outgoing]:
    return [(subject, b"_INBOX.a.%d" % number, b"", body) for number, body in enumerate(bodies)]


@compiled_only
@virtual_time
async def test_a_mirror_answers_together_what_never_changes() -> None:
    async with ApiCluster() as cluster:
        _, reader = await mirror_reader(cluster)
        requests = get([b'{"seq":1}', b'{"seq":3}', b'{"seq":6}', b'{"seq":2}'])
        assert reader.run(requests) == 2
        assert reader.order == [b"_INBOX.a.0", b"_INBOX.a.1"], "at once"
        assert [reader.got[reply][0][1] for reply in reader.order] == [b"0", b"2"]
        assert reader.run(requests[2:]) == 2, "the leader is asked whether there is a sixth"
        await asyncio.sleep(0.1)
        assert reader.order[2:] == [b"_INBOX.a.2", b"_INBOX.a.3"]
        assert reader.got[b"_INBOX.a.2"][0][0].startswith(b"NATS/1.0 404")


@virtual_time
@pytest.mark.parametrize("by_subject", [False, True])
async def test_a_mirror_asks_once_for_a_run(by_subject: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not by_subject and native.plain_get is None:
        pytest.skip(f"no compiled loops: {native.why_pure}")
    async with ApiCluster() as cluster:
        node, reader = await mirror_reader(cluster)
        questions, inner = 0, node.mesh.call

        async def call(peer: str, method: str, payload: bytes, timeout: float = 5.0) -> bytes:
            nonlocal questions
            questions += method == confirm.LAST_METHOD
            return await inner(peer, method, payload, timeout)

        monkeypatch.setattr(node.mesh, "call", call)
        subject = b"$JS.API.DIRECT.GET.UP" + b".up" * by_subject
        assert reader.run(get([b"" if by_subject else b'{"last_by_subj":"up"}'] * 50, subject)) == 50
        await asyncio.sleep(0.1)
        assert len(reader.order) == 50 and questions == 1
        assert {answer[0][1] for answer in reader.got.values()} == {b"4"}


@virtual_time
async def test_a_run_at_a_mirror_finds_what_was_acknowledged_before() -> None:
    async with ApiCluster() as cluster:
        node, reader = await mirror_reader(cluster)
        for number in range(20):
            ack = await node.publish(b"up", b"new %d" % number)
            reader.run_all(get([b""] * 3, b"$JS.API.DIRECT.GET.UP.up"))
            await cluster.until(lambda: len(reader.order) == 3, what="all are answered")
            for reply in reader.order:
                assert reader.got[reply][0][1] == b"new %d" % number, ack
            reader.order.clear()
            reader.got.clear()
