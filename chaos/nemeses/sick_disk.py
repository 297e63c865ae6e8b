"""Disks of a live node that hang or answer with errors: nothing crashes, and all its links are well."""

from __future__ import annotations

from chaos.nemeses.base import Nemesis, Trouble
from chaos.probe import probing
from testkit.harness import eventually

HELD = (6.0, 8.0)
"""Longer than a failover may take (checkers/failover.py)."""
ENDS_WITHIN = 10.0


async def _sick(trouble: Trouble, point: str) -> None:
    """The leader of the probed stream, while a publisher watches from another node."""
    target = trouble.target
    victim = trouble.victim = await trouble.leader(trouble.probed)
    other = trouble.dice.choice([name for name in target.names if name != victim])
    trouble.detail = f"{point} of {victim}"
    target.drill(victim).begin(point)
    try:
        async with probing(trouble.history, target.url(other), trouble.streams):
            await trouble.hold(*HELD)
    finally:
        target.drill(victim).end(point)


async def hung_journal(trouble: Trouble) -> None:
    await _sick(trouble, "journal.write")


async def failing_store(trouble: Trouble) -> None:
    await _sick(trouble, "store.write")


async def failing_journal(trouble: Trouble) -> None:
    """After a failed sync nothing can be vouched for: the process has to end, and comes back."""
    victim = await trouble.leader() if trouble.dice.random() < 0.5 else trouble.one()
    trouble.detail = f"EIO of the journal of {victim}"
    drill = trouble.target.drill(victim)
    drill.begin("journal.synced")
    try:
        await eventually(
            lambda: not trouble.target.alive(victim), ENDS_WITHIN, f"{victim} goes on though its journal failed"
        )
    finally:
        drill.end("journal.synced")
    await trouble.hold(0.2, 1.0)
    await trouble.target.start(victim)


NEMESES = [
    Nemesis("hung-journal", "disk", hung_journal, frozenset({"drill"})),
    Nemesis("failing-store", "disk", failing_store, frozenset({"drill", "drill-store"})),
    Nemesis("failing-journal", "disk", failing_journal, frozenset({"drill"})),
]
