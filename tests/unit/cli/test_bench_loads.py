"""The loads of the command against small in-process servers: every answer counts once, and errors end the load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from jetcluster.cli import bench_loads as loads
from jetcluster.cli.bench_result import LoadResult
from jetcluster.spark.connection import Connection
from tests.unit.bench.test_fast import FakeStream
from tests.unit.bench.test_loads import FakeJetStream

Load = Callable[[Connection], LoadResult]


async def run(fake: FakeJetStream | FakeStream, load: Load) -> LoadResult:
    """Of the load in a thread, on a connection to the fake server."""

    def blocking(url: str) -> LoadResult:
        with Connection([url]) as connection:
            return load(connection)

    async with await asyncio.start_server(fake.serve, "127.0.0.1", 0) as server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return await asyncio.to_thread(blocking, url)


@pytest.mark.parametrize("window", [1, 7, 500])
async def test_every_ack_is_counted_and_the_window_is_kept(window: int) -> None:
    fake = FakeJetStream()
    result = await run(fake, lambda c: loads.publish(c, "s", 64, window, float("inf"), {}, limit=2000))
    assert result.messages == fake.seq == 2000
    assert fake.most_outstanding <= window
    assert len(result.latencies_ms) == 2000 and min(result.latencies_ms) > 0


async def test_a_load_ends_with_its_time() -> None:
    fake = FakeJetStream()
    result = await run(fake, lambda c: loads.publish(c, "s", 64, 10, 0.1, {}))
    assert result.messages == fake.seq > 10
    assert 0.1 <= result.seconds < 5


async def test_gets_are_counted() -> None:
    result = await run(FakeJetStream(), lambda c: loads.direct_get([c], "S", 100, 5, 0.1, {}))
    assert result.messages >= 5 and result.name == "direct-get window=5"


async def test_an_error_answer_ends_the_load() -> None:
    fake = FakeJetStream()
    fake.fail_at = 50
    with pytest.raises(loads.LoadError, match="error answer"):
        await run(fake, lambda c: loads.publish(c, "s", 64, 10, 5.0, {}))


async def test_a_fast_batch_is_no_further_ahead_than_allowed() -> None:
    fake = FakeStream()
    result = await run(fake, lambda c: loads.fast_publish(c, "s", 64, 0.1, {}))
    assert result.messages == fake.stored > 1
    assert fake.most_ahead <= 2 * fake.per_ack
    assert result.latencies_ms


async def test_a_refusal_and_a_loss_end_a_fast_batch() -> None:
    fake = FakeStream()
    fake.refuse_at = 50
    with pytest.raises(loads.LoadError, match="400"):
        await run(fake, lambda c: loads.fast_publish(c, "s", 64, 5.0, {}))
    fake = FakeStream()
    fake.lose = 1
    with pytest.raises(loads.LoadError, match="are stored"):
        await run(fake, lambda c: loads.fast_publish(c, "s", 64, 0.1, {}))


@pytest.mark.parametrize("size", [8, 9, 128])
def test_payloads_have_the_size(size: int) -> None:
    assert len(loads.payload_of(size)) == size
