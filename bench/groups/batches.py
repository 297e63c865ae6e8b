"""Atomic batches and a fast batch: many messages, one ack."""

from __future__ import annotations

from bench import batches, fast
from bench.groups.publishing import WARM
from bench.row import Group, Measured, Row
from bench.stand import Stand

TEXT = "batch=N: atomic batches of N messages of 128 B; inflight=N: so many of them without their ack."
R1 = Group("Batches, R1", nodes=1, text=TEXT)
R3 = Group("Batches, R3", nodes=3, text=TEXT)


@R1.prepares
@R3.prepares
async def prepare(stand: Stand) -> None:
    await stand.stream("B", allow_atomic=True, allow_batched=True)


def _atomic(group: Group, batch: int, window: int) -> None:
    replicas = f"R{group.nodes}"

    @group.measure(Row(f"{replicas} batch={batch} inflight={window}", "msgs/s", durable=True))
    async def measure(stand: Stand) -> Measured:
        url = stand.leader("B").url
        await batches.atomic_publish(url, "b", batch=batch, window=window, seconds=WARM)
        found = await batches.atomic_publish(
            url, "b", batch=batch, window=window, seconds=stand.seconds, pids=stand.pids
        )  # fmt: skip
        return Measured.rate(found)


for _window in (1, 8):
    _atomic(R1, 100, _window)
for _batch, _window in ((10, 1), (10, 8), (100, 1), (100, 8), (1000, 1), (1000, 4)):
    _atomic(R3, _batch, _window)


@R3.measure(Row("R3 fast batch, 500 per ack", "msgs/s", durable=True))
async def fast_batch(stand: Stand) -> Measured:
    url = stand.leader("B").url
    return Measured.rate(await fast.fast_publish(url, "b", seconds=stand.seconds, pids=stand.pids))
