"""The exam of streams, request by request: messages are kept, counted, found, refused and removed as they must be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

from testkit.sim.session import Session
from tests.model.stream_history import StreamWriter
from tests.sim.cluster.played import PlayedExam

COUNTED = "COUNTED"


class StreamExam(PlayedExam):
    name = "exam-streams"
    writer = StreamWriter
    most = 9
    promises = (
        "limits, purges, deletions and rollups leave exactly what they are to, and STREAM.INFO counts it right",
        "a Direct Get and a MSG.GET find the messages that they ask for, with subject, headers, time and payload",
        "a message is transformed, refused, or known as a duplicate, as the stream's configuration says",
    )

    def others(self) -> Sequence[Callable[[Session], Awaitable[None]]]:
        return (self._together,)

    async def _together(self, session: Session) -> None:
        """Increments that come together: nobody can say in which order."""
        size = self.rng.choice([1, 3])
        await self.create(session, COUNTED, subjects=["counted"], allow_msg_counter=True, num_replicas=size)
        numbers = [self.rng.randint(-9, 99) for _ in range(8)]
        put = [session.js_publish("counted", b"", {"Nats-Incr": f"{number:+d}"}) for number in numbers]
        acks = await asyncio.gather(*put)
        totals = [int(ack["val"]) for ack in sorted(acks, key=lambda one: int(one["seq"]))]
        self.equal("the last total", totals[-1], sum(numbers))
        self.require(len(set(totals)) > 1 or len(set(numbers)) < 2, f"totals {totals} of {numbers}")
        found = await self.contents(session, COUNTED)
        self.equal("the totals", [int(json.loads(found[seq].payload)["val"]) for seq in sorted(found)], totals)
