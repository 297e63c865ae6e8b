"""A schedule with a cron pattern, which fires again and again while faults come and go."""

from __future__ import annotations

from datetime import datetime

from testkit.sim.session import Msg
from tests.sim.cluster.time_judges import Repeats
from tests.sim.cluster.workload import SETTLE, Workload

STREAM = "PATTERN"
SECONDS = 3
"""Between two firings."""
FIRED = "pattern.fired"


class Patterns(Workload):
    name = "patterns"
    judges = (Repeats,)
    promises = ("a schedule with a cron pattern fires when it is due, each time once, and goes on after every fault",)

    async def prepare(self) -> None:
        self.repeats = Repeats(SECONDS)
        self.admin = await self.session("admin")
        size = self.rng.choice([1, 3, 3])
        await self.create(
            self.admin, STREAM, subjects=["pattern.*"], allow_msg_ttl=True, allow_msg_schedules=True, num_replicas=size
        )
        await self._put(0)

    async def _put(self, number: int) -> None:
        """One more of the same takes the place of the one before, as they have the same subject."""
        headers = {"Nats-Schedule": f"*/{SECONDS} * * * * *", "Nats-Schedule-Target": FIRED}
        await self.store(self.admin, "pattern.schedule", str(number), headers)

    async def work(self) -> None:
        async for number in self.turns(0.1):
            await self._put(number)

    async def check(self) -> None:
        """The stream's own time goes on, and never back, wrong as clocks may be."""
        before = len(await self.insist("its firings", self._fired))

        async def goes_on() -> bool:
            return len(await self._fired()) > before

        await self.until("the pattern fires again", goes_on, SETTLE)
        await self.everywhere(STREAM, 0, self._look, FIRED)

    async def _fired(self) -> dict[int, Msg]:
        return await self.contents(self.admin, STREAM, FIRED)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        messages = [contents[seq].headers for seq in sorted(contents)]
        self.count("firings seen", len(messages))
        self.repeats.fired(
            where, ((_unix(told["Nats-Time-Stamp"]), _unix(told["Nats-Schedule-Next"])) for told in messages)
        )


def _unix(time: str) -> float:
    """Seconds of a time in RFC 3339, in UTC."""
    whole, _, fraction = time.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
