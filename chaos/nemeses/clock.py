"""Wall clocks that jump. By less than half of the window for duplicates (120 s): two clocks that differ by more than
the window may well store a re-sent message twice, as in every server that keeps such a window."""

from __future__ import annotations

from chaos.nemeses.base import Nemesis, Trouble

MOST = 55.0


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


NEMESES = [Nemesis("clock-jump", "clock", jump, frozenset({"shim"}))]
