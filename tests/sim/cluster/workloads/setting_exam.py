"""Exam of the settings of streams and consumers: defaults, what is refused with which reason, and what an update
changes. The cases are in `settings.toml`."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from testkit.sim.session import ApiError, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.settings import Case, Fields, cases, differing, with_fields

STREAM, UPSTREAM, TAKER = "SETTINGS", "SETTINGSUP", "three"
SHARE: Final = 0.3
"""Part of those that are not refused, which take longer, in one exam."""
AGAIN: Final = 4
"""Attempts while nobody leads."""
NOBODY_LEADS: Final = 10008
PLAIN: Final[Fields] = {"name": STREAM, "subjects": ["settings.new.*"], "num_replicas": 1}
CONSUMED: Final[Fields] = {"name": STREAM, "subjects": ["settings.c.*"], "num_replicas": 3}
CONSUMER: Final[Fields] = {"durable_name": TAKER, "name": TAKER, "ack_policy": "explicit"}
STORED: Final = ("a", "b", "a", "c")
"""Last tokens of the messages that consumers find."""
EMPTY: Final[Fields] = {"messages": 0, "bytes": 0, "consumer_count": 0}


class SettingExam(Exam):
    name = "exam-settings"
    newest = True
    weight = 0
    judges = (Exact,)
    promises = (
        "a stream or consumer has the settings that it is asked for, defaults for the rest, and tells all of them",
        "settings that make no sense, by themselves or for that stream, are refused with their code and reason",
        "an update changes what it may, and one that is refused changes nothing",
    )

    async def check(self) -> None:
        await self.examine([self._streams, self._updates, self._consumers, self._consumer_updates], 2)

    async def _asked(self, session: Session, subject: str, body: object = None) -> Fields | str:
        """The answer, or the text of the refusal."""
        for _ in range(AGAIN):
            try:
                return await session.api(subject, body)
            except ApiError as error:
                if error.err_code != NOBODY_LEADS:
                    return str(error)
            await asyncio.sleep(1.0)
        return "nobody leads"

    def judge(self, kind: str, case: Case, found: Fields | str, plain: Fields) -> None:
        """Holds an answer against what the table says."""
        said = json.dumps({"of": case.of, "on": case.on, "given": case.given})[:400]
        if isinstance(found, str) or case.refused:
            self.equal(f"{kind} {said}", found if isinstance(found, str) else "not refused", case.refused)
            return
        self.equal(f"{kind} {said}", differing(found["config"], plain), case.becomes)
        if case.pending is not None:
            self.equal(f"pending for {said}", found["num_pending"], case.pending)

    def _drawn(self, kind: str) -> list[Case]:
        taken = [case for case in cases(kind) if not case.refused]
        drawn = [case for case in cases(kind) if case.refused] + self.rng.sample(taken, round(SHARE * len(taken)))
        self.rng.shuffle(drawn)
        return drawn

    async def _upstream(self, session: Session) -> Fields:
        """The configuration of a plain stream, beside one that others may copy."""
        await self.create(session, UPSTREAM, subjects=["settings.up.*"], num_replicas=1, max_msg_size=1000)
        made = await self.ask(session, f"STREAM.CREATE.{STREAM}", PLAIN)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")
        plain: Fields = made["config"]
        return plain

    async def _streams(self, session: Session) -> None:
        plain = await self._upstream(session)
        for case in self._drawn("streams"):
            body = with_fields(PLAIN, case.given) | ({"pedantic": True} if case.pedantic else {})
            found = await self._asked(session, f"STREAM.CREATE.{STREAM}", body)
            self.judge("a stream", case, found, plain)
            if not isinstance(found, str):
                self.equal("of a new one", {key: found["state"][key] for key in EMPTY}, EMPTY)
                await self._shown(session, case, found["config"])
                await self.ask(session, f"STREAM.DELETE.{STREAM}")
        await self.ask(session, f"STREAM.DELETE.{UPSTREAM}")

    async def _updates(self, session: Session) -> None:
        plain = await self._upstream(session)
        for case in self._drawn("updates"):
            before = with_fields(PLAIN, case.of or {})
            made = await self.ask(session, f"STREAM.CREATE.{STREAM}", before)
            found = await self._asked(session, f"STREAM.UPDATE.{STREAM}", with_fields(before, case.given))
            self.judge("an update", case, found, plain)
            await self._shown(session, case, (made if isinstance(found, str) else found)["config"])
            await self.ask(session, f"STREAM.DELETE.{STREAM}")
        await self.ask(session, f"STREAM.DELETE.{UPSTREAM}")

    async def _shown(self, session: Session, case: Case, wanted: Fields) -> None:
        shown = await self.ask(session, f"STREAM.INFO.{STREAM}")
        self.equal(f"STREAM.INFO of {json.dumps(case.given)[:400]}", shown["config"], wanted)

    async def _consumed(self, session: Session, on: Fields) -> Fields:
        """A stream with messages, and the configuration of a plain consumer of it."""
        await self.create(session, **{"stream": STREAM, **with_fields(CONSUMED, on)})
        for number, token in enumerate(STORED if "subjects" not in on else ()):
            await self.store(session, f"settings.c.{token}", f"setting {number}")
        plain = await self.ask(session, *self._creation(CONSUMER))
        await self.ask(session, f"CONSUMER.DELETE.{STREAM}.{TAKER}")
        config: Fields = plain["config"]
        return config

    @staticmethod
    def _creation(config: Fields, **more: Any) -> tuple[str, Fields]:
        return f"CONSUMER.CREATE.{STREAM}.{TAKER}", {"stream_name": STREAM, "config": config, **more}

    def _by_stream(self, drawn: list[Case]) -> list[tuple[Fields, list[Case]]]:
        """The streams that are needed, each with the cases of its consumers."""
        found: dict[str, tuple[Fields, list[Case]]] = {}
        for case in drawn:
            found.setdefault(json.dumps(case.on), (case.on, []))[1].append(case)
        return list(found.values())

    async def _consumers(self, session: Session) -> None:
        await self.create(session, UPSTREAM, subjects=["settings.up.*"], num_replicas=1)
        for on, some in self._by_stream(self._drawn("consumers")):
            plain = await self._consumed(session, on)
            for case in some:
                more = {"pedantic": True} if case.pedantic else {}
                found = await self._asked(session, *self._creation(with_fields(CONSUMER, case.given), **more))
                self.judge("a consumer", case, found, plain)
                if not isinstance(found, str):
                    await self._consumer_shown(session, case, found["config"])
                    await self.ask(session, f"CONSUMER.DELETE.{STREAM}.{TAKER}")
            await self.ask(session, f"STREAM.DELETE.{STREAM}")
        await self.ask(session, f"STREAM.DELETE.{UPSTREAM}")

    async def _consumer_updates(self, session: Session) -> None:
        for on, some in self._by_stream(self._drawn("consumer_updates")):
            plain = await self._consumed(session, on)
            for case in some:
                before = with_fields(CONSUMER, case.of or {})
                made = await self.ask(session, *self._creation(before))
                found = await self._asked(session, *self._creation(with_fields(before, case.given), action="update"))
                self.judge("an update", case, found, plain)
                await self._consumer_shown(session, case, (made if isinstance(found, str) else found)["config"])
                await self.ask(session, f"CONSUMER.DELETE.{STREAM}.{TAKER}")
            await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _consumer_shown(self, session: Session, case: Case, wanted: Fields) -> None:
        shown = await self.ask(session, f"CONSUMER.INFO.{STREAM}.{TAKER}")
        self.equal(f"CONSUMER.INFO of {json.dumps(case.given)[:400]}", shown["config"], wanted)
