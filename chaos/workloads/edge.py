"""Registers that are read at the edge as well: by a mirror behind a leaf link, whose origin is at times unreachable."""

from __future__ import annotations

import random

from chaos.edge import DOMAIN, NAME
from chaos.workloads.base import Session
from chaos.workloads.freshness import Freshness
from testkit.client import Client
from testkit.harness import eventually

NEAR = 3
"""Workers at the cluster; the others are at the edge."""
ANSWERS_WITHIN = 30.0
NOT_FOUND = 404


class EdgeFreshness(Freshness):
    """A client at the edge writes over the link. It reads by Direct Get alone: the edge has no stream of that name, and
    DIRECT_LEADER of another domain has another name."""

    name = "edge"
    workers = 6
    patience = 3.0

    async def create(self, client: Client, replicas: int) -> None:
        await super().create(client, replicas)
        name = f"{self.stream}_FAR"
        mirror = {"name": self.stream, "external": {"api": f"$JS.{DOMAIN}.API"}}
        async with await Client.connect(self.target.url(NAME)) as far:
            await far.api(f"STREAM.CREATE.{name}", {"name": name, "mirror": mirror, "mirror_direct": True})

            async def answers() -> bool:
                found = await far.request(f"$JS.API.DIRECT.GET.{self.stream}.{self.name}.0")
                return found.status == NOT_FOUND

            await eventually(answers, ANSWERS_WITHIN, "the mirror at the edge does not answer", every=0.2)

    def session(self, number: int, dice: random.Random) -> Session:
        return Session(self.target, dice, () if number < NEAR else (NAME,))

    def api(self, session: Session, consistency: str, dice: random.Random) -> str:
        return "DIRECT.GET" if NAME in session.names else super().api(session, consistency, dice)
