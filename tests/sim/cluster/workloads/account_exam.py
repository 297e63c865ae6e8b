"""Accounts, permissions, imports, and what servers say of themselves to the system account."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from testkit.sim.session import ApiError, Msg, NoResponders, Session
from tests.sim.cluster.exam import SPREAD, Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.machine_faults import start

TOO_MANY = (10027, 10026)


class AccountExam(Exam):
    name = "exam-accounts"
    judges = (Exact,)
    promises = (
        "messages, streams and limits of one account are its own, but for what it exports and another one imports",
        "a client publishes and subscribes what its permissions allow, and gets an error for the rest",
        "what servers tell the system account of themselves, their streams and their health is so",
        "ACCOUNT.PURGE deletes all streams of an account, and nothing of another one",
    )

    async def check(self) -> None:
        if any(server.leaf_of for server in self.deployment.servers.values()):
            return  # these clusters have no accounts
        if any(server.sync_interval for server in self.deployment.servers.values()):
            return
        parts = [
            self._apart, self._limits, self._imports, self._permissions, self._responses, self._servers, self._purge,
            self._safe,
        ]  # fmt: skip
        await self.examine(parts, 6)

    def _listen(self, session: Session, subject: str) -> list[Msg]:
        got: list[Msg] = []
        session.subscribe(subject, got.append)
        return got

    async def _spread(self, *sessions: Session) -> None:
        for session in sessions:
            await session.flush()
        await asyncio.sleep(SPREAD)

    async def _apart(self, session: Session) -> None:
        """The same subjects and stream names in two accounts."""
        other = await self.session("apart", user="other")
        mine, its = self._listen(session, "same"), self._listen(other, "same")
        await self._spread(session, other)
        session.publish("same", b"app")
        other.publish("same", b"other")
        await self._spread(session, other)
        self.equal("of the one", [msg.payload for msg in mine], [b"app"])
        self.equal("of the other", [msg.payload for msg in its], [b"other"])
        for one, text in ((session, "app's"), (other, "other's")):
            await self.create(one, "TWIN", subjects=["twin"], num_replicas=1)
            await self.store(one, "twin", text)
        for one, text in ((session, "app's"), (other, "other's")):
            found = await self.contents(one, "TWIN")
            self.equal(f"{text} messages", [msg.payload.decode() for msg in found.values()], [text])
        await self.ask(other, "STREAM.DELETE.TWIN")
        self.equal("after the other's deletion", len(await self.contents(session, "TWIN")), 1)
        await other.close()

    async def _limits(self, session: Session) -> None:
        other = await self.session("limits", user="other")
        names = (await self.ask(other, "STREAM.NAMES"))["streams"] or []
        for number in range(2 - len(names)):
            await self.create(other, f"L{number}", subjects=[f"l.{number}"], num_replicas=1, max_consumers=1)
        code = await self.refused(other, "STREAM.CREATE.MORE", {"name": "MORE", "subjects": ["more"]})
        self.require(code in TOO_MANY, f"a third stream is refused with {code}")
        await self.create_consumer(other, "L0", "first")
        body = {"stream_name": "L0", "config": {"durable_name": "second", "ack_policy": "explicit"}}
        code = await self.refused(other, "CONSUMER.DURABLE.CREATE.L0.second", body)
        self.require(code in TOO_MANY, f"a second consumer of a stream for one is refused with {code}")
        config = (await self.ask(other, "STREAM.INFO.L0"))["config"]
        await self.ask(other, "STREAM.UPDATE.L0", config | {"description": "one of all that there may be"})
        refused = 0
        for number in range(12):
            try:
                await other.js_publish("l.0", bytes([number]) * 200_000)
            except ApiError:
                refused += 1
        self.require(4 <= refused <= 8, f"{refused} of 12 messages of 200 kB are refused, with room for 1 MB")
        for number in range(2):
            await self.ask(other, f"STREAM.DELETE.L{number}")
        await other.close()

    async def _imports(self, session: Session) -> None:
        """A service and a stream of the other account."""
        other = await self.session("imports", user="other")
        session.subscribe("svc.*", lambda msg: session.publish(msg.reply, b"answer to " + msg.payload))
        got = self._listen(other, "in.>")
        await self._spread(session, other)
        answer = await other.request("remote.one", b"question")
        self.equal("the service", answer.payload, b"answer to question")
        try:
            await other.request("svc.one", b"not imported")
        except NoResponders:
            pass
        else:
            self.require(False, "a service answers under a name that is not imported")
        session.publish("out.a.x", b"1")
        session.publish("out.b.x", b"2")
        await self._spread(session, other)
        self.equal("the stream", [(msg.subject, msg.payload) for msg in got], [("in.out.a.x", b"1")])
        await other.close()

    async def _permissions(self, session: Session) -> None:
        narrow = await self.session("narrow", user="narrow")
        got = {subject: self._listen(session, subject) for subject in ("may.this", "may.not", "no.way")}
        mine, forbidden = self._listen(narrow, "to.me"), self._listen(narrow, "from.them")
        await self._spread(session, narrow)
        for subject in got:
            narrow.publish(subject, b"x")
        session.publish("to.me", b"x")
        session.publish("from.them", b"x")
        await self._spread(session, narrow)
        found = {one: len(messages) for one, messages in got.items()}
        self.equal("published", found, {"may.this": 1, "may.not": 0, "no.way": 0})
        self.equal("subscribed", (len(mine), len(forbidden)), (1, 0))
        errors = sum("Permissions Violation" in line for line in narrow.errors)
        self.require(errors >= 3, f"of three violations {narrow.errors} are sent")
        await narrow.close()

    async def _responses(self, session: Session) -> None:
        """One answer to who asked is allowed, wherever that goes."""
        narrow = await self.session("responds", user="narrow")

        def answer(msg: Msg) -> None:
            narrow.publish(msg.reply, b"first")
            narrow.publish(msg.reply, b"second")

        narrow.subscribe("to.ask", answer)
        got = self._listen(session, "private.reply")
        await self._spread(session, narrow)
        session.publish("to.ask", b"", "private.reply")
        await self._spread(session, narrow)
        self.equal("answers", [msg.payload for msg in got], [b"first"])
        await narrow.close()

    async def _purge(self, session: Session) -> None:
        """The account may have a stream already, of the part before. Servers without JetStream purge nothing."""
        other = await self.session("purged", user="other")
        system = await self.session("purging", *self.members, user="sys")
        await self.create(session, "STAYS", subjects=["stays"], num_replicas=1)
        await self.store(session, "stays", "stays")
        before = sorted((await self.ask(session, "STREAM.NAMES"))["streams"])
        await self.create(other, "GOES", subjects=["goes"], num_replicas=3)
        await self.store(other, "goes", "goes")
        self.equal("who may not", await self.refused_or_silent(other, "ACCOUNT.PURGE.OTHER"), True)
        self.equal("purge", (await self.ask(system, "ACCOUNT.PURGE.OTHER"))["initiated"], True)

        async def gone() -> bool:
            return not (await other.api("STREAM.NAMES"))["streams"]

        await self.until("the account has no streams", gone, 20.0)
        self.equal("the other account's", sorted((await self.ask(session, "STREAM.NAMES"))["streams"]), before)
        await self.create(other, "GOES", subjects=["goes"], num_replicas=1)
        self.equal("a new one is empty", await self.contents(other, "GOES"), {})
        await self.ask(other, "STREAM.DELETE.GOES")
        await other.close()
        await system.close()

    async def refused_or_silent(self, session: Session, subject: str) -> bool:
        """Nobody does it for this user."""
        try:
            await session.api(subject, seconds=2.0)
        except (ApiError, NoResponders, TimeoutError):
            return True
        return False

    async def _safe(self, session: Session) -> None:
        """A server may be restarted by its own word while all are there, and not while another one is away."""
        await self.create(session, "SAFE", subjects=["safe"], num_replicas=3)
        voters = await self.ask(session, "STREAM.INFO.SAFE")
        names = [voters["cluster"]["leader"], *(one["name"] for one in voters["cluster"]["replicas"])]
        system = await self.session("system", *self.rng.sample(names, 1), user="sys")
        await self.until("all may be restarted", lambda: self._may_restart(system, names, "ok"), 20.0)
        info = system.info["server_name"]
        away = self.deployment.machines[self.rng.choice([name for name in names if name != info])]
        self.deployment.off.add(away.name)
        away.kill()
        left = [name for name in names if name != away.name]
        try:
            await self.until("none may be restarted", lambda: self._may_restart(system, left, "unavailable"), 20.0)
        finally:
            self.deployment.off.discard(away.name)
            start(away)
        await self.until("all may be restarted again", lambda: self._may_restart(system, names, "ok"), 40.0)
        await self.ask(session, "STREAM.DELETE.SAFE")
        await system.close()

    async def _may_restart(self, system: Session, names: list[str], wanted: str) -> bool:
        """True when these servers say so."""
        told = await self._all(system, "$SYS.REQ.SERVER.PING.HEALTHZ", {"safe-to-restart": True})
        self.note(f"safe to restart: {told}")
        if wanted == "unavailable":
            return all(told.get(name, {}).get("status") == wanted for name in names)
        # Streams of workloads may have two replicas, of which none may ever be restarted.
        return all(name in told and not any("SAFE" in one for one in told[name].get("first", ())) for name in names)

    async def _all(self, system: Session, subject: str, body: Any = None) -> dict[str, Any]:
        """Answers of all servers, by name."""
        got: list[Msg] = []
        inbox = system.new_inbox()
        sid = system.subscribe(inbox, got.append)
        system.publish(subject, json.dumps(body).encode() if body else b"", inbox)
        await self._spread(system)
        system.unsubscribe(sid)
        answers = [json.loads(msg.payload) for msg in got if not msg.status]
        return {one["server"]["name"]: one.get("data", {}) for one in answers}

    async def _servers(self, session: Session) -> None:
        system = await self.session("system", user="sys")
        names = sorted(self.deployment.servers)
        self.equal("servers", sorted(await self._all(system, "$SYS.REQ.SERVER.PING")), names)
        for name, health in (await self._all(system, "$SYS.REQ.SERVER.PING.HEALTHZ")).items():
            self.equal(f"the health of {name}", health["status"], "ok")
        streams = (await self.ask(session, "STREAM.LIST"))["streams"] or []
        told = await self._all(system, "$SYS.REQ.SERVER.PING.JSZ")
        wanted = dict.fromkeys(names, 0)
        for one in streams:
            cluster = one["cluster"]
            for server in (cluster["leader"], *(peer["name"] for peer in cluster.get("replicas") or ())):
                wanted[server] += 1
        found = {name: told.get(name, {}).get("streams", 0) for name in names}
        self.equal("streams of each server", found, wanted)
        connections = await self._all(system, "$SYS.REQ.SERVER.PING.CONNZ")
        own = [one["name"] for found in connections.values() for one in found["connections"]]
        self.require("exam-accounts-exam" in own, f"connections of clients: {own}")
        await system.close()
