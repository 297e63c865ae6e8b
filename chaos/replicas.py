"""Reading each replica's own copy after the run, and waiting until there is something whole to read."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from chaos.history import History
from chaos.target import Target
from chaos.workloads.base import TROUBLE
from testkit.client import Client, ClientError, stored_messages
from testkit.harness import HarnessError
from testkit.ledger import wait_direct

HEAL_WITHIN = 90.0
TRIES = 3
REJOIN = 2.0
"""Seconds until a replica that had no leader, as all others stood still, is one of the readers again."""


async def api(
    target: Target, subject: str, body: object = None, within: float = 3.0, *, system: bool = False
) -> dict[str, Any]:
    """Asks the first live node that answers, as the system account's user if need be. Raises HarnessError, or
    ClientError for the server's own no."""
    refused: ClientError | None = None
    for name in target.names:
        if target.alive(name):
            with contextlib.suppress(OSError, TimeoutError):
                try:
                    url = target.system_url(name) if system else target.url(name)
                    async with await Client.connect(url, within=1.0) as client:
                        return await client.api(subject, body, within)
                except ClientError as error:
                    refused = error
    raise refused or HarnessError(f"nobody answers {subject}")


async def wait_current(target: Target, stream: str, within: float = HEAL_WITHIN) -> list[str]:
    """Until the leader reports every replica as current; returns their names. Raises HarnessError."""
    deadline = time.monotonic() + within
    last: object = "no answer"
    while time.monotonic() < deadline:
        with contextlib.suppress(HarnessError, *TROUBLE):
            info = await api(target, f"STREAM.INFO.{stream}")
            last = cluster = info.get("cluster") or {}
            peers = cluster.get("replicas") or []
            whole = len(peers) + 1 == info["config"]["num_replicas"] and cluster.get("leader")
            if whole and all(p["current"] and not p.get("lag") and not p.get("offline") for p in peers):
                return [cluster["leader"], *(p["name"] for p in peers)]
        await asyncio.sleep(0.1)
    raise HarnessError(f"{stream} is not current after {within:.0f} s: {last}")


async def read_stored(target: Target, history: History, workload: str, stream: str, names: list[str]) -> None:
    """Into the history as `stored`, replica by replica. All other nodes stand still meanwhile: nobody else can answer.
    Raises HarnessError. A replica that was not read whole is not in the history."""
    last = int((await api(target, f"STREAM.INFO.{stream}"))["state"]["last_seq"])
    for name in names:
        for left in reversed(range(TRIES)):
            try:
                await _read_alone(target, history, workload, stream, name, last)
            except TROUBLE as error:
                if not left:
                    raise HarnessError(f"{name} does not show its copy of {stream}: {error!r}") from error
                await wait_current(target, stream)
                await asyncio.sleep(REJOIN)
            else:
                break
        await wait_current(target, stream)


async def _read_alone(target: Target, history: History, workload: str, stream: str, name: str, last: int) -> None:
    """Raises HarnessError, or one of `TROUBLE`: that replica does not answer just now."""
    others = [other for other in target.names if target.own_copies and other != name and target.alive(other)]
    async with await Client.connect(target.url(name), within=5.0) as client:
        await _wait_direct(client, name, stream, last)
        await target.pause(*others)
        try:
            await _read(client, history, workload, stream, name)
        finally:
            await target.resume(*others)


async def _wait_direct(client: Client, name: str, stream: str, last: int) -> None:
    if last:
        try:
            await wait_direct(client, stream, last, within=HEAL_WITHIN)
        except (AssertionError, *TROUBLE) as error:
            raise HarnessError(f"{name}: {error!r}") from error


async def _read(client: Client, history: History, workload: str, stream: str, name: str) -> None:
    found = await stored_messages(client, stream)
    history.note(workload, "stored", replica=name)
    for msg in found:
        history.note(
            workload, "stored", replica=name, seq=int(msg.get("Nats-Sequence") or 0),
            subject=msg.get("Nats-Subject") or "", msg_id=msg.data.decode(),
        )  # fmt: skip
