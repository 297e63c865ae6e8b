"""Direct Get and MSG.GET of a stream with holes: pages, the last of each subject, times, sizes, and what is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from testkit.sim.session import Session
from tests.model.answers import compared as differences
from tests.model.history import rendered
from tests.model.player import compared
from tests.model.read_history import ReadWriter
from tests.sim.cluster.played import PlayedExam, SimWire


class ReadExam(PlayedExam):
    name = "exam-reads"
    writer = ReadWriter
    promises = (
        "pages of a Direct Get follow each other without a gap, and tell what is left and what came before",
        "multi_last finds the last message of each subject, as of a sequence or a time, and start_time the first since",
        "a read that asks for nothing, for too much, or for what is not there, gets an error",
        "a mirror has the holes of its upstream, and answers as it does",
    )

    def others(self) -> Sequence[Callable[[Session], Awaitable[None]]]:
        return (self._mirrored,)

    async def _mirrored(self, session: Session) -> None:
        model = (await self.ready(session)).model
        stream = model.streams[self.history.stream]
        name, storage = f"{stream.name}M", stream.config["storage"]
        await self.create(
            session, name, mirror={"name": stream.name}, mirror_direct=True, num_replicas=1, storage=storage
        )

        async def is_there() -> bool:
            return int((await session.api(f"STREAM.INFO.{name}"))["state"]["last_seq"]) >= stream.last_seq

        await self.until("the mirror is complete", is_there, 30.0)
        state = (await self.ask(session, f"STREAM.INFO.{name}", {"deleted_details": True}))["state"]
        self.equal("its state", differences(stream.state(deleted=True) | {"consumer_count": 0}, state), [])
        for step in (*self.history.part("pages"), *self.history.part("lasts")):
            body = rendered(step.body, {})
            wanted = model.branch().ask(step.subject, (), body, self.now)
            own = [
                one._replace(
                    headers=tuple((key, name if key == "Nats-Stream" else value) for key, value in one.headers)
                )
                for one in wanted
            ]
            found = await SimWire(self, session).ask(f"$JS.API.DIRECT.GET.{name}", (), body, len(own))
            self.equal(f"of the mirror, {step}", compared(own, found), [])
        await self.ask(session, f"STREAM.DELETE.{name}")
