"""The exam of what servers tell: advisories, audits, what an account uses, and of a server that is away."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster import reckoning
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.invariants import jetstream_of
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.machine_faults import start
from tests.sim.cluster.replicas import replicas

STREAM = "TOLD"
AWAY = "AWAY"
LACKS = 4
"""Messages."""
KNOWN = 1.5
"""Seconds until all servers know who listens."""
ACCOUNTS = ("APP", "$G")
HEARD = 260
"""Subjects; more than a leader subscribes to at once."""
FIELDS = ("memory", "storage", "reserved_memory", "reserved_storage", "streams", "consumers")


class ToldExam(Exam):
    name = "exam-told"
    judges = (Exact,)
    promises = (
        "each change of a stream or consumer is told once, to whom it concerns, and each request of the API is audited",
        "$JS.API.INFO counts what the account has stored and reserved, its streams, consumers, requests and errors",
        "STREAM.INFO says who is offline or lags, and an account's use counts what is away",
        "servers know who is there and who listens at each of them, and new streams go elsewhere while one is away",
    )

    async def check(self) -> None:
        await self.examine(
            [self._advisories, self._counted, self._used, self._away, self._listeners, self._expectations], 4
        )

    async def _listen(self, session: Session, *subjects: str) -> list[Msg]:
        got: list[Msg] = []
        for subject in subjects:
            session.subscribe(subject, got.append)
        await session.flush()
        await asyncio.sleep(KNOWN)
        return got

    async def _advisories(self, session: Session) -> None:
        """One advisory of each change, with who asked for it; of each request its answer."""
        prefix = "$JS.EVENT.ADVISORY"
        actions = "CREATED", "UPDATED", "DELETED", "LEADER_ELECTED"
        of_stream = [f"{prefix}.STREAM.{action}.{STREAM}" for action in actions]
        of_consumer = [f"{prefix}.CONSUMER.{action}.{STREAM}.*" for action in ("CREATED", "DELETED")]
        told = await self._listen(session, *of_stream, *of_consumer)
        audited = await self._listen(session, f"{prefix}.API")
        config = {"name": STREAM, "subjects": ["told.>"], "num_replicas": self.rng.choice([1, 3])}
        requests: list[tuple[str, Any]] = [
            (f"STREAM.CREATE.{STREAM}", config),
            (f"STREAM.UPDATE.{STREAM}", config | {"description": "changed"}),
            (f"CONSUMER.DURABLE.CREATE.{STREAM}.c", {"stream_name": STREAM, "config": {"durable_name": "c"}}),
            (f"CONSUMER.INFO.{STREAM}.none", None),
            (f"CONSUMER.DELETE.{STREAM}.c", None),
            (f"STREAM.DELETE.{STREAM}", None),
        ]
        answers = []
        for subject, body in requests:
            text = b"" if body is None else json.dumps(body).encode()
            answers.append((f"$JS.API.{subject}", text, (await session.request(f"$JS.API.{subject}", text)).payload))
        await asyncio.sleep(KNOWN)
        seen = Counter(self._told_of(msg) for msg in told)
        elected = [told for told in seen if "LEADER_ELECTED" in told[0]]
        for one in elected:  # a transfer may bring another one
            del seen[one]
        self.equal("who leads is told", bool(elected), config["num_replicas"] == 3)
        kind = "io.nats.jetstream.advisory.v1."
        wanted = [
            (f"{prefix}.STREAM.{word}.{STREAM}", f"{kind}stream_action", action, True)
            for word, action in (("CREATED", "create"), ("UPDATED", "modify"), ("DELETED", "delete"))
        ]
        wanted += [
            (f"{prefix}.CONSUMER.{word}.{STREAM}.c", f"{kind}consumer_action", action, True)
            for word, action in (("CREATED", "create"), ("DELETED", "delete"))
        ]
        self.equal("advisories", sorted(seen.elements()), sorted(wanted))
        audits = [json.loads(msg.payload) for msg in audited]
        found = [
            (one["subject"], one.get("request", "").encode(), json.loads(one["response"]))
            for one in audits
            if STREAM in one["subject"]
        ]
        self.equal("audits", found, [(subject, text, json.loads(answer)) for subject, text, answer in answers])

    def _told_of(self, msg: Msg) -> tuple[str, str, str, bool]:
        told = json.loads(msg.payload)
        return msg.subject, told["type"], told.get("action", ""), told.get("client", {}).get("acc") in ACCOUNTS

    async def _counted(self, session: Session) -> None:
        """Requests of the account to one server, and those that were refused. Behind one without JetStream it would be
        another one each time."""
        session = await self.session("counted", self.rng.choice(self.members))
        before = (await session.api("INFO"))["api"]
        await self._refused(session, "STREAM.INFO.NOWHERE")
        await session.api("STREAM.NAMES")
        await self._refused(session, "CONSUMER.INFO.NOWHERE.none")
        after = (await session.api("INFO"))["api"]
        counted = after["total"] - before["total"], after["errors"] - before["errors"]
        self.equal("requests and errors", counted, (4, 2))

    async def _refused(self, session: Session, subject: str) -> None:
        try:
            await session.api(subject)
        except ApiError as error:
            self.equal(subject, error.err_code, 10059)

    async def _used(self, session: Session) -> None:
        """By all servers together, it is what the streams tell."""
        for at, storage in enumerate(("file", "memory")):
            await self.create(
                session, f"USED{at}", subjects=[f"used.{at}"], storage=storage, max_bytes=100_000 * (at + 1),
                num_replicas=self.rng.choice([1, 3]),
            )  # fmt: skip
            await self.create_consumer(session, f"USED{at}", "c")
            await self.store(session, f"used.{at}", f"used {at}")
        await self._agrees(session, "with two streams")
        await self.ask(session, "CONSUMER.DELETE.USED0.c")
        await self.ask(session, "STREAM.PURGE.USED1")
        await self._agrees(session, "with less")
        for at in (0, 1):
            await self.ask(session, f"STREAM.DELETE.USED{at}")
        await self._agrees(session, "without them")

    async def _agrees(self, session: Session, when: str) -> None:
        told: dict[str, Any] = {}
        wanted: dict[str, Any] = {}

        async def do() -> bool:
            nonlocal told, wanted
            info = await session.api("INFO")
            told, wanted = {field: info[field] for field in FIELDS}, await self._sums(session)
            return told == wanted

        try:
            await self.until(f"{when}, the account's numbers are those of its streams", do, 10.0)
        finally:
            self.note(f"{when}: {told}, streams {wanted}")

    async def _sums(self, session: Session) -> dict[str, int]:
        listed = await session.api("STREAM.LIST")
        sums = dict.fromkeys(FIELDS, 0) | {"streams": listed["total"]}
        for one in listed["streams"] or ():
            config, state = one["config"], one["state"]
            kind = "memory" if config["storage"] == "memory" else "storage"
            sums[kind] += state["bytes"] * config["num_replicas"]
            sums[f"reserved_{kind}"] += max(config["max_bytes"], 0)  # once, as nats-server counts
            sums["consumers"] += state["consumer_count"]
        return sums

    async def _away(self, session: Session) -> None:
        """A follower stands still, is switched off, and comes back."""
        if len(self.members) < 3 or self.deployment.relaxed:
            return
        await self.create(session, AWAY, subjects=["away"], num_replicas=3)
        await self.store(session, "away", "before")
        follower = next((one for one in sorted(replicas(self.deployment, AWAY)) if not self._leads(one)), "")
        if not follower:
            return
        other = await self.session("away", *(one for one in self.members if one != follower))
        machine = self.deployment.machines[follower]
        machine.pause()
        try:
            for at in range(LACKS):
                await self.store(other, "away", f"it stands still {at}")
            lags = await self._replica(other, follower, lambda one: one.get("lag", 0) >= LACKS)
            self.equal("a server that stands still", (lags["current"], lags.get("offline", False)), (False, False))
        finally:
            machine.resume()
        self.deployment.off.add(follower)
        machine.kill()
        try:
            for at in range(LACKS):
                await self.store(other, "away", f"meanwhile {at}")
            gone = await self._replica(other, follower, lambda one: bool(one.get("offline")))
            self.equal("a server that is away", (gone["current"], gone.get("lag", 0) >= LACKS), (False, True))
            await self._agrees(other, "while one is away")
            await self._known("while one is away")
            new = [f"{AWAY}{at}" for at in range(len(self.members) + 1)]  # more than one on each server that is there
            for name in new:
                await self.create(other, name, subjects=[name], num_replicas=1)
        finally:
            self.deployment.off.discard(follower)
            start(machine)
        await self._replica(
            other, follower, lambda one: one["current"] and not one.get("offline") and not one.get("lag")
        )
        for name in (AWAY, *new):
            await self.ask(other, f"STREAM.DELETE.{name}")
        await other.close()
        self.count("was away")

    async def _listeners(self, session: Session) -> None:
        """Two of one queue come and go."""
        name = self.rng.choice(self.members)
        both = [await self.session(f"listener-{at}", name) for at in range(2)]
        sids = []
        for one in both:
            sids.append(one.subscribe("told.queue workers", lambda msg: None))
            await one.flush()
            await self._known("with one more listener")
        both[0].unsubscribe(sids[0])
        await both[0].flush()
        await self._known("with one less")
        for one in both:
            await one.close()
        await self._known("with none")

    async def _known(self, when: str) -> None:
        """Servers know of each other what is so."""
        wrong: list[str] = []

        async def nothing() -> bool:
            wrong[:] = reckoning.of_others(self.deployment)
            return not wrong

        try:
            await self.until(f"{when}, all know of each other what is so", nothing, 10.0)
        finally:
            self.note(f"{when}: {wrong[:3]}")

    def _leads(self, name: str) -> bool:
        jetstream = jetstream_of(self.deployment.machines[name])
        return jetstream is None or jetstream.meta.leading or any(one.leading for one in jetstream.replicas.values())

    async def _replica(self, session: Session, name: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Waits until STREAM.INFO says this of a server."""
        found: dict[str, Any] = {}

        async def told() -> bool:
            cluster = (await session.api(f"STREAM.INFO.{AWAY}"))["cluster"]
            found.clear()
            found.update(next((one for one in cluster.get("replicas") or () if one["name"] == name), {}))
            return bool(found) and is_so(found)

        await self.until(f"STREAM.INFO tells of {name}", told, 30.0)
        return found

    async def _expectations(self, session: Session) -> None:
        """Expects the last message of other subjects than its own, with wildcards too."""
        config = {"name": STREAM, "subjects": ["told.>"], "num_replicas": self.rng.choice([1, 3])}
        await self.create(session, STREAM, **{key: value for key, value in config.items() if key != "name"})
        for subject in ("told.a.x", "told.b.x", "told.a.y"):
            await self.store(session, subject, subject)
        rows = [("told.a.*", 3, 0), ("told.b.x", 3, 10071), ("told.b.x", 2, 0), ("told.a.x", 0, 10071),
                ("told.c.*", 0, 0), ("told.>", 3, 10071), ("told.>", 6, 0)]  # fmt: skip
        for expected, seq, code in rows:
            field = "Nats-Expected-Last-Subject-Sequence"
            headers = {field: str(seq), f"{field}-Subject": expected}
            self.equal(f"{expected} at {seq}", await self._put(session, headers), code)
        await self._heard(session, config)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _heard(self, session: Session, config: dict[str, Any]) -> None:
        """Once a stream has new subjects, by the answer, it hears all of them: not the first ones only."""
        new = [f"heard.{at:03}" for at in range(HEARD)]
        await self.ask(session, f"STREAM.UPDATE.{STREAM}", config | {"subjects": ["told.>", *new]})
        await session.js_publish(new[-1], b"")  # at once, and once: nobody asks for it again

    async def _put(self, session: Session, headers: dict[str, str]) -> int:
        """The code of the error; 0 for none."""
        try:
            await session.js_publish("told.new", b"", headers)
        except ApiError as error:
            return error.err_code
        return 0
