"""Servers that die while the meta leader gives one of them its share of replicas and leaders."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from chaos.nemeses.base import Nemesis, Trouble
from chaos.replicas import api, wait_current
from testkit.client import Client, ClientError, Msg
from testkit.harness import HarnessError

UNEVEN = 9
"""Streams with one replica, made while a server is away: three others carry them."""
BEGINS_WITHIN = 90.0
"""Seconds until something moves: a server gets nothing before it has been well for 30 s."""
EVERY = 0.05
MESSAGES = 20


async def kill_while_balancing(trouble: Trouble) -> None:
    """A server is away while streams are made, comes back, and gets some of them. With the first move it, the server
    that gives, or another one is killed. The moves go on, and no message is lost."""
    await trouble.all_current()
    target, poor = trouble.target, trouble.one()
    streams = [f"UNEVEN_{number}" for number in range(UNEVEN)]
    await target.kill(poor)
    try:
        for stream in streams:
            await _filled(trouble, stream)
    finally:
        await target.start(poor)
    await trouble.all_current()
    giver = await _moves(trouble, streams, poor)
    victim = trouble.dice.choice([poor, giver, trouble.one()])
    trouble.detail = f"{poor} gets its share, {victim} dies"
    await target.kill(victim)
    try:
        await trouble.hold(0.2, 1.5)
    finally:
        await target.start(victim)
    await trouble.all_current()
    for stream in streams:
        await wait_current(target, stream)
        held = (await api(target, f"STREAM.INFO.{stream}"))["state"]["messages"]
        if held != MESSAGES:
            raise HarnessError(f"{stream} has {held} of {MESSAGES} messages after it was moved for balance")
        await api(target, f"STREAM.DELETE.{stream}")


async def _filled(trouble: Trouble, stream: str) -> None:
    """A stream of an earlier strike may be left. Raises HarnessError."""
    deadline = time.monotonic() + BEGINS_WITHIN
    while True:
        with contextlib.suppress(ClientError, HarnessError):
            await api(trouble.target, f"STREAM.DELETE.{stream}")
        try:
            await api(trouble.target, f"STREAM.CREATE.{stream}", {"name": stream, "num_replicas": 1})
            name = next(name for name in trouble.target.names if trouble.target.alive(name))
            async with await Client.connect(trouble.target.url(name), within=1.0) as client:
                acks = await asyncio.gather(*(client.request(stream, b"%d" % n, within=3.0) for n in range(MESSAGES)))
            _check(acks)
        except (ClientError, HarnessError, OSError, TimeoutError) as error:
            if time.monotonic() > deadline:
                raise HarnessError(f"{stream} cannot be made: {error!r}") from error
            await asyncio.sleep(EVERY)
        else:
            return


def _check(acks: list[Msg]) -> None:
    if any(ack.status or "seq" not in ack.json() for ack in acks):
        raise HarnessError("a message is refused")


async def _moves(trouble: Trouble, streams: list[str], poor: str) -> str:
    """Waits until one of the streams goes to `poor` or is there; returns the server that gives. Raises HarnessError."""
    deadline = time.monotonic() + BEGINS_WITHIN
    before: dict[str, str] = {}
    while time.monotonic() < deadline:
        for stream in streams:
            with contextlib.suppress(ClientError, HarnessError):
                cluster: dict[str, Any] = (await api(trouble.target, f"STREAM.INFO.{stream}"))["cluster"]
                leader = str(cluster.get("leader") or "")
                if leader == poor or "desired" in cluster:
                    return before.get(stream) or leader
                before[stream] = leader
        await asyncio.sleep(EVERY)
    raise HarnessError(f"nothing has moved to {poor} after {BEGINS_WITHIN:.0f} s")


NEMESES = [Nemesis("kill-while-balancing", "process", kill_while_balancing, nodes=4)]
