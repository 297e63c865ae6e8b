"""Leaders that step down, groups that grow and shrink, replicas and servers that are removed, under load."""

from __future__ import annotations

import asyncio
import contextlib
import time

from chaos.nemeses.base import Nemesis, Trouble, empty
from chaos.replicas import HEAL_WITHIN, api, wait_current
from testkit.client import ClientError
from testkit.harness import HarnessError

RETRY = 0.2


async def stepdown(trouble: Trouble) -> None:
    """Stream leaders and the meta leader; a refusal (no leader just now) is fine."""
    subjects = [f"STREAM.LEADER.STEPDOWN.{stream}" for stream in trouble.streams] + ["META.LEADER.STEPDOWN"]
    chosen = trouble.dice.sample(subjects, trouble.dice.randint(1, len(subjects)))
    trouble.detail = " ".join(chosen)
    for subject in chosen:
        with contextlib.suppress(ClientError, HarnessError):
            await api(trouble.target, subject, {}, system=subject.startswith("META"))


async def scale(trouble: Trouble) -> None:
    """One stream to five replicas and back to three; each must be reached."""
    stream = trouble.dice.choice(trouble.streams)
    trouble.detail = f"{stream} to 5 and back to 3"
    for replicas in (5, 3):
        info = await api(trouble.target, f"STREAM.INFO.{stream}")
        config = info["config"] | {"num_replicas": replicas}
        await api(trouble.target, f"STREAM.UPDATE.{stream}", config, within=10.0)
        await wait_current(trouble.target, stream)
        await trouble.hold(0.2, 1.0)


async def peer_remove(trouble: Trouble) -> None:
    """A replica of one stream, the leader's or another, is given up; a node that has none takes its place. Twice, so
    that one that went may come back."""
    stream = trouble.dice.choice(trouble.streams)
    for _ in range(2):
        gone = trouble.dice.choice(await wait_current(trouble.target, stream))
        trouble.detail += f" {stream} from {gone}"
        await _until_accepted(trouble, f"STREAM.PEER.REMOVE.{stream}", gone)
        deadline = time.monotonic() + HEAL_WITHIN
        while gone in (names := await wait_current(trouble.target, stream)):
            if time.monotonic() > deadline:
                raise HarnessError(
                    f"{stream} is still on {' '.join(names)}, {HEAL_WITHIN:.0f} s after {gone} was removed"
                )
            await asyncio.sleep(RETRY)


async def server_remove(trouble: Trouble) -> None:
    """A node dies, does not come back, and is removed from the cluster; a machine with its name and an empty disk
    joins."""
    await trouble.all_current()
    node = trouble.one()
    trouble.detail = node
    await trouble.target.kill(node)
    await trouble.hold(0.2, 1.5)
    await _until_accepted(trouble, "SERVER.REMOVE", node, system=True)
    await trouble.hold(0.2, 1.5)
    empty(trouble.target.store(node))
    await trouble.target.start(node)
    await trouble.all_current()


async def _until_accepted(trouble: Trouble, subject: str, peer: str, *, system: bool = False) -> None:
    """A change that is under way, or a leader that is not there yet, refuses for a moment. Raises HarnessError."""
    deadline = time.monotonic() + HEAL_WITHIN
    while True:
        try:
            await api(trouble.target, subject, {"peer": peer}, within=10.0, system=system)
        except (ClientError, HarnessError) as error:
            if time.monotonic() > deadline:
                raise HarnessError(f"{subject} of {peer} is refused: {error}") from error
            await asyncio.sleep(RETRY)
        else:
            return


NEMESES = [
    Nemesis("stepdown", "membership", stepdown),
    Nemesis("scale", "membership", scale, nodes=5),
    Nemesis("peer-remove", "membership", peer_remove, nodes=4),
    Nemesis("server-remove", "membership", server_remove, frozenset({"system", "files"})),
]
