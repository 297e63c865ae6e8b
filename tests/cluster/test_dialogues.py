"""One client hears the same of a server, to the byte, as of nats-server."""

from __future__ import annotations

import asyncio

import pytest

from testkit.harness import ProcessCluster
from tests.sim.cluster.dialogues import ACCOUNTS, DIALOGUES, RIGHTS, Dialogue, answers

pytestmark = pytest.mark.cluster

CONFIG = f"""accounts {{ {ACCOUNTS} OTHERS {{ jetstream: enabled, users: [ {{user: others, password: others}} ] }} }}
no_auth_user: others
"""
SILENCE = 0.05
"""Seconds in which nothing more comes once all is there."""
LATE = 3.0
"""Seconds within which all is there."""


async def heard(reader: asyncio.StreamReader, wanted: bytes, *, ends: bool) -> tuple[bytes, bool]:
    """All that comes until it is what is wanted and nothing else does; whether the connection has ended."""
    found, over = b"", False
    try:
        while not over:
            whole = answers(found) == wanted and not ends
            async with asyncio.timeout(SILENCE if whole else LATE):
                data = await reader.read(1 << 20)
            found, over = found + data, not data
    except TimeoutError:
        pass
    except ConnectionResetError:
        over = True
    return answers(found), over


async def held(dialogue: Dialogue, host: str, port: int) -> list[tuple[str, object, object]]:
    """Differences: (name, found, wanted)."""
    reader, writer = await asyncio.open_connection(host, port)
    await reader.readline()
    over, different = False, []
    for said, wanted in dialogue.turns:
        writer.write(said)
        found, over = await heard(reader, wanted, ends=dialogue.ends)
        if found != wanted:
            different.append((dialogue.name, found[-200:], wanted[-200:]))
    writer.transport.abort()
    return different + ([] if over == dialogue.ends else [(dialogue.name, over, dialogue.ends)])


async def test_each_dialogue_is_as_it_is_to_be(server: str) -> None:
    different = []
    async with ProcessCluster(1, server, config=CONFIG) as nodes:
        for one in (*DIALOGUES, *RIGHTS):
            different += await held(one, "127.0.0.1", nodes[0].port)
    assert different == []
