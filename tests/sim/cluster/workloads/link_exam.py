"""Exam of links: what STREAM.INFO tells of a mirror or a source, and what a link leaves behind at its upstream."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from testkit.sim.session import Session
from tests.sim.cluster import invariants
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.pretender import Pretender
from tests.sim.cluster.workload import SECOND

Links = list[dict[str, Any]]
UPSTREAM, COPY, FAR = "LINKED", "LINKS", "LINKFAR"
COUNT: Final = 6
"""Messages of the upstream."""
GOES: Final = 25.0
"""Seconds within which an upstream has no consumer of a link any more: ten without a listener, and a look."""
STALLED: Final = 10228
GONE: Final = 10059
PASSING: Final = ("active", "lag", "seq")
WAYS: Final[tuple[dict[str, Any], ...]] = (
    {"filter_subject": "linked.a"},
    {"subject_transforms": [{"src": "linked.a", "dest": "links.a"}, {"src": "linked.b", "dest": "links.b"}]},
    {},
)
"""Links to one upstream; each has other messages than the one before."""
TAKEN: Final = (COUNT // 2, COUNT, COUNT)


class LinkExam(Exam):
    name = "exam-links"
    newest = True
    weight = 0
    judges = (Exact,)
    promises = (
        "STREAM.INFO has each link of a stream as it is configured, how far it has come, and no error that is over",
        "a link that a stream has no more leaves no consumer at its upstream, whatever that keeps messages for",
        "a link whose answers to flow control are lost says so until one comes",
    )

    async def check(self) -> None:
        await self.examine([self._told, self._ended, self._stalled], 2)

    async def _upstream(self, session: Session, **config: Any) -> None:
        size = self.rng.choice([1, 3])
        await self.create(session, UPSTREAM, subjects=["linked.*"], num_replicas=size, **config)
        for number in range(COUNT):
            await self.store(session, f"linked.{'ab'[number % 2]}", f"linked {self.now:.0f} {number}")

    async def _links(self, session: Session) -> Links:
        info = await session.api(f"STREAM.INFO.{COPY}")
        found: Links = [info["mirror"]] if "mirror" in info else info.get("sources") or []
        return found

    async def _delete(self, session: Session, *names: str) -> None:
        for name in names:
            await self.ask(session, f"STREAM.DELETE.{name}")

    # ---- what is told

    async def _told(self, session: Session) -> None:
        """Links as they are configured, also after updates, and while an upstream is away."""
        await self._upstream(session)
        size, mirrors = self.rng.choice([1, 3]), self.rng.random() < 0.5
        for way, taken in zip(WAYS, TAKEN, strict=True):
            link = {"name": UPSTREAM} | way
            config = {"mirror": link} if mirrors else {"sources": [link]}
            await self.create(session, COPY, num_replicas=size, **config)
            await self._has(session, link, taken)
            if way is not WAYS[-1]:
                await self._delete(session, COPY)
        await self._delete(session, UPSTREAM)
        await self.until("the copy says that its upstream is gone", lambda: self._says(session, GONE))
        if not mirrors:
            await self._upstream(session)
            await self._has(session, {"name": UPSTREAM}, 2 * COUNT)
            await self._delete(session, UPSTREAM)
        await self._delete(session, COPY)

    async def _has(self, session: Session, link: dict[str, Any], taken: int) -> None:
        async def comes() -> bool:
            info = await session.api(f"STREAM.INFO.{COPY}")
            (found,) = await self._links(session)
            return info["state"]["messages"] == taken and found["lag"] == 0 and "error" not in found

        await self.until(f"the copy has {taken}, and no error", comes)
        (found,) = await self._links(session)
        self.equal("the link", {key: value for key, value in found.items() if key not in PASSING}, link)
        self.require(0 <= found["active"] < 60 * SECOND, f"the link was active {found['active']} ns ago")

    async def _says(self, session: Session, code: int) -> bool:
        return [link.get("error", {}).get("err_code", 0) for link in await self._links(session)] == [code]

    # ---- what is left

    async def _ended(self, session: Session) -> None:
        """A link is taken away, or gets other messages, or its stream is deleted: its consumer goes."""
        retention = self.rng.choice(["limits", "workqueue", "interest"])
        size = self.rng.choice([1, 3])
        copies = {"num_replicas": size, "subjects": ["links.own"]}
        await self.create(session, UPSTREAM, subjects=["linked.*"], retention=retention)
        config = (await self.create(session, COPY, sources=[{"name": UPSTREAM}], **copies))["config"]
        links: Links = [{"name": UPSTREAM}]
        total = 0
        for sources in ([{"name": UPSTREAM, "filter_subject": "linked.a"}], [], [{"name": UPSTREAM}], None):
            if links:
                await self.until("there is its consumer", lambda: self._has_others(1, ()))
                total += await self._copied(session, total)
            before = self._consumers()
            if sources is None:
                await self._delete(session, COPY)
            else:
                await self.ask(session, f"STREAM.UPDATE.{COPY}", config | {"sources": sources})
            what = f"consumers of a stream with {retention} after {links} and then {sources}"
            links = sources or []
            await self.until(what, lambda: self._has_others(len(links), before), GOES)  # noqa: B023 - awaited here
        await self._delete(session, UPSTREAM)

    async def _copied(self, session: Session, before: int) -> int:
        """Stores a message, and returns once the copy has it."""
        await self.store(session, "linked.a", f"another {before}")

        async def comes() -> bool:
            return bool((await session.api(f"STREAM.INFO.{COPY}"))["state"]["messages"] == before + 1)

        await self.until(f"the copy has {before + 1}", comes)
        return 1

    def _consumers(self) -> list[int]:
        """Those of the upstream at its leader, also the ones that no list shows."""
        return [
            cid
            for one in invariants.replicas(self.deployment)
            if one.stream is not None and one.stream.assignment.name == UPSTREAM and one.stream.leading
            for cid in one.stream.table.by_cid
        ]

    async def _has_others(self, count: int, before: Sequence[int]) -> bool:
        found = self._consumers()
        return len(found) == count and not set(found) & set(before)

    # ---- what is lost

    async def _stalled(self, session: Session) -> None:
        """The upstream is one that a client pretends to have, which hears no answer to flow control for a while."""
        far = await self.session("far")
        upstream = Pretender(far, Random(self.rng.getrandbits(64)), lambda: self.now, FAR, f"links.{FAR}")
        upstream.retention = self.rng.choice(["limits", "workqueue"])
        external = {"api": f"links.{FAR}", "deliver": "links.delivered"}
        await far.flush()
        await self.create(session, COPY, num_replicas=self.rng.choice([1, 3]),
                          sources=[{"name": FAR, "external": external}])  # fmt: skip
        for turn in range(2):
            upstream.store(f"far {turn}")
            await self.until("all has come", lambda turn=turn: self._is_whole(session, turn + 1))  # type: ignore[misc]
            upstream.stall()
            await self.until("the link says that its answers are lost", lambda: self._says(session, STALLED))
            upstream.hear()
            await self.until("the link says nothing more of it", lambda: self._says(session, 0))
        upstream.close()
        await self._delete(session, COPY)
        await far.close()

    async def _is_whole(self, session: Session, count: int) -> bool:
        info = await session.api(f"STREAM.INFO.{COPY}")
        return bool(info["state"]["messages"] == count) and await self._says(session, 0)
