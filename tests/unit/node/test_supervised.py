from __future__ import annotations

import asyncio
import json
import socket

from jetcluster.node.supervised import SupervisorLink


async def test_a_worker_reports_its_ports_and_ends_with_its_supervisor() -> None:
    ours, theirs = socket.socketpair()
    gone = asyncio.Event()
    link = SupervisorLink(theirs.fileno(), gone.set)
    await link.start({"nats": ["nats://h:4222"]})
    link.ask_reload()
    reader, writer = await asyncio.open_connection(sock=ours)
    assert json.loads(await reader.readline()) == {"ready": {"nats": ["nats://h:4222"]}}
    assert json.loads(await reader.readline()) == {"reload": True}
    assert not gone.is_set()
    writer.close()
    await asyncio.wait_for(gone.wait(), 1)
    link.ask_reload()  # to nobody
    theirs.close()
