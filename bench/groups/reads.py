"""Reads without a consumer: Direct Get, batches of it, MSG.GET."""

from __future__ import annotations

from bench import loads, reads
from bench.result import LoadResult
from bench.row import LOWER, Group, Measured, Row
from bench.stand import Stand

MESSAGES = 200_000
KEYS = 500
IN_FLIGHT = 256
DIRECT = Group(
    "Direct Get, R3", nodes=3,
    text="200,000 messages of 128 B; pipeN: N requests in flight; 1conn: at the leader, 3conn: one per node.",
)  # fmt: skip
SUBJECTS = Group(
    "Reads by subject, R3", nodes=3, text="500 subjects of 100 messages of 128 B each, connections as above."
)


@DIRECT.prepares
async def prepare(stand: Stand) -> None:
    await stand.filled("G", stand.scaled(MESSAGES))


async def _by_sequence(stand: Stand, window: int, *, everywhere: bool = False) -> LoadResult:
    leader = stand.leader("G")
    urls = stand.nodes.urls if everywhere else [leader.url]
    return await loads.direct_get(
        urls, "G", 1, stand.scaled(MESSAGES), window=window, seconds=stand.seconds, pids=stand.pids
    )  # fmt: skip


@DIRECT.measure(Row("direct seq sync", "ms, p50", LOWER), Row("direct seq sync, p99", "ms", LOWER))
async def direct_sync(stand: Stand) -> tuple[Measured, ...]:
    found = await _by_sequence(stand, 1)
    return Measured.latency(found), Measured.worst(found)


@DIRECT.measure(Row("direct seq pipe256 1conn", "msgs/s"))
async def direct_one(stand: Stand) -> Measured:
    return Measured.rate(await _by_sequence(stand, IN_FLIGHT))


@DIRECT.measure(Row("direct seq pipe256 3conn", "msgs/s", note="256 in flight on each connection"))
async def direct_three(stand: Stand) -> Measured:
    return Measured.rate(await _by_sequence(stand, 3 * IN_FLIGHT, everywhere=True))


@DIRECT.measure(Row("batched direct get 1conn", "msgs/s", note="1,000 messages per request, two requests in flight"))
async def batched_one(stand: Stand) -> Measured:
    url, last = stand.leader("G").url, stand.scaled(MESSAGES)
    return Measured.rate(await reads.batched_gets([url], "G", last, seconds=stand.seconds, pids=stand.pids))


@DIRECT.measure(Row("batched direct get 3conn", "msgs/s"))
async def batched_three(stand: Stand) -> Measured:
    stand.leader("G")
    last = stand.scaled(MESSAGES)
    return Measured.rate(
        await reads.batched_gets(stand.nodes.urls, "G", last, seconds=stand.seconds, pids=stand.pids)
    )  # fmt: skip


@DIRECT.measure(Row("MSG.GET sync", "ms, p50", LOWER))
async def msg_sync(stand: Stand) -> Measured:
    url, last = stand.leader("G").url, stand.scaled(MESSAGES)
    return Measured.latency(await loads.msg_get(url, "G", last, seconds=stand.seconds, pids=stand.pids))


@DIRECT.measure(Row("MSG.GET pipe256", "msgs/s"))
async def msg_many(stand: Stand) -> Measured:
    url, last = stand.leader("G").url, stand.scaled(MESSAGES)
    return Measured.rate(
        await loads.msg_get(url, "G", last, window=IN_FLIGHT, seconds=stand.seconds, pids=stand.pids)
    )  # fmt: skip


@SUBJECTS.prepares
async def prepare_subjects(stand: Stand) -> None:
    leader = await stand.stream("W", ["w.>"])
    await reads.publish_many(leader.url, lambda n: b"w.%d.%d" % (n % KEYS, n % 7), 100 * KEYS)
    leader = await stand.stream("M", ["m.>"])
    await reads.publish_many(leader.url, lambda n: b"m.%d" % (n % KEYS), 100 * KEYS)
    await stand.current("W")
    await stand.current("M")


async def _last(stand: Stand, window: int, *, everywhere: bool = False) -> LoadResult:
    leader = stand.leader("M")
    urls = stand.nodes.urls if everywhere else [leader.url]
    subjects = [f"m.{n}" for n in range(KEYS)]
    return await loads.direct_get_last(
        urls, "M", subjects, window=window, seconds=stand.seconds, pids=stand.pids
    )  # fmt: skip


@SUBJECTS.measure(Row("direct last_by_subj sync", "ms, p50", LOWER))
async def last_sync(stand: Stand) -> Measured:
    return Measured.latency(await _last(stand, 1))


@SUBJECTS.measure(Row("direct last_by_subj pipe256 1conn", "msgs/s"))
async def last_one(stand: Stand) -> Measured:
    return Measured.rate(await _last(stand, IN_FLIGHT))


@SUBJECTS.measure(Row("direct last_by_subj pipe256 3conn", "msgs/s"))
async def last_three(stand: Stand) -> Measured:
    return Measured.rate(await _last(stand, 3 * IN_FLIGHT, everywhere=True))


@SUBJECTS.measure(Row("multi_last 500 keys", "msgs/s", note="one wildcard, two requests in flight"))
async def multi_last(stand: Stand) -> Measured:
    url = stand.leader("M").url
    return Measured.rate(
        await reads.multi_last([url], "M", lambda n: b"m.*", KEYS, seconds=stand.seconds, pids=stand.pids)
    )  # fmt: skip


@SUBJECTS.measure(Row("batched get by wildcard", "msgs/s", note="100 per request, one message in seven matches"))
async def wildcard(stand: Stand) -> Measured:
    url = stand.leader("W").url
    return Measured.rate(
        await reads.wildcard_batches([url], "W", "w.*.3", 50 * KEYS, seconds=stand.seconds, pids=stand.pids)
    )  # fmt: skip
