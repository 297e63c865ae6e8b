"""Exam of the API itself: requests that are refused, each with its code, lists in pages, and what administrators may
not do."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from testkit.sim.session import Session
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.restoring import RestoringExam

STREAM = "API"
OTHER = "APIB"
ARCHIVED = "APIC"


class ApiExam(RestoringExam):
    name = "exam-api"
    restores = ARCHIVED
    judges = (Exact,)
    promises = (
        "a request that is wrong, or about what is not there, is refused with its code, and changes nothing",
        "an archive is taken in as a whole, with what it says of its stream, or it is refused and leaves none",
        "lists of streams and consumers come in pages without a gap, and tell how many there are",
    )

    async def check(self) -> None:
        self.streams: list[str] = []
        await self.examine(
            [
                self._streams,
                self._consumers,
                self._names,
                self._bodies,
                self._pages,
                self._mirrored,
                self._servers,
                self._restores,
            ],
            6,
        )

    async def _both(self, session: Session) -> None:
        for name in (STREAM, OTHER):
            size = self.rng.choice([1, 3])
            await self.create(session, name, subjects=[f"{name}.>"], num_replicas=size)
        await self.create_consumer(session, STREAM, "one")

    async def _codes(self, session: Session, *rows: tuple[str, Any, int]) -> None:
        for subject, body, code in rows:
            self.equal(f"{subject} {body}", await self.refused(session, subject, body), code)

    async def _streams(self, session: Session) -> None:
        await self._both(session)
        before = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["config"]
        await self._codes(
            session,
            (f"STREAM.CREATE.{STREAM}", {"name": OTHER}, 10056),
            (f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": ["else"]}, 10058),
            ("STREAM.CREATE.OVER", {"name": "OVER", "subjects": [f"{STREAM}.x"]}, 10065),
            ("STREAM.CREATE.MANY", {"name": "MANY", "num_replicas": 6}, 10052),
            ("STREAM.UPDATE.NONE", {"name": "NONE"}, 10059),
            (f"STREAM.UPDATE.{STREAM}", before | {"storage": "memory"}, 10052),
            (f"STREAM.UPDATE.{STREAM}", before | {"consumer_limits": {"max_ack_pending": 5}}, 10069),
            (f"STREAM.PURGE.{STREAM}", {"seq": 1, "keep": 1}, 10003),
            (f"STREAM.PURGE.{STREAM}", {"filter": "a..b"}, 10003),
            ("STREAM.PURGE.NONE", None, 10059),
            (f"STREAM.MSG.DELETE.{STREAM}", None, 10003),
            (f"STREAM.MSG.DELETE.{STREAM}", {"seq": 77}, 10057),
            (f"STREAM.MSG.GET.{STREAM}", {"seq": 77}, 10037),
            (f"STREAM.DELETE.{STREAM}", {"any": 1}, 10038),
            ("STREAM.DELETE.NONE", None, 10059),
            ("STREAM.INFO.NONE", None, 10059),
            ("STREAM.LEADER.STEPDOWN.NONE", None, 10059),
            ("STREAM.PEER.REMOVE.NONE", {"peer": "n1"}, 10059),
            (f"STREAM.PEER.REMOVE.{STREAM}", {"peer": "nobody"}, 10040),
            (f"STREAM.CANCEL_MOVE.{STREAM}", None, 10129),
        )
        self.equal("afterwards", (await self.ask(session, f"STREAM.INFO.{STREAM}"))["config"], before)
        self.equal("the same again", (await self.ask(session, f"STREAM.CREATE.{STREAM}", before))["config"], before)
        await self._gone(session)

    async def _restores(self, session: Session) -> None:
        """An archive is taken in as a whole, with what it says of its stream, or leaves no stream."""
        size = self.rng.choice([1, 3])
        stored = await self.fill(session, ARCHIVED, [f"{ARCHIVED}.{at}" for at in range(9)], subjects=[f"{ARCHIVED}.>"],
                                 num_replicas=size, description="archived")  # fmt: skip
        await self.create_consumer(session, ARCHIVED, "kept")
        await self.ask(session, f"STREAM.MSG.DELETE.{ARCHIVED}", {"seq": 4})
        archive = await self._archive(session)
        config = {"name": ARCHIVED, "subjects": [f"{ARCHIVED}.>"]}
        subject = f"STREAM.RESTORE.{ARCHIVED}"
        await self._codes(session, (subject, {"config": config, "state": {}}, 10130))
        await self.ask(session, f"STREAM.DELETE.{ARCHIVED}")
        await self._codes(
            session,
            (subject, {}, 10003),
            (subject, {"config": config | {"name": OTHER}, "state": {}}, 10056),
            (subject, {"config": config | {"subjects": ["a..b"]}, "state": {}}, 10052),
        )
        half = archive[: len(archive) // 2]
        for what, sent in (("nonsense", b"x" * 99), ("half of it", half), ("nothing", b"")):
            self.equal(what, await self.restored(session, sent), 10062)
            await self.until(f"{what} leaves no stream", lambda: self.is_gone(session), 20.0)
        await self.ask(session, subject)
        await self.until("what is not continued is gone", lambda: self.is_gone(session), 30.0)
        self.equal("the whole archive", await self.restored(session, archive), 0)
        found = await self.contents(session, ARCHIVED)
        there = [(seq, found[seq].headers["Nats-Subject"]) for seq in sorted(found)]
        self.equal("its messages", there, [one for one in stored if one[0] != 4])
        info = await self.ask(session, f"STREAM.INFO.{ARCHIVED}")
        self.equal("its configuration", info["config"].get("description"), "archived")
        names = (await self.ask(session, f"CONSUMER.NAMES.{ARCHIVED}"))["consumers"]
        self.equal("its consumers", names, ["kept"])
        await self.ask(session, f"STREAM.DELETE.{ARCHIVED}")

    async def _archive(self, session: Session) -> bytes:
        chunks = []
        with session.inbox() as (inbox, got):
            await self.ask(session, f"STREAM.SNAPSHOT.{ARCHIVED}", {"deliver_subject": inbox})
            async with asyncio.timeout(10.0):
                while (msg := await got.get()).payload:
                    chunks.append(msg.payload)
                    if msg.reply:
                        session.publish(msg.reply)
        return b"".join(chunks)

    async def _consumers(self, session: Session) -> None:
        await self._both(session)
        before = (await self.ask(session, f"CONSUMER.INFO.{STREAM}.one"))["config"]
        own = lambda **config: {"stream_name": STREAM, "config": {"ack_policy": "explicit"} | config}  # noqa: E731
        create, durable = f"CONSUMER.CREATE.{STREAM}", f"CONSUMER.DURABLE.CREATE.{STREAM}"
        two = [f"{STREAM}.x", f"{STREAM}.y"]
        await self._codes(
            session,
            (f"{create}.two", own(durable_name="other"), 10017),
            (create, own(durable_name="two"), 10020),
            (f"{create}.two.{STREAM}.x", own(filter_subject=f"{STREAM}.y"), 10131),
            (f"{create}.two.{STREAM}.x", own(filter_subjects=two), 10137),
            (f"{create}.two", own() | {"stream_name": OTHER}, 10056),
            (f"{durable}.two", own(), 10018),
            (f"{durable}.two", own(durable_name="other"), 10017),
            (f"{create}.one", own(durable_name="one", description="new") | {"action": "create"}, 10148),
            (f"{create}.two", own(durable_name="two") | {"action": "update"}, 10149),
            (f"{create}.one", own(durable_name="one", deliver_policy="new"), 10012),
            (f"CONSUMER.INFO.{STREAM}.two", None, 10014),
            (f"CONSUMER.DELETE.{STREAM}.two", None, 10014),
            ("CONSUMER.INFO.NONE.one", None, 10059),
            (f"CONSUMER.LEADER.STEPDOWN.{STREAM}.two", None, 10014),
            (f"CONSUMER.RESET.{STREAM}.two", None, 10014),
            (f"CONSUMER.PAUSE.{STREAM}.two", {"pause_until": self.wall(9.0)}, 10014),
            (f"CONSUMER.UNPIN.{STREAM}.one", {}, 10025),
        )
        self.equal("afterwards", (await self.ask(session, f"CONSUMER.INFO.{STREAM}.one"))["config"], before)
        names = await self.ask(session, f"CONSUMER.NAMES.{STREAM}")
        self.equal("consumers", names["consumers"], ["one"])
        await self._gone(session)

    async def _names(self, session: Session) -> None:
        """Consumers without a name, with one that is no durable's, and with the filter in the subject."""
        await self._both(session)
        own = lambda **config: {"stream_name": STREAM, "config": {"ack_policy": "explicit"} | config}  # noqa: E731
        nameless = (await self.ask(session, f"CONSUMER.CREATE.{STREAM}", own(inactive_threshold=60_000_000_000)))[
            "name"
        ]
        self.equal("a name is chosen", len(nameless) > 0, True)
        subject = f"CONSUMER.CREATE.{STREAM}.named.{STREAM}.x.y"
        made = await self.ask(session, subject, own(filter_subject=f"{STREAM}.x.y", inactive_threshold=60_000_000_000))
        self.equal("with a filter", (made["name"], made["config"]["filter_subject"]), ("named", f"{STREAM}.x.y"))
        listed = await self.ask(session, f"CONSUMER.LIST.{STREAM}")
        self.equal("listed", sorted(one["name"] for one in listed["consumers"]), sorted(["named", "one", nameless]))
        for name in ("named", nameless):
            await self.ask(session, f"CONSUMER.DELETE.{STREAM}.{name}")
        await self._gone(session)

    async def _bodies(self, session: Session) -> None:
        """Requests that are no JSON, or have a field of another type."""
        await self._both(session)
        for subject, text in (
            (f"STREAM.CREATE.{STREAM}", b"{"),
            (f"STREAM.CREATE.{STREAM}", b'{"name": 5}'),
            (f"STREAM.UPDATE.{STREAM}", b"[]"),
            (f"STREAM.PURGE.{STREAM}", b'{"seq": "x"}'),
            (f"STREAM.MSG.GET.{STREAM}", b"no"),
            (f"CONSUMER.CREATE.{STREAM}", b"{"),
            (f"CONSUMER.PAUSE.{STREAM}.one", b'{"pause_until": 3}'),
            (f"CONSUMER.RESET.{STREAM}.one", b'{"seq": "x"}'),
            ("STREAM.NAMES", b'{"offset": "x"}'),
            (f"STREAM.LEADER.STEPDOWN.{STREAM}", b"{{"),
            (f"STREAM.PEER.REMOVE.{STREAM}", b"}"),
        ):
            answer = json.loads((await session.request(f"$JS.API.{subject}", text)).payload)
            self.equal(f"{subject} {text!r}", answer["error"]["err_code"], 10025)
        await self._gone(session)

    async def _pages(self, session: Session) -> None:
        before = await self.ask(session, "STREAM.NAMES")
        names = sorted([*(before["streams"] or []), *(f"P{number}" for number in range(4))])
        for number in range(4):
            await self.create(session, f"P{number}", subjects=[f"p.{number}"], num_replicas=1)
        found = await self.ask(session, "STREAM.NAMES", {"offset": 1})
        self.equal("from the second on", (found["streams"], found["total"]), (names[1:], len(names)))
        found = await self.ask(session, "STREAM.LIST", {"offset": 2})
        listed = [one["config"]["name"] for one in found["streams"]]
        self.equal("listed from the third on", (listed, found["total"]), (names[2:], len(names)))
        found = await self.ask(session, "STREAM.NAMES", {"offset": 1_000})
        self.equal("behind the last", (found["streams"] or [], found["total"]), ([], len(names)))
        found = await self.ask(session, "STREAM.NAMES", {"subject": "p.*"})
        self.equal("of a wildcard", found["streams"], [f"P{number}" for number in range(4)])
        account = await self.ask(session, "INFO")
        self.equal("the account's streams", account["streams"], len(names))
        for number in range(4):
            await self.ask(session, f"STREAM.DELETE.P{number}")

    async def _mirrored(self, session: Session) -> None:
        """Fields that a mirror may not have, and the mirrors that a stream tells of."""
        await self._both(session)
        mirror = {"name": "MIRR", "mirror": {"name": STREAM}, "num_replicas": 1}
        self.equal(
            "with subjects", await self.refused(session, "STREAM.CREATE.MIRR", mirror | {"subjects": ["m"]}), 10034
        )
        self.equal(
            "and sources",
            await self.refused(session, "STREAM.CREATE.MIRR", mirror | {"sources": [{"name": OTHER}]}),
            10031,
        )
        await self.ask(session, "STREAM.CREATE.MIRR", mirror)
        alternates = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["alternates"]
        self.equal("alternates", [one["name"] for one in alternates], [STREAM, "MIRR"])
        await self.ask(session, "STREAM.DELETE.MIRR")
        await self._gone(session)

    async def _servers(self, session: Session) -> None:
        """Requests of the system account, where there is one."""
        if "system_account: SYS" not in self.deployment.servers[self.members[0]].config:
            return
        system = await self.session("system", *self.members, user="sys")
        await self._codes(
            system,
            ("SERVER.REMOVE", {"peer": "nobody"}, 10044),
            ("SERVER.REMOVE", {}, 10003),
            ("META.LEADER.STEPDOWN", {"placement": {"preferred": "nobody"}}, 10005),
        )
        await system.close()

    async def _gone(self, session: Session) -> None:
        for name in (STREAM, OTHER):
            await self.ask(session, f"STREAM.DELETE.{name}")
