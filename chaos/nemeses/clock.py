"""Wall clocks that jump. By less than half of the window for duplicates (120 s): two clocks that differ by more than
the window may well store a re-sent message twice, as in every server that keeps such a window."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from chaos.nemeses.base import Nemesis, Trouble
from chaos.probe import probing

MOST = 55.0
HOURS = 7200.0
HELD = (5.0, 7.0)
"""Longer than a failover may take (checkers/failover.py)."""


async def jump(trouble: Trouble) -> None:
    """Some nodes; all clocks are right again when it heals, which is another jump."""
    names = trouble.some(trouble.dice.randint(1, len(trouble.target.names)))
    jumps = {name: trouble.dice.uniform(-MOST, MOST) for name in names}
    trouble.detail = ", ".join(f"{name} {seconds:+.0f} s" for name, seconds in jumps.items())
    for name, seconds in jumps.items():
        trouble.target.shim(name).set_clock(seconds)
    try:
        await trouble.hold(1.0, 3.0)
        if trouble.dice.random() < 0.5:
            leader = await trouble.leader()
            await trouble.target.kill(leader)
            await trouble.target.start(leader)
            await trouble.hold()
    finally:
        for name in names:
            trouble.target.shim(name).set_clock(0.0)


async def hours(trouble: Trouble) -> None:
    """One node, the leader of the probed stream: it must hand over, and nobody may believe its clock."""
    victim = await trouble.leader(trouble.probed)
    other = trouble.dice.choice([name for name in trouble.target.names if name != victim])
    with _hours_off(trouble, victim):
        async with probing(trouble.history, trouble.target.url(other), trouble.streams):
            await trouble.hold(*HELD)


async def hours_restart(trouble: Trouble) -> None:
    """A node that starts with a wrong clock takes the time of the others."""
    victim = await trouble.leader()
    with _hours_off(trouble, victim):
        await trouble.hold(0.0, 1.0)
        await trouble.target.kill(victim)
        await trouble.target.start(victim)
        await trouble.hold(3.0, 4.0)


@contextlib.contextmanager
def _hours_off(trouble: Trouble, victim: str) -> Iterator[None]:
    """For the body; the clock is right again afterwards."""
    seconds = trouble.dice.choice([-HOURS, HOURS])
    trouble.victim = victim
    trouble.detail = f"{victim} {seconds:+.0f} s"
    trouble.target.shim(victim).set_clock(seconds)
    try:
        yield
    finally:
        trouble.target.shim(victim).set_clock(0.0)


NEMESES = [
    Nemesis("clock-jump", "clock", jump, frozenset({"shim"})),
    Nemesis("clock-hours", "clock", hours, frozenset({"shim"})),
    Nemesis("clock-hours-restart", "clock", hours_restart, frozenset({"shim"})),
]
