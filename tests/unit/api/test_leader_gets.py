"""The fast lane of STREAM.MSG.GET at a stream's leader, beside the general way of requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.api import leader_gets
from jetcluster.budget import BusyError, LoopBudget
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.read import msg_get
from testkit.twins.mem_kv import MemKv
from tests.unit.api.fake_cluster import Client
from tests.unit.stream.fake_store import block

T0 = 1_795_167_385_500_000_000
GENERAL = b'{"from":"the general way"}'


class Group:
    """Keeps the callbacks of proofs until a test answers them."""

    def __init__(self) -> None:
        self.asked: list[Callable[[bool], None]] = []
        self.leased = False

    def reads_now(self) -> bool:
        return self.leased

    def read_index(self, callback: Callable[[bool], None]) -> None:
        self.asked.append(callback)


class Led:
    """A client beside the leader of S, with twenty messages."""

    def __init__(self, domain: str = "") -> None:
        self.client = Client(domain=domain)
        self.store = BlockStore(MemKv(), 1, memory=False)
        headers = [b""] * 20
        headers[3] = block("A: 1", "B: x")
        headers[4] = block(*[f"a{n}: x" for n in range(1000)])
        self.store.append(
            Batch.of([b"s.%d" % (n % 7) for n in range(20)], headers, [b"%d" % n for n in range(20)]), 1, T0
        )
        self.group = Group()
        self.replica: Any = SimpleNamespace(
            assignment=SimpleNamespace(gid=7, account=self.client.bus.account),
            group=self.group,
            store=self.store,
            whole=True,
        )
        self.cluster: Any = self.client.cluster
        self.cluster.replicas = {7: self.replica}
        self.cluster.led = lambda account, name: self.replica if name == "S" else None
        self.general: list[bytes] = []
        self.gets = self.client.api.gets

        async def asked(assignment: Any, kind: str, body: dict[str, Any], *_: Any) -> dict[str, Any]:
            assert kind == "msg_get"
            self.general.append(body["payload"].encode("latin-1"))
            return {"response": GENERAL.decode()}

        self.cluster.stream_request = asked
        self.cluster.assignment = lambda account, name: SimpleNamespace(gid=7, revision=1)

    def begin(
        self, *payloads: bytes, headers: bytes = b"", name: str = "S", prefix: str = "$JS.API"
    ) -> list[asyncio.Task[bytes]]:
        subject = f"{prefix}.STREAM.MSG.GET.{name}"
        return [asyncio.ensure_future(self.client.raw(subject, one, headers)) for one in payloads]

    async def ask(self, payload: bytes, **more: Any) -> bytes:
        (task,) = self.begin(payload, **more)
        while not task.done():
            await asyncio.sleep(0)
            self.prove(True)
        return task.result()

    def prove(self, proven: bool) -> None:
        asked, self.group.asked = self.group.asked, []
        for callback in asked:
            callback(proven)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "payload",
    [b'{"seq":1}', b'{"seq":20}', b'{"last_by_subj":"s.3"}', b'{"next_by_subj":"s.1","seq":3}', b'{"seq":4}',
     b'{"seq":4,"no_hdr":true}', b'{"start_time":"2026-01-01T00:00:00Z"}'],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["$JS.API", "$JS.hub.API"])
async def test_a_message_is_answered_as_by_the_general_way(payload: bytes, prefix: str) -> None:
    led = Led(domain="hub")
    expected = msg_get.answer(led.store, msg_get.decode(payload))
    assert await led.ask(payload, prefix=prefix) == expected
    assert not led.general
    assert (led.client.api.counters.total, led.client.api.counters.errors, led.gets.waiting) == (1, 0, 0)


@pytest.mark.parametrize(
    ("payload", "headers"),
    [
        (b"", b""),
        (b"{", b""),
        (b'{"seq":21}', b""),  # there is none
        (b'{"last_by_subj":"s.*"}', b""),  # may take long
        (b'{"seq":5}', b""),  # a thousand header lines
        (b'{"seq":1}' + b" " * 1024, b""),
        (b'{"seq":1,"next_by_subj":"s.1","msg_id_prefixes":["a"]}', b""),
        (b'{"seq":1}', block("Nats-Required-Api-Level: 99")),
    ],
)
async def test_whatever_is_not_plain_takes_the_general_way(payload: bytes, headers: bytes) -> None:
    led = Led()
    answer = await led.ask(payload, headers=headers)
    assert answer == GENERAL or "error" in json.loads(answer), "refused before it is asked on"
    assert led.gets.waiting == 0


async def test_under_a_lease_requests_are_answered_as_they_come() -> None:
    led = Led()
    led.group.leased = True
    payloads = [b'{"seq":1}', b'{"last_by_subj":"s.3"}', b'{"seq":4,"no_hdr":true}']
    tasks = led.begin(*payloads)
    await turns(2)
    assert [task.result() for task in tasks] == [msg_get.answer(led.store, msg_get.decode(one)) for one in payloads]
    assert not led.group.asked
    assert (led.client.api.counters.total, led.gets.waiting) == (3, 0)


@pytest.mark.parametrize("payload", [b'{"seq":21}', b'{"last_by_subj":"s.*"}', b'{"seq":5}', b"{"])
async def test_under_a_lease_too_whatever_is_not_plain_takes_the_general_way(payload: bytes) -> None:
    led = Led()
    led.group.leased = True
    answer = await led.ask(payload)
    assert answer == GENERAL or "error" in json.loads(answer)


async def test_a_replica_that_has_failed_answers_nothing_under_a_lease() -> None:
    led = Led()
    led.group.leased, led.replica.whole = True, False
    assert await led.ask(b'{"seq":1}') == GENERAL


async def test_more_than_a_turn_has_room_for_is_answered_in_later_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_gets, "TURN_BYTES", 3000)
    led = Led()
    led.group.leased = True
    tasks = led.begin(*[b'{"seq":1}'] * 10)
    await turns(1)
    assert sum(task.done() for task in tasks) < 10
    assert led.gets.waiting > 0
    await asyncio.gather(*tasks)
    assert led.group.asked == [], "the lease is proof enough"
    assert await led.ask(b'{"seq":2}'), "the next turn has room again"
    assert len(led.general) == 0


async def test_one_that_comes_while_others_wait_does_not_overtake_them() -> None:
    led = Led()
    first = led.begin(b'{"seq":1}')
    await turns()
    led.group.leased = True
    second = led.begin(b'{"seq":2}')
    await turns()
    assert not any(task.done() for task in first + second)
    led.prove(True)
    await turns()
    led.prove(True)
    await asyncio.gather(*first, *second)


async def test_what_another_node_leads_takes_the_general_way() -> None:
    led = Led()
    assert await led.ask(b'{"seq":1}', name="T") == GENERAL
    assert led.group.asked == []


async def test_those_of_one_turn_share_a_proof_and_those_that_come_later_wait_for_the_next() -> None:
    led = Led()
    plain = [n for n in range(1, 21) if n != 5]
    first = led.begin(*[b'{"seq":%d}' % n for n in plain], b'{"seq":5}')
    await turns()
    assert len(led.group.asked) == 1
    later = led.begin(*[b'{"seq":%d}' % n for n in range(1, 11)])
    await turns()
    assert len(led.group.asked) == 1, "one round at a time"
    assert led.client.api.waiting() == (30, 0)
    led.prove(True)
    await turns()
    assert [json.loads(task.result())["message"]["seq"] for task in first[:-1]] == plain
    assert not any(task.done() for n, task in enumerate(later, 1) if n != 5), "the proof is older than they are"
    assert len(led.group.asked) == 1
    led.prove(True)
    await asyncio.gather(*first, *later)
    assert led.general == [b'{"seq":5}'] * 2 and led.gets.waiting == 0


@pytest.mark.parametrize("why", ["no proof", "stopped", "replaced", "silence", "busy"])
async def test_a_round_that_proves_nothing_takes_the_general_way(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_gets, "CONFIRM_SECONDS", 0.02)
    led = Led()
    tasks = led.begin(b'{"seq":1}', b'{"seq":2}')
    await turns()
    tasks += led.begin(b'{"seq":3}')
    await turns()
    if why == "stopped":
        led.replica.whole = False
    elif why == "replaced":
        led.cluster.replicas = {7: object()}
    elif why == "busy":
        start = LoopBudget.start

        def busy(*args: Any, **more: Any) -> Any:
            monkeypatch.setattr(LoopBudget, "start", start)
            raise BusyError("too much")

        monkeypatch.setattr(LoopBudget, "start", busy)
    late = led.group.asked
    if why != "silence":
        led.prove(why != "no proof")
    if why == "busy":
        await turns()
        led.prove(True)  # of the third
    assert set(await asyncio.gather(*tasks[:2])) == {GENERAL}
    assert await tasks[2] == (GENERAL if why != "busy" else msg_get.answer(led.store, msg_get.decode(b'{"seq":3}')))
    for callback in late:
        callback(True)  # the proof comes after all
    await turns()
    assert led.client.api.counters.total == 3 and led.gets.waiting == 0


async def test_a_read_that_fails_takes_the_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """That reports the damage."""
    led = Led()

    def damaged(*_: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(led.store, "get", damaged)
    assert await led.ask(b'{"seq":1}') == GENERAL


async def test_more_than_may_wait_take_the_general_way() -> None:
    led = Led()
    led.client.api.max_queued = 10
    tasks = led.begin(*[b'{"seq":1}'] * 15)
    await turns()
    assert led.gets.waiting == 10 and len(led.general) == 5
    led.prove(True)
    await asyncio.gather(*tasks)


async def test_a_long_round_leaves_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    led = Led()
    led.client.api.max_queued = 10_000
    monkeypatch.setattr(led.client.context.budget, "has_time", lambda: False)  # the turn's time is used up
    tasks = led.begin(*[b'{"seq":1}'] * 100)
    await turns()
    led.prove(True)
    await turns(1)
    assert not all(task.done() for task in tasks)
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("what", ["fails", "is replaced", "stops"])
async def test_what_ends_between_two_steps_ends_the_round(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    led = Led()
    monkeypatch.setattr(led.client.context.budget, "has_time", lambda: False)
    monkeypatch.setattr(LoopBudget, "share", 0.0)  # one step in each turn
    tasks = led.begin(*[b'{"seq":1}'] * 100)
    await turns()
    led.prove(True)
    while not any(task.done() for task in tasks):
        await asyncio.sleep(0)
    if what == "fails":
        led.replica.whole = False
    elif what == "is replaced":
        led.cluster.replicas = {7: object()}
    else:
        await led.client.api.stop()
    await turns(20)
    answers = [task.result() for task in tasks if task.done() and task.result() != GENERAL]
    assert 0 < len(answers) < 20
    if what == "stops":
        assert led.gets.waiting == 0 and not led.general
        for task in tasks:
            task.cancel()
    else:
        await asyncio.gather(*tasks)
        assert len(led.general) == 100 - len(answers)


async def test_a_step_is_short_also_of_long_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    led = Led()
    monkeypatch.setattr(led.client.context.budget, "has_time", lambda: False)
    monkeypatch.setattr(LoopBudget, "share", 0.0)  # one step in each turn
    led.store.append(Batch.of([b"long"], [], [bytes(100_000)]), 21, T0)
    tasks = led.begin(*[b'{"seq":21}'] * 8)
    await turns()
    led.prove(True)
    waiting = [8]
    while waiting[-1]:
        await asyncio.sleep(0)
        waiting.append(led.gets.waiting)
    assert max(before - after for before, after in pairwise(waiting)) == 1
    await asyncio.gather(*tasks)


async def test_nothing_is_answered_after_the_end() -> None:
    led = Led()
    tasks = led.begin(b'{"seq":1}', b'{"seq":2}')
    await turns()
    late = led.group.asked[0]
    await led.client.api.stop()
    late(True)
    await turns(20)
    assert not any(task.done() for task in tasks) and not led.general and led.gets.waiting == 0
    for task in tasks:
        task.cancel()
