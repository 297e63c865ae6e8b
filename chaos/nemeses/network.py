"""Links between nodes that carry nothing, one way only, late, little, or break again and again."""

from __future__ import annotations

import asyncio
import itertools

from chaos.links import Links
from chaos.nemeses.base import Nemesis, Trouble


def _links(trouble: Trouble) -> Links:
    assert trouble.target.links is not None
    return trouble.target.links


async def _hold_and_heal(trouble: Trouble, least: float = 2.0, most: float = 5.0) -> None:
    """Long enough that silent links are noticed (jetcluster/mesh/mesh.py, `stale_after`) and leaders change."""
    try:
        await trouble.hold(least, most)
    finally:
        await _links(trouble).heal()


async def halves(trouble: Trouble) -> None:
    names = trouble.some(len(trouble.target.names))
    if trouble.dice.random() < 0.5:  # the leader in the minority
        leader = await trouble.leader()
        names.sort(key=lambda name: name != leader)
    cut = trouble.minority
    trouble.detail = f"{' '.join(names[:cut])} | {' '.join(names[cut:])}"
    await _links(trouble).partition(names[:cut], names[cut:])
    await _hold_and_heal(trouble)


async def ring(trouble: Trouble) -> None:
    order = trouble.some(len(trouble.target.names))
    trouble.detail = " - ".join(order)
    await _links(trouble).majority_ring(order)
    await _hold_and_heal(trouble)


async def one_way(trouble: Trouble) -> None:
    """A node that hears all and is heard by nobody, or the other way round, or one deaf link."""
    node = await trouble.leader() if trouble.dice.random() < 0.5 else trouble.one()
    others = [name for name in trouble.target.names if name != node]
    if trouble.dice.random() < 0.3:
        others = others[:1]
    mute = trouble.dice.random() < 0.5
    trouble.detail = f"{node} {'->' if mute else '<-'} {' '.join(others)}: nothing arrives"
    for other in others:
        await (_links(trouble).cut(node, other) if mute else _links(trouble).cut(other, node))
    await _hold_and_heal(trouble)


async def slow(trouble: Trouble) -> None:
    delay = trouble.dice.choice([20, 100, 300])
    pairs = list(itertools.permutations(trouble.target.names, 2))
    chosen = trouble.dice.sample(pairs, trouble.dice.randint(1, len(pairs)))
    trouble.detail = f"{delay} ms on {len(chosen)} of {len(pairs)} directions"
    for a, b in chosen:
        await _links(trouble).slow(a, b, delay, delay // 2)
    await _hold_and_heal(trouble)


async def narrow(trouble: Trouble) -> None:
    node = trouble.one()
    trouble.detail = f"32 kB/s from and to {node}"
    for other in trouble.target.names:
        if other != node:
            await _links(trouble).throttle(node, other, 32)
            await _links(trouble).throttle(other, node, 32)
    await _hold_and_heal(trouble)


async def flaky(trouble: Trouble) -> None:
    """Connections that are reset every few hundred milliseconds, in the middle of what they carry."""
    pairs = list(itertools.combinations(trouble.target.names, 2))
    resets = trouble.dice.randint(5, 20)
    trouble.detail = f"{resets} resets"
    for _ in range(resets):
        await _links(trouble).drop_connections(*trouble.dice.choice(pairs))
        await asyncio.sleep(trouble.dice.uniform(0.02, 0.4))


async def edge(trouble: Trouble) -> None:
    """The server at the edge reaches nobody of the cluster, and its clients reach it."""
    assert trouble.target.edge is not None
    await trouble.target.edge.cut()
    try:
        await trouble.hold(2.0, 6.0)
    finally:
        await trouble.target.edge.heal()


_LINKS = frozenset({"links"})
NEMESES = [
    Nemesis("partition-halves", "link", halves, _LINKS),
    Nemesis("partition-ring", "link", ring, _LINKS),
    Nemesis("partition-one-way", "link", one_way, _LINKS),
    Nemesis("slow-links", "link", slow, _LINKS),
    Nemesis("narrow-links", "link", narrow, _LINKS),
    Nemesis("flaky-links", "link", flaky, _LINKS),
    Nemesis("cut-edge", "link", edge, _LINKS | {"edge"}),
]
