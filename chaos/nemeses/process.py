"""Processes that die (SIGKILL) or stand still (SIGSTOP)."""

from __future__ import annotations

from chaos.nemeses.base import Nemesis, Trouble


async def _kill(trouble: Trouble, *names: str) -> None:
    trouble.detail = " ".join(names)
    await trouble.target.kill(*names)
    try:
        await trouble.hold(0.2, 1.5)
    finally:
        await trouble.target.start(*names)


async def kill_leader(trouble: Trouble) -> None:
    await _kill(trouble, await trouble.leader())


async def kill_one(trouble: Trouble) -> None:
    await _kill(trouble, trouble.one())


async def kill_whole(trouble: Trouble) -> None:
    """Only while every replica has everything: of a memory stream a dead node takes its copy with it."""
    await trouble.all_current()
    await _kill(trouble, await trouble.leader() if trouble.dice.random() < 0.6 else trouble.one())


async def kill_majority(trouble: Trouble) -> None:
    """No quorum for a while: nothing may be acked then."""
    await _kill(trouble, *trouble.some(trouble.minority + 1))


async def kill_all(trouble: Trouble) -> None:
    await _kill(trouble, *trouble.target.names)


async def _pause(trouble: Trouble, *names: str) -> None:
    trouble.detail = " ".join(names)
    await trouble.target.pause(*names)
    try:
        await trouble.hold()
    finally:
        await trouble.target.resume(*names)


async def pause_leader(trouble: Trouble) -> None:
    """It wakes up believing that it leads: it must neither ack nor answer reads by that belief."""
    await _pause(trouble, await trouble.leader())


async def pause_some(trouble: Trouble) -> None:
    await _pause(trouble, *trouble.some(trouble.dice.randint(1, len(trouble.target.names) - 1)))


NEMESES = [
    Nemesis("kill-leader", "process", kill_leader),
    Nemesis("kill-one", "process", kill_one),
    Nemesis("kill-whole", "process", kill_whole),
    Nemesis("kill-majority", "process", kill_majority),
    Nemesis("kill-all", "process", kill_all),
    Nemesis("pause-leader", "pause", pause_leader),
    Nemesis("pause-some", "pause", pause_some),
]
