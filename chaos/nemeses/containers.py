"""A container that is unplugged from its network: from the other nodes and from clients."""

from __future__ import annotations

from chaos.nemeses.base import Nemesis, Trouble


async def disconnect(trouble: Trouble) -> None:
    node = await trouble.leader() if trouble.dice.random() < 0.5 else trouble.one()
    trouble.detail = node
    await trouble.target.disconnect(node)
    try:
        await trouble.hold(2.0, 5.0)
    finally:
        await trouble.target.reconnect(node)


NEMESES = [Nemesis("disconnect", "link", disconnect, frozenset({"disconnect"}))]
