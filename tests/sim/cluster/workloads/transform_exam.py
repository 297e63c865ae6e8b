"""Exam of subjects: transforms, drawn at random, make those that a model makes, and streams give some up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from testkit.sim.session import NoResponders, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.mapping import drawn, mapped, subjects

STREAM, COPY = "MAPPED", "MAPPEDCOPY"
ROUNDS: Final = 3
"""Transforms of each part."""
SUBJECTS: Final = 9
SPREAD: Final = 1.5
"""Seconds until all servers know who listens, and until the last message has come."""


class TransformExam(Exam):
    name = "exam-transforms"
    weight = 0
    judges = (Exact,)
    promises = (
        "a message that a transform's source matches has the subject of its target, and any other one keeps its own",
        "a stream that gives up a subject stores nothing of it any more, and another one may have it",
        "what a stream republishes, and what another one takes of it, has the subjects of their transforms",
    )

    async def check(self) -> None:
        await self.examine([self._stored, self._republished, self._sourced, self._changed], 4)

    async def _each(self, session: Session, made: Callable[[Session, str, str], Awaitable[None]]) -> None:
        for _ in range(ROUNDS):
            source, target = drawn(self.rng, "map")
            await made(session, source, target)
            await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _filled(self, session: Session, **config: object) -> list[str]:
        """The subjects of the messages that are stored, in their order."""
        size = self.rng.choice([1, 3])
        await self.create(session, STREAM, subjects=["map", "map.>"], num_replicas=size, **config)
        sent = subjects(self.rng, "map", SUBJECTS)
        for at, subject in enumerate(sent):
            await self.store(session, subject, f"mapped {self.part} {at}")
        return sent

    async def _subjects(self, session: Session, stream: str) -> list[str]:
        found = sorted((await self.contents(session, stream)).items())
        return [msg.headers["Nats-Subject"] for _, msg in found]

    async def _stored(self, session: Session) -> None:
        async def look(session: Session, source: str, target: str) -> None:
            sent = await self._filled(session, subject_transform={"src": source, "dest": target})
            wanted = [mapped(source, target, one) or one for one in sent]
            self.equal(f"{source} to {target}", await self._subjects(session, STREAM), wanted)

        await self._each(session, look)

    async def _republished(self, session: Session) -> None:
        got: list[str] = []
        session.subscribe("mapped.>", lambda msg: got.append(msg.subject))

        async def look(session: Session, source: str, target: str) -> None:
            got.clear()
            await session.flush()
            await asyncio.sleep(SPREAD)
            sent = await self._filled(session, republish={"src": source, "dest": target})
            await asyncio.sleep(SPREAD)
            made = [mapped(source, target, one) for one in sent]
            self.equal(f"{source} to {target}", got, [one for one in made if one is not None])

        await self._each(session, look)

    async def _sourced(self, session: Session) -> None:
        """Another stream takes what its transform matches."""

        async def look(session: Session, source: str, target: str) -> None:
            wanted = [one for one in (mapped(source, target, sent) for sent in await self._filled(session)) if one]
            taken = {"name": STREAM, "subject_transforms": [{"src": source, "dest": target}]}
            await self.create(session, COPY, sources=[taken], num_replicas=1)

            async def there() -> bool:
                return len(await self._subjects(session, COPY)) >= len(wanted)

            await self.until("a source's messages are there", there, 20.0)
            await asyncio.sleep(SPREAD)
            self.equal(f"{source} to {target}", await self._subjects(session, COPY), wanted)
            await self.ask(session, f"STREAM.DELETE.{COPY}")

        await self._each(session, look)

    async def _changed(self, session: Session) -> None:
        """A stream that gives up a subject stores nothing of it any more; another one may have it."""
        config = {"num_replicas": self.rng.choice([1, 3])}
        await self.create(session, STREAM, subjects=["map.a", "map.b"], **config)
        await self.store(session, "map.a", "changed 1")
        told = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["config"]
        await self.ask(session, f"STREAM.UPDATE.{STREAM}", told | {"subjects": ["map.b", "map.c"]})
        await asyncio.sleep(SPREAD)
        for subject, wanted in (("map.a", 0), ("map.b", 2), ("map.c", 3)):
            try:
                seq = int((await session.js_publish(subject, b"changed"))["seq"])
            except NoResponders:
                seq = 0
            self.equal(f"the sequence of {subject}", seq, wanted)
        await self.create(session, COPY, subjects=["map.a"], **config)
        ack = await self.store(session, "map.a", "changed 2")
        self.equal("who has it now", (ack["stream"], ack["seq"]), (COPY, 1))
        self.equal("who had it", len(await self.contents(session, STREAM)), 3)
        for name in (COPY, STREAM):
            await self.ask(session, f"STREAM.DELETE.{name}")
