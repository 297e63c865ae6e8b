"""A journal that loses its end while another replica lags: what both lack was acknowledged by them and the leader."""

from __future__ import annotations

from pathlib import Path

from chaos.nemeses.base import Nemesis, Trouble

CUT = 18 * 1024
LAG = (1.0, 2.0)
ALONE = (4.0, 5.0)
"""Longer than an election takes."""
WITHOUT_MAJORITY = "without-majority"
"""`subject` of the fault that is the time in which nobody may ack (checkers/failover.py)."""


async def cut_journal(trouble: Trouble) -> None:
    """One follower stands still, the other dies and its newest segment is cut; then the leader stands still and the
    followers are left to themselves: the one that was cut must neither vote nor count."""
    target, history = trouble.target, trouble.history
    await trouble.all_current()
    leader = await trouble.leader(trouble.probed)
    lagging, cut = trouble.dice.sample([name for name in target.names if name != leader], 2)
    trouble.victim = cut
    await target.pause(lagging)
    try:
        await trouble.hold(*LAG)
        await target.kill(cut)
        lost = cut_off(target.store(cut))
        await target.pause(leader)
        try:
            at = history.now()
            await target.resume(lagging)
            await target.start(cut)
            await trouble.hold(*ALONE)
        finally:
            detail = f"{lagging} lags, {cut} lost the last {lost} bytes of its journal, {leader} stands still"
            history.note("files", "fault", "machine", since=at, subject=WITHOUT_MAJORITY, replica=cut, error=detail)
            await target.resume(leader)
    finally:
        await target.resume(lagging)
    trouble.detail = detail
    await trouble.all_current()


def cut_off(store: Path) -> int:
    """Shortens a dead node's newest segment so that the last `CUT` bytes of what was written are gone (of a short
    one half), and what was only preallocated. Returns how many bytes of records went."""
    segment = max(store.rglob("journal/*.wal"), key=lambda path: path.name)
    used = len(segment.read_bytes().rstrip(b"\0"))
    left = max(used // 2, used - CUT)
    with segment.open("r+b") as file:
        file.truncate(left)
    return used - left


NEMESES = [Nemesis("cut-journal", "files", cut_journal, frozenset({"files"}))]
