"""Memory streams lose nothing to a killed process: journal entries are written, though not synced, before the ack."""

from __future__ import annotations

import pytest

from testkit.client import create_stream
from testkit.harness import ProcessCluster
from testkit.ledger import check_exactly_once, publish_all, read_all, wait_direct

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]


@pytest.mark.ours("its memory streams are gone with the process")
async def test_acked_messages_of_a_memory_stream_outlive_kill_9(single: ProcessCluster) -> None:
    node = single[0]
    acked: dict[bytes, int] = {}
    async with await node.connect() as client:
        await create_stream(client, "M", ["m"], 1, storage="memory")
    for life in range(4):
        async with await node.connect() as client:
            for batch in range(5):
                ledger = await publish_all(client, "m", [b"%d-%d-%d" % (life, batch, n) for n in range(100)])
                acked |= ledger.acked
            node.kill9()
        await node.start()
        async with await node.connect() as client:
            await wait_direct(client, "M", max(acked.values()))
            ledger.acked = acked
            check_exactly_once(ledger, await read_all(client, "M"))
