"""Exam of what a client with few permissions may have a server do for it, of consumers that links of other servers ask
for, and of more requests than a server takes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from random import Random
from typing import Any

from testkit.sim.deployment import Deployment
from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.exam import SPREAD, Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workloads.archive_exam import BEGUN, CONSUMER, archive, consumer, entry, state

STREAM, NEW = "PERMITTED", "PERMITTEDB"
BUCKET = "permitted"
NOT_THERE, WRONG, NO_LETTERS, NO_TARGET, FAILED, NO_OBJECT = 10112, 10052, 10052, 10015, 10062, 11007
PEDANTIC, IN_USE, OTHER_IDENTITY, INVALID, BAD = 10157, 10013, 10225, 10025, 10003
"""Codes of errors."""
MAY = '{ publish: { allow: ["$JS.API.>", "$JS.SNAPSHOT.>", "$OBJ.*", "may.>"] }, subscribe: [">"] }'
USER = f"{{ user: few, password: few, permissions: {MAY} }}"
ACCOUNT = "{ user: app, password: app },"
EXPORTS, IMPORTS = 'exports: [ { service: "svc.*" }', "imports: ["
CONFIG = (
    (ACCOUNT, f"{ACCOUNT}\n      {USER},"),
    (IMPORTS, f'exports: [ {{ service: "away.*" }} ]\n    {IMPORTS}'),
    (EXPORTS, f'imports: [ {{ service: {{ account: OTHER, subject: "away.*" }} }} ]\n    {EXPORTS}'),
)
"""One more user, and subjects that lead into another account: what goes there, servers publish for clients that may."""
FLOOD = 400
"""Requests that come at once."""
PAYLOAD = 2 << 20
"""Bytes of the largest message; of a request to the API there may be half as many."""
ROOM = 100
"""Requests that may wait at a server."""
LINK: dict[str, Any] = {
    "name": "LINK", "deliver_policy": "by_start_sequence", "ack_policy": "none", "ack_wait": 79_200_000_000_000,
    "max_deliver": 1, "flow_control": True, "idle_heartbeat": 1_000_000_000, "inactive_threshold": 10_000_000_000,
    "direct": True, "sourcing": True,
}  # fmt: skip
"""The consumer that a mirror or source of nats-server asks for."""


def own(**config: Any) -> dict[str, Any]:
    """The body of a request for a consumer."""
    return {"stream_name": STREAM, "config": {"ack_policy": "explicit"} | config}


class PermitExam(Exam):
    name = "exam-permits"
    weight = 0
    newest = True
    judges = (Exact,)
    promises = (
        "no server publishes for a client where that may not: deliveries, letters, republished messages, archives",
        "a link of another server gets the consumer that its upstream needs, and not of one that was made anew",
        "of more requests than a server takes each is answered or counted, and the system account is told",
    )

    @classmethod
    def before(cls, deployment: Deployment, rng: Random) -> None:
        """One more user, and room for fewer requests."""
        for name, server in deployment.servers.items():
            config = server.config
            for before, after in CONFIG:
                config = config.replace(before, after)
            deployment.servers[name] = dataclasses.replace(server, config=config, requests=ROOM, max_payload=PAYLOAD)

    async def check(self) -> None:
        parts = [self._links, self._identities, self._pedantic, self._long]
        if "system_account: SYS" in self.deployment.servers[self.members[0]].config:
            parts += [self._consumers, self._streams, self._archives, self._objects, self._flood]
        await self.examine(parts, 5)

    async def _few(self) -> Session:
        """A client with few permissions, at any server: one without JetStream hands its requests on."""
        return await self.session("few", self.rng.choice(self.deployment.members()), user="few")

    def _listen(self, session: Session, subject: str) -> list[Msg]:
        got: list[Msg] = []
        session.subscribe(subject, got.append)
        return got

    async def _codes(self, session: Session, *rows: tuple[str, Any, int]) -> None:
        """0: it is done."""
        for subject, body, code in rows:
            try:
                await session.api(subject, body)
            except ApiError as error:
                self.equal(f"{subject} {body}", error.err_code, code)
            else:
                self.equal(f"{subject} {body}", 0, code)

    async def _filled(self, session: Session, **config: Any) -> None:
        await self.create(session, STREAM, subjects=[f"{STREAM}.>"], num_replicas=self.rng.choice([1, 3]), **config)
        for at in range(5):
            await self.store(session, f"{STREAM}.{at % 2}", f"permitted {at}")

    # ---- permissions

    async def _consumers(self, session: Session) -> None:
        """Deliveries and dead letters go where their client may publish."""
        await self._filled(session)
        few = await self._few()
        got, other = self._listen(session, "may.>"), self._listen(session, "$KV.else.>")
        await session.flush()
        await asyncio.sleep(SPREAD)
        create, durable = f"CONSUMER.CREATE.{STREAM}", f"CONSUMER.DURABLE.CREATE.{STREAM}"
        letters = {"dead_letter": {"subject": "away.{stream}"}, "max_deliver": 1}
        meant = {"metadata": {"jetcluster.dead_letter.subject": "away.{consumer}"}, "max_deliver": 1}
        await self._codes(
            few,
            (f"{create}.push", own(deliver_subject="$KV.else.x", ack_policy="none"), NOT_THERE),
            (create, own(deliver_subject="$JS.EVENT.x", ack_policy="none"), NOT_THERE),
            (f"{durable}.push", own(durable_name="push", deliver_subject="away.y"), NOT_THERE),
            (f"{create}.letters", own(durable_name="letters", **letters), NO_LETTERS),
            (f"{create}.letters", own(**meant), NO_LETTERS),
            (f"{create}.push", own(deliver_subject="may.x", ack_policy="none"), 0),
            (f"{create}.letters", own(**letters | {"dead_letter": {"subject": "may.letters.{stream}"}}), 0),
        )
        await self._codes(
            session, (f"{create}.for-others", own(**letters), 0), (f"CONSUMER.DELETE.{STREAM}.for-others", None, 0)
        )
        text = json.dumps(own(deliver_subject="$KV.else.x", ack_policy="none")).replace("$KV", "\\u0024KV").encode()
        answer = json.loads((await few.request(f"$JS.API.{create}.other", text)).payload)
        self.equal("a subject that is written otherwise", answer.get("error", {}).get("err_code"), NOT_THERE)
        names = (await self.ask(session, f"CONSUMER.NAMES.{STREAM}"))["consumers"]
        self.equal("consumers", names, ["letters", "push"])
        await asyncio.sleep(SPREAD)
        self.equal("what is delivered", (len([msg for msg in got if msg.payload]), len(other)), (5, 0))
        await few.close()
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _streams(self, session: Session) -> None:
        """A stream republishes where its client may publish; what another one decided stays."""
        few = await self._few()
        there, here = ({"src": ">", "dest": f"{word}.>"} for word in ("$KV.else", "may"))
        config = {"name": NEW, "subjects": [f"{NEW}.>"], "num_replicas": 1}
        made = config | {"name": STREAM, "subjects": [f"{STREAM}.>"], "republish": there}
        await self.ask(session, f"STREAM.CREATE.{STREAM}", made)
        await self._codes(
            few,
            (f"STREAM.CREATE.{NEW}", config | {"republish": there}, WRONG),
            (f"STREAM.CREATE.{NEW}", config | {"republish": here}, 0),
            (f"STREAM.UPDATE.{NEW}", config | {"republish": there}, WRONG),
            (f"STREAM.UPDATE.{STREAM}", made | {"description": "new"}, 0),
            (f"STREAM.UPDATE.{STREAM}", made | {"republish": here | {"src": f"{STREAM}.>"}}, 0),
            (f"STREAM.UPDATE.{STREAM}", made, WRONG),
        )
        got, other = self._listen(session, "may.>"), self._listen(session, "$KV.else.>")
        await session.flush()
        await asyncio.sleep(SPREAD)
        for name in (NEW, STREAM):
            await self.store(session, f"{name}.x", f"republished {name}")
        await asyncio.sleep(SPREAD)
        found = sorted(msg.subject for msg in got)
        self.equal("what is republished", (found, other), ([f"may.{NEW}.x", "may.x"], []))
        await few.close()
        for name in (STREAM, NEW):
            await self.ask(session, f"STREAM.DELETE.{name}")

    async def _archives(self, session: Session) -> None:
        """An archive goes where its client may publish, and no consumer in one delivers elsewhere."""
        await self._filled(session)
        few = await self._few()
        await self._codes(few, (f"STREAM.SNAPSHOT.{STREAM}", {"deliver_subject": "$KV.else.x"}, NO_TARGET))
        for target, code in (("$KV.else.x", FAILED), ("may.x", 0)):
            push = {"config": CONSUMER | {"deliver_subject": target}, "state": BEGUN}
            sent = archive(state(), consumer("kept", push), entry(1))
            wanted = {"config": {"name": NEW, "subjects": [f"{NEW}.>"], "num_replicas": 1}, "state": {}}
            deliver = (await self.ask(few, f"STREAM.RESTORE.{NEW}", wanted))["deliver_subject"]
            found = [json.loads(said) for said in [await self._chunk(few, deliver, one) for one in (sent, b"")] if said]
            codes = [one["error"]["err_code"] for one in found if "error" in one]
            self.equal(f"an archive of a consumer for {target}", codes, [code] if code else [])
        self.equal("it is there", (await self.ask(session, f"CONSUMER.NAMES.{NEW}"))["consumers"], ["kept"])
        await few.close()
        for name in (STREAM, NEW):
            await self.ask(session, f"STREAM.DELETE.{name}")

    async def _chunk(self, session: Session, deliver: str, chunk: bytes) -> bytes:
        return (await session.request(deliver, chunk, seconds=8.0)).payload

    async def _objects(self, session: Session) -> None:
        """The object service sends what it has where its client may publish."""
        await self.create(session, f"OBJ_{BUCKET}", subjects=[f"$OBJ.{BUCKET}.>"], num_replicas=1)
        meta = {"name": "thing", "nonce": "u1", "chunks": 1, "size": 3}
        await session.js_publish(f"$OBJ.{BUCKET}.info.thing", json.dumps(meta).encode())
        await session.js_publish(f"$OBJ.{BUCKET}.chunks.u1", b"abc")
        few = await self._few()
        got, other = self._listen(session, "may.>"), self._listen(await self.session("away", user="other"), "away.*")
        await session.flush()
        await asyncio.sleep(SPREAD)
        for target, code in (("$KV.else.x", NO_OBJECT), ("away.x", NO_OBJECT), ("may.x", 0)):
            body = json.dumps({"name": "thing", "action": "get", "deliver_subject": target}).encode()
            said = await few.request(f"$OBJ.{BUCKET}", body)
            answer = json.loads(said.payload) if said.payload else {}
            self.equal(f"an object for {target}", answer.get("error", {}).get("err_code", 0), code)
        await asyncio.sleep(SPREAD)
        self.equal("what is sent", ([msg.payload for msg in got if msg.payload], other), ([b"abc"], []))
        await few.close()
        await self.ask(session, f"STREAM.DELETE.OBJ_{BUCKET}")

    # ---- links of other servers

    async def _links(self, session: Session) -> None:
        """Where a message goes with its last ack the consumer of a link becomes durable, and goes on from what it
        asks for the next time; elsewhere each time there is another one."""
        waits = self.rng.choice(["workqueue", "interest"])
        retention = self.rng.choice([waits, waits, "limits"])
        if retention == "interest":
            await self.create(session, STREAM, subjects=[f"{STREAM}.>"], retention=retention)
            await self.create_consumer(session, STREAM, "holds")
            for at in range(5):
                await self.store(session, f"{STREAM}.{at % 2}", f"permitted {at}")
        else:
            await self._filled(session, retention=retention)
        create = f"CONSUMER.CREATE.{STREAM}"
        body = {"stream_name": STREAM, "config": LINK | {"opt_start_seq": 3, "deliver_subject": "link.1"}}
        got: list[Msg] = []
        sid = session.subscribe("link.1", got.append)
        await session.flush()
        await asyncio.sleep(SPREAD)
        made = await self.ask(session, create, body)
        if retention == "limits":
            self.equal("a name of its own", made["name"].startswith("LINK-"), True)
            again = await self.ask(session, create, body)
            self.equal("another one", again["name"] != made["name"], True)
        else:
            told = made["name"], made["config"]["ack_policy"], made["config"].get("durable_name")
            self.equal("it waits for acks", told, ("LINK", "flow_control", "LINK"))
            body = {"stream_name": STREAM, "config": LINK | {"opt_start_seq": 5, "deliver_subject": "link.2"}}
            self.equal("while it is used", await self.refused(session, create, body), IN_USE)
            session.unsubscribe(sid)
            session.subscribe("link.2", got.append)
            await session.flush()
            await asyncio.sleep(SPREAD)
            await self.ask(session, create, body)
            info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.LINK")
            self.equal("all before is done", info["ack_floor"]["stream_seq"], 4)
        await asyncio.sleep(SPREAD)
        found = {msg.payload for msg in got if not msg.status}
        wanted = {b"permitted 4"} if retention != "limits" else {b"permitted 2", b"permitted 3", b"permitted 4"}
        self.equal("what it delivers", wanted <= found, True)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _identities(self, session: Session) -> None:
        """A source that knows the stream goes on with that one alone."""
        await self._filled(session)
        body = {"stream_name": STREAM, "config": LINK | {"opt_start_seq": 1, "deliver_subject": "link.0"}}
        refusal = await self._as_source(session, body, "another")
        self.equal("of another stream", refusal["err_code"], OTHER_IDENTITY)
        own = refusal["description"].rpartition(" ")[2]
        self.equal("of this one", await self._as_source(session, body, own), {})
        self.equal("of any", await self._as_source(session, body, ""), {})
        await self.ask(session, f"STREAM.DELETE.{STREAM}")
        await self._filled(session)
        found = await self._as_source(session, body, own)
        self.equal("of one that was made anew", found.get("err_code"), OTHER_IDENTITY)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _as_source(self, session: Session, body: Any, identity: str) -> dict[str, Any]:
        """The error, {} for none."""
        headers = {"Nats-Stream-Identity": identity}
        msg = await session.request(f"$JS.API.CONSUMER.CREATE.{STREAM}", json.dumps(body).encode(), headers=headers)
        found: dict[str, Any] = json.loads(msg.payload).get("error", {})
        return found

    # ---- what is said exactly, too often and at too great length

    async def _pedantic(self, session: Session) -> None:
        """A request that wants nothing corrected is refused where something would be; no other is."""
        await self._filled(session)
        create = f"CONSUMER.CREATE.{STREAM}.exact"
        new = {"name": NEW, "subjects": [f"{NEW}.>"], "num_replicas": 1}
        backoff = own(backoff=[10**9, 2 * 10**9], ack_wait=5 * 10**9, max_deliver=5)
        await self._codes(
            session,
            (create, own(max_deliver=-5) | {"pedantic": True}, PEDANTIC),
            (create, backoff | {"pedantic": True}, PEDANTIC),
            (f"STREAM.CREATE.{NEW}", new | {"max_msgs": -5, "pedantic": True}, PEDANTIC),
            (f"STREAM.CREATE.{NEW}", new | {"max_age": 10**9, "pedantic": True}, PEDANTIC),
            (f"STREAM.UPDATE.{STREAM}", {"subjects": ["x"]}, WRONG),
            (create, backoff, 0),
            (f"STREAM.CREATE.{NEW}", new | {"max_msgs": -5}, 0),
        )
        config = (await self.ask(session, f"STREAM.INFO.{NEW}"))["config"]
        self.equal("what is corrected", config["max_msgs"], -1)
        until = self.wall(3600.0)
        made = await self.ask(session, f"CONSUMER.CREATE.{STREAM}.paused", own(pause_until=until))
        self.equal("it is paused", made.get("paused"), True)
        told: list[Msg] = []
        session.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.PAUSE.{STREAM}.paused", told.append)
        await session.flush()
        await asyncio.sleep(SPREAD)
        for _ in range(2):
            await self.ask(session, f"CONSUMER.PAUSE.{STREAM}.paused", {"pause_until": until})
        await self.ask(session, f"CONSUMER.PAUSE.{STREAM}.paused")
        await asyncio.sleep(SPREAD)
        self.equal("what changes is told", [json.loads(msg.payload)["paused"] for msg in told], [False])
        for name in (STREAM, NEW):
            await self.ask(session, f"STREAM.DELETE.{name}")

    async def _long(self, session: Session) -> None:
        """A request of more than a megabyte is refused, wherever it comes in; one that nobody knows as well."""
        if any(server.max_payload < PAYLOAD for server in self.deployment.servers.values()):
            return  # somebody has changed it
        one = await self.session("long", self.rng.choice(self.deployment.members()))
        for subject, text, code in (
            ("STREAM.NAMES", json.dumps({"subject": "x" * (PAYLOAD // 2)}).encode(), INVALID),
            (f"CONSUMER.CREATE.{STREAM}.x", b" " * (PAYLOAD - 4096), INVALID),
            ("STREAM.LEADER.HIGHER.ANY", b"", BAD),
            ("CONSUMER.PEER.ANY", b"", BAD),
        ):
            answer = json.loads((await one.request(f"$JS.API.{subject}", text)).payload)
            self.equal(f"{subject} with {len(text)} bytes", answer["error"]["err_code"], code)
        await one.close()

    async def _flood(self, session: Session) -> None:
        """More requests at once than a server takes: the oldest are dropped, and counted."""
        await self._filled(session)
        system = await self.session("told", user="sys")
        told: list[Msg] = []
        system.subscribe("$JS.EVENT.ADVISORY.API.LIMIT_REACHED", told.append)
        await system.flush()
        await asyncio.sleep(SPREAD)
        one = await self.session("flood", self.rng.choice(self.members))
        got: list[Msg] = []
        inbox = one.new_inbox()
        one.subscribe(f"{inbox}.*", got.append)
        subject = self.rng.choice([f"STREAM.INFO.{STREAM}", f"CONSUMER.NAMES.{STREAM}", "STREAM.NAMES"])
        for at in range(FLOOD):
            one.publish(f"$JS.API.{subject}", b"", f"{inbox}.{at}")
        await one.flush()
        await asyncio.sleep(4 * SPREAD)
        dropped = sum(json.loads(msg.payload)["dropped"] for msg in told)
        self.count("dropped", dropped)
        self.equal("answered or dropped", len({msg.subject for msg in got}) + dropped, FLOOD)
        await one.close()
        await system.close()
        await self.ask(session, f"STREAM.DELETE.{STREAM}")
