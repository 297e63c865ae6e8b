"""Exam of transforms: drawn at random, they make the subjects that a model makes, wherever a stream has one."""

from __future__ import annotations

import asyncio
from typing import Final

from testkit.sim.session import Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.mapping import drawn, mapped, subjects

STREAM, COPY = "MAPPED", "MAPPEDCOPY"
ROUNDS: Final = 2
"""Times that each part may be drawn."""
SUBJECTS: Final = 9
SPREAD: Final = 1.5
"""Seconds until all servers know who listens, and until the last message has come."""


class TransformExam(Exam):
    name = "exam-transforms"
    weight = 0
    judges = (Exact,)
    promises = (
        "a message that a transform's source matches has the subject of its target, and any other one keeps its own",
        "what a stream republishes, and what another one takes of it, has the subjects of their transforms",
    )

    async def check(self) -> None:
        await self.examine([self._stored, self._republished, self._sourced] * ROUNDS, 4)

    async def _filled(self, session: Session, **config: object) -> list[str]:
        """The subjects of the messages that are stored, in their order."""
        size = self.rng.choice([1, 3])
        await self.create(session, STREAM, subjects=["map", "map.>"], num_replicas=size, **config)
        sent = subjects(self.rng, "map", SUBJECTS)
        for at, subject in enumerate(sent):
            await self.store(session, subject, f"mapped {self.part} {at}")
        return sent

    async def _stored(self, session: Session) -> None:
        source, target = drawn(self.rng, "map")
        sent = await self._filled(session, subject_transform={"src": source, "dest": target})
        found = [msg.headers["Nats-Subject"] for _, msg in sorted((await self.contents(session, STREAM)).items())]
        self.equal(f"{source} to {target}", found, [mapped(source, target, one) or one for one in sent])
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _republished(self, session: Session) -> None:
        source, target = drawn(self.rng, "map")
        got: list[str] = []
        session.subscribe("to.>", lambda msg: got.append(msg.subject))
        await session.flush()
        await asyncio.sleep(SPREAD)
        sent = await self._filled(session, republish={"src": source, "dest": target})
        await asyncio.sleep(SPREAD)
        made = [mapped(source, target, one) for one in sent]
        self.equal(f"{source} to {target}", got, [one for one in made if one is not None])
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _sourced(self, session: Session) -> None:
        """Another stream takes what its transform matches."""
        source, target = drawn(self.rng, "map")
        wanted = [one for one in (mapped(source, target, sent) for sent in await self._filled(session)) if one]
        taken = {"name": STREAM, "subject_transforms": [{"src": source, "dest": target}]}
        await self.create(session, COPY, sources=[taken], num_replicas=1)
        found: list[str] = []

        async def there() -> bool:
            messages = sorted((await self.contents(session, COPY)).items())
            found[:] = [msg.headers["Nats-Subject"] for _, msg in messages]
            return len(found) >= len(wanted)

        await self.until("a source's messages are there", there, 20.0)
        await asyncio.sleep(SPREAD)
        await there()
        self.equal(f"{source} to {target}", found, wanted)
        for name in (COPY, STREAM):
            await self.ask(session, f"STREAM.DELETE.{name}")
