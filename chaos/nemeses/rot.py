"""Data files of two of three nodes rot, in different places: one after the other, or both before either is whole again.
What one of them has lost the other has, and the third has all: everything acked must come back, and a node that is
damaged has to say so, and nobody else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

from chaos.nemeses.base import Nemesis, Trouble, flush
from testkit.client import Client, Msg
from testkit.harness import HarnessError, eventually

RENEWED = "and is renewed"
READY = "Server is ready"
WITHIN = 50.0
"""Seconds in which damage is found and repaired: a pass over the data begins every 30 s (docs/membership/damage.md)."""
ADVISORY = "$JS.EVENT.ADVISORY.STREAM.REPLICA_DAMAGED.>"


async def rot_two(trouble: Trouble) -> None:
    """A node renews its data store once in ten minutes, so each is struck once in a run."""
    left = [name for name in trouble.target.names if name not in trouble.rotten]
    if len(left) < 2:
        trouble.detail = "no two nodes are left whose data has not rotted yet"
        await trouble.hold(2.0, 3.0)
        return
    names = trouble.dice.sample(left, 2)
    other = next(name for name in trouble.target.names if name not in names)
    at_once = trouble.dice.random() < 0.5
    trouble.detail = "at once:" if at_once else "in turn:"
    trouble.victim = " ".join(names)
    async with _listening(trouble, other):
        for group in [names] if at_once else [names[:1], names[1:]]:
            await trouble.all_current()
            await flush(trouble)
            await _rot(trouble, group)
        await trouble.all_current()


async def _rot(trouble: Trouble, names: list[str]) -> None:
    target = trouble.target
    await target.kill(*names)
    for place, name in enumerate(names):
        path = max(target.store(name).rglob("data/*.sst"), key=lambda path: path.stat().st_size)
        trouble.detail += f" {name} {path.name} {flip_near(path, 0.3 + 0.3 * place)}"
        trouble.rotten.append(name)
    await target.start(*names)
    with contextlib.suppress(HarnessError):
        await eventually(lambda: all(_renewed(target.log(name)) for name in names), WITHIN, "not renewed", every=0.2)
    for name in target.names:  # also those that are found at the start, before anybody could listen
        if RENEWED in target.log(name):
            trouble.history.note("-", "damaged", "log", replica=name, error=RENEWED)


def _renewed(log: str) -> bool:
    _, found, after = log.partition(RENEWED)
    return bool(found) and READY in after


def flip_near(path: Path, share: float) -> str:
    """One bit in that part of the file, which holds messages. Returns where."""
    offset = int(path.stat().st_size * share)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 16]))
    return f"bit 4 of byte {offset}"


@contextlib.asynccontextmanager
async def _listening(trouble: Trouble, name: str) -> AsyncIterator[None]:
    """Writes down who says that it is damaged."""

    def heard(msg: Msg) -> None:
        event = json.loads(msg.data)
        trouble.history.note(event["stream"].lower(), "damaged", "ear", replica=event["server"], error=event["damage"])

    async with await Client.connect(trouble.target.url(name)) as ear:
        ear.subscribe(ADVISORY, heard)
        await ear.flush()
        yield


NEMESES = [Nemesis("rot-two", "files", rot_two, frozenset({"files"}))]
