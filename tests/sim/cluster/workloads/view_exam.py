"""The exam of what servers tell: who comes and goes, how many listen, and what the system account is answered."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from testkit.sim.deployment import Deployment
from testkit.sim.session import Msg, Session
from tests.sim.cluster.dialogues import PING, PONG, answers, connect, publish
from tests.sim.cluster.exam import SPREAD, Exam, with_accounts
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.machine_faults import start
from tests.sim.cluster.workloads.line_exam import Line, line_to

ACCOUNT = "VIEWS"
USER = "viewer"
ADDED = f"{ACCOUNT} {{ jetstream: enabled, users: [ {{ user: {USER}, password: {USER} }} ] }}"
TOLD = 2.5
"""Seconds within which a change of the number of connections is told."""
CLIENTS = 6
EACH = 9
"""Times that one server is asked for the same subscribers: in all more than may be asked for at a time."""
AWAY = 20.0
"""Seconds within which a server has ended and is back."""
Json = dict[str, Any]


@dataclass(slots=True)
class Visitor:
    """A client, and what it has done."""

    line: Line
    server: str
    name: str
    sent: list[int] = field(default_factory=list)
    """Bytes of its messages."""
    got: list[int] = field(default_factory=list)
    subscribed: list[str] = field(default_factory=list)

    def told(self) -> Json:
        """Its numbers, as /connz has them."""
        return {
            "in_msgs": len(self.sent), "in_bytes": sum(self.sent), "out_msgs": len(self.got),
            "out_bytes": sum(self.got), "subscriptions": len(self.subscribed),
        }  # fmt: skip


class ViewExam(Exam):
    name = "exam-views"
    weight = 0
    judges = (Exact,)
    promises = (
        "the system account is told who came, what they sent and got, why they went, and how many are left",
        "whoever asks for subscribers is told how many there are in the cluster, however often",
        "a question about an account, its clients or a server is answered by whom it is for, and exactly",
        "a server that goes away says so, and the others count without it",
    )

    @classmethod
    def before(cls, deployment: Deployment, rng: Random) -> None:
        """An account of its own, so that nobody else comes or goes there."""
        with_accounts(deployment, ADDED)

    async def check(self) -> None:
        if ADDED not in self.deployment.servers[self.members[0]].config:
            return  # leaf clusters have no accounts
        await self.examine([self._events, self._subscribers, self._questions, self._filters, self._leaves], 5)

    # ---- clients and servers

    def _servers(self) -> list[str]:
        """All that clients may come to, with JetStream or without."""
        return sorted(name for name in self.deployment.servers if self.deployment.machines[name].ready)

    def _id(self, name: str) -> str:
        node = self.deployment.machines[name].node
        assert node is not None
        return str(node.server.server_id)

    async def _visitor(self, server: str, name: str, **options: Any) -> Visitor:
        visitor = Visitor(await line_to(self.deployment, server), server, name)
        visitor.line.say(connect(USER, name=name, lang=f"lang of {name}", version="9.9", **options) + PING)
        self.equal("a client comes in", await visitor.line.answer(PONG), PONG)
        return visitor

    async def _acts(self, visitor: Visitor) -> None:
        """It subscribes, and sends some messages, of which it gets those on its own subject."""
        own = f"views.{visitor.name}"
        visitor.line.say(f"SUB {own} 1\r\nSUB nobody.{visitor.name} 2\r\n".encode())
        visitor.subscribed += [own, f"nobody.{visitor.name}"]
        for _ in range(self.rng.randrange(4)):
            size = self.rng.randrange(100)
            visitor.line.say(publish(own, bytes(size)))
            visitor.sent.append(size)
            visitor.got.append(size)
        for _ in range(self.rng.randrange(3)):
            visitor.line.say(publish("views.nobody", b"12345"))
            visitor.sent.append(5)
        visitor.line.say(PING)
        async with asyncio.timeout(10.0):
            while not answers(visitor.line.heard).endswith(PONG):
                await visitor.line.came.wait()
                visitor.line.came.clear()
        visitor.line.heard = b""

    def _listen(self, session: Session, subject: str) -> list[Msg]:
        got: list[Msg] = []
        session.subscribe(subject, got.append)
        return got

    async def _settled(self, *sessions: Session) -> None:
        for session in sessions:
            await session.flush()
        await asyncio.sleep(SPREAD)

    async def _answers(self, system: Session, subject: str, body: Any = None) -> dict[str, Json]:
        """Answers of the servers, by name."""
        got: list[Msg] = []
        inbox = system.new_inbox()
        sid = system.subscribe(inbox, got.append)
        system.publish(subject, json.dumps(body).encode() if body is not None else b"", inbox)
        await self._settled(system)
        system.unsubscribe(sid)
        found = [json.loads(msg.payload) for msg in got if not msg.status]
        names = [one["server"]["name"] for one in found]
        self.equal(f"servers that answer {subject} twice", sorted(set(names)), sorted(names))
        return dict(zip(names, found, strict=True))

    # ---- parts

    async def _events(self, session: Session) -> None:
        """Clients come and go in any way, and one is refused: each is told once, with what it did."""
        system = await self.session("system", self.rng.choice(self._servers()), user="sys")
        came, gone = (self._listen(system, f"$SYS.ACCOUNT.{ACCOUNT}.{what}") for what in ("CONNECT", "DISCONNECT"))
        counts = self._listen(system, f"$SYS.ACCOUNT.{ACCOUNT}.SERVER.CONNS")
        older = self._listen(system, f"$SYS.SERVER.ACCOUNT.{ACCOUNT}.CONNS")
        refused = self._listen(system, "$SYS.SERVER.*.CLIENT.AUTH.ERR")
        await self._settled(system)
        visitors = []
        for at in range(CLIENTS):
            visitors.append(await self._visitor(self.rng.choice(self._servers()), f"v{at}"))
            await self._acts(visitors[-1])
        await asyncio.sleep(TOLD)
        self._counted("who came", counts, visitors)
        left, reasons = self.rng.sample(visitors, CLIENTS - 2), {}
        for one in left:
            way = self.rng.choice(["closes", "aborts", "errs"])
            reasons[one.name] = "Protocol Violation" if way == "errs" else ("Client Closed", "Read Error")
            if way == "errs":
                one.line.say(b"NONSENSE\r\n")
            else:
                one.line.go(at_once=way == "aborts")
        stranger = await line_to(self.deployment, server := self.rng.choice(self._servers()))
        stranger.say(connect(USER, **{"pass": "wrong"}) + PING)
        await asyncio.sleep(TOLD + SPREAD)
        self._counted("who is left", counts, [one for one in visitors if one not in left])
        self.equal("the older name", [_numbers(one) for one in older], [_numbers(one) for one in counts])
        told = {one["client"]["name"]: one for one in map(_json, came)}
        self.equal("who is told to have come", (len(came), sorted(told)), (CLIENTS, [one.name for one in visitors]))
        ends = {one["client"]["name"]: one for one in map(_json, gone)}
        self.equal("who is told to have gone", (len(gone), sorted(ends)), (len(left), sorted(reasons)))
        for one in visitors:
            self._is_told(one, told[one.name])
        for one in left:
            self._is_told(one, ends[one.name])
            numbers = {"sent": {"msgs": len(one.got), "bytes": sum(one.got)},
                       "received": {"msgs": len(one.sent), "bytes": sum(one.sent)}}  # fmt: skip
            self.equal(f"numbers of {one.name}", {key: ends[one.name][key] for key in numbers}, numbers)
            self.require(
                ends[one.name]["reason"] in reasons[one.name], f"{one.name} went for {ends[one.name]['reason']}"
            )
        found = [(one["server"]["name"], one["reason"], one["client"]["user"]) for one in map(_json, refused)]
        self.equal("who is refused", found, [(server, "Authentication Failure", USER)])
        for one in visitors:
            one.line.go(at_once=False)
        await system.close()
        await asyncio.sleep(SPREAD)

    def _is_told(self, visitor: Visitor, event: Json) -> None:
        client = event["client"]
        wanted = {"name": visitor.name, "lang": f"lang of {visitor.name}", "ver": "9.9", "user": USER, "acc": ACCOUNT,
                  "kind": "Client"}  # fmt: skip
        self.equal(f"{visitor.name} in an event", {key: client.get(key) for key in wanted}, wanted)
        self.equal(f"the server of {visitor.name}", event["server"]["name"], visitor.server)
        self.equal("whether it has gone", "stop" in client, event["type"].endswith("client_disconnect"))

    def _counted(self, what: str, counts: Sequence[Msg], there: Sequence[Visitor]) -> None:
        """The last number that each server has told."""
        told = {one["server"]["name"]: one for one in map(_json, counts)}
        wanted = {name: sum(one.server == name for one in there) for name in told}
        self.equal(f"connections: {what}", {name: one["conns"] for name, one in told.items()}, wanted)
        self.equal("all of them", {name: one["total_conns"] for name, one in told.items()}, wanted)
        missing = {one.server for one in there} - told.keys()
        self.equal(f"servers that tell of nobody: {what}", missing, set())

    async def _subscribers(self, session: Session) -> None:
        """Listeners of the system account, at all servers."""
        servers = self._servers()
        listeners = [await self.session(f"listener-{name}", name, user="sys") for name in servers]
        for at, one in enumerate(listeners):
            one.subscribe("count.all", lambda msg: None)
            one.subscribe(f"count.{at}", lambda msg: None)
            one.subscribe("count.* group", lambda msg: None)
        await self._settled(*listeners)
        many = len(servers)
        cases = {
            "count.all": 2 * many, "count.0": 1 + many, "count.*": 3 * many, "count.>": 3 * many,
            "count.all group": many, "count.all other": 0, "count.none": many, "count.none.at.all": 0, "a..b": 0,
        }  # fmt: skip
        asked = [case for case in cases for _ in range(EACH)]
        chosen = self.rng.choice(listeners)
        for one, question in (*((chosen, case) for case in asked), *((self.rng.choice(listeners), x) for x in cases)):
            answer = (await one.request("$SYS.DEBUG.SUBSCRIBERS", question.encode())).payload
            self.equal(f"subscribers of {question!r}", answer, b"%d" % cases[question])
        for one in listeners:
            await one.close()

    async def _questions(self, session: Session) -> None:
        """Answers of servers about an account and its clients, before and after one is sent away."""
        system = await self.session("system", self.rng.choice(self._servers()), user="sys")
        visitors = [await self._visitor(name, f"q{at}") for at, name in enumerate(self._servers() * 2)]
        for one in visitors:
            await self._acts(one)
        await self._listed(system, visitors)
        chosen = self.rng.choice(visitors)
        rows = await self._rows(system, chosen.server)
        cid = rows[chosen.name]["cid"]
        await self._answers(system, f"$SYS.REQ.SERVER.{self._id(chosen.server)}.LDM", {"cid": cid})
        self.require(b'"ldm":true' in chosen.line.heard.replace(b" ", b""), f"{chosen.name} is not told to leave")
        await self._answers(system, f"$SYS.REQ.SERVER.{self._id(chosen.server)}.KICK", {"cid": cid})
        self.equal("the end of who is kicked", chosen.line.over, True)
        closed = (await self._rows(system, chosen.server, {"state": 1}))[chosen.name]
        wanted = chosen.told() | {"reason": "Kicked", "cid": cid, "lang": f"lang of {chosen.name}"}
        self.equal("who is kicked", {key: closed[key] for key in wanted}, wanted)
        visitors.remove(chosen)
        await self._listed(system, visitors)
        await self._refusals(system, chosen.server, cid)
        for one in visitors:
            one.line.go(at_once=True)
        await system.close()

    async def _rows(self, system: Session, server: str, options: Json | None = None) -> dict[str, Json]:
        """Connections of the account at a server, by name."""
        body = {"acc": ACCOUNT, "auth": True, **(options or {})}
        found = await self._answers(system, f"$SYS.REQ.SERVER.{self._id(server)}.CONNZ", body)
        return {one["name"]: one for one in found[server]["data"]["connections"]}

    async def _listed(self, system: Session, there: Sequence[Visitor]) -> None:
        """The same clients, by every question that lists or counts them."""
        connz = await self._answers(system, "$SYS.REQ.SERVER.PING.CONNZ", {"acc": ACCOUNT, "auth": True})
        by_account = await self._answers(system, f"$SYS.REQ.ACCOUNT.{ACCOUNT}.CONNZ")
        subsz = await self._answers(system, f"$SYS.REQ.ACCOUNT.{ACCOUNT}.SUBSZ", {"limit": 10_000})
        info = await self._answers(system, f"$SYS.REQ.ACCOUNT.{ACCOUNT}.INFO")
        conns = await self._answers(system, f"$SYS.REQ.ACCOUNT.{ACCOUNT}.CONNS")
        statz = await self._answers(system, "$SYS.REQ.ACCOUNT.PING.STATZ", {"accounts": [ACCOUNT]})
        for name in self._servers():
            own = sorted((one for one in there if one.server == name), key=lambda one: one.name)
            rows = {one["name"]: one for one in connz[name]["data"]["connections"]}
            self.equal(f"clients of {name}", sorted(rows), [one.name for one in own])
            for one in own:
                wanted = one.told() | {"authorized_user": USER, "account": ACCOUNT, "version": "9.9"}
                self.equal(f"{one.name} at {name}", {key: rows[one.name].get(key) for key in wanted}, wanted)
            told = by_account[name]["data"]["connections"]
            self.equal(f"clients of the account at {name}", sorted(one["name"] for one in told), sorted(rows))
            listed = [one["subject"] for one in subsz[name]["data"].get("subscriptions_list", ()) if one["cid"]]
            self.equal(f"subscriptions at {name}", sorted(listed), sorted(s for one in own for s in one.subscribed))
            self.equal(f"INFO of {name}", info[name]["data"]["client_connections"], len(own))
            counted = [conns[name]["conns"]] if name in conns else []
            self.equal(f"CONNS of {name}", counted, [len(own)] if own else [])
            stats = [one["conns"] for one in statz[name]["data"]["account_statz"]] if name in statz else []
            self.equal(f"STATZ of {name}", stats, [len(own)] if own else [])

    async def _refusals(self, system: Session, server: str, cid: int) -> None:
        """Questions that are wrong."""
        own = f"$SYS.REQ.SERVER.{self._id(server)}"
        for subject, body, code, text in (
            (f"{own}.KICK", {"cid": cid}, 500, "no such client or leafnode id"),
            (f"{own}.LDM", {"cid": cid}, 500, "no such client id"),
            (f"{own}.KICK", {}, 500, "no such client or leafnode id"),
            (f"{own}.CONNZ", {"sort": "size"}, 500, "invalid sorting option: size"),
            (f"{own}.CONNZ", {"sort": "stop"}, 500, "sort by stop only valid on closed connections"),
            (f"{own}.CONNZ", {"filter_subject": "a"}, 500, "filter by subject only valid with account filtering"),
            (f"{own}.CONNZ", {"limit": "all"}, 400, "json: cannot unmarshal string into field limit of type number"),
            (f"{own}.CONNZ", {"auth": 1}, 400, "json: cannot unmarshal number into field auth of type bool"),
            (f"{own}.ACCOUNTZ", {"account": "NONE"}, 500, "Account NONE does not exist"),
            (f"{own}.SUBSZ", {"test": "a.*"}, 500, "invalid test subject, must be valid publish subject: a.*"),
            ("$SYS.REQ.ACCOUNT.NONE.INFO", None, 500, "Account NONE does not exist"),
        ):
            found = await self._answers(system, subject, body)
            errors = {(one["error"]["code"], one["error"]["description"]) for one in found.values()}
            self.equal(f"{subject} with {body}", errors, {(code, text)})

    async def _filters(self, session: Session) -> None:
        """Which servers answer a question that names some, and what an account is told of itself."""
        servers = self._servers()
        system = await self.session("system", self.rng.choice(servers), user="sys")
        one, some = self.rng.choice(servers), [name for name in servers if "1" in name]
        tagged = [name for name in servers if "disk:ssd" in self.deployment.servers[name].tags]
        ip = self.deployment.servers[one].ip
        for options, wanted in (
            ({}, servers), ({"server_name": one, "exact_match": True}, [one]), ({"server_name": "1"}, some),
            ({"server_name": "1", "exact_match": True}, []), ({"cluster": "sim"}, servers),
            ({"cluster": "si"}, servers), ({"cluster": "si", "exact_match": True}, []), ({"cluster": "other"}, []),
            ({"host": ip, "exact_match": True}, [one]), ({"tags": ["disk:ssd"]}, tagged),
            ({"tags": ["disk:ssd", "none"]}, []), ({"domain": "hub"}, []),
        ):  # fmt: skip
            for kind in self.rng.sample(["IDZ", "VARZ", "JSZ", "SUBSZ"], 1):
                got: list[Msg] = []
                inbox = system.new_inbox()
                sid = system.subscribe(inbox, got.append)
                system.publish(f"$SYS.REQ.SERVER.PING.{kind}", json.dumps(options).encode(), inbox)
                await self._settled(system)
                system.unsubscribe(sid)
                names = sorted(_name(json.loads(msg.payload)) for msg in got)
                self.equal(f"who answers {kind} with {options}", names, wanted)
        visitor = await self._visitor(one, "self")
        await self._acts(visitor)
        own = await self.session("own", one, user=USER)
        found = await self._answers(own, "$SYS.REQ.SERVER.PING.CONNZ")
        names = sorted(row["name"] for of in found.values() for row in of["data"]["connections"])
        self.equal("clients that an account is told of", names, sorted([own.name, "self"]))
        info = json.loads((await own.request("$SYS.REQ.USER.INFO", b"")).payload)["data"]
        told = {key: info.get(key) for key in ("user", "account", "permissions", "expires")}
        self.equal("who one is", told, {"user": USER, "account": ACCOUNT, "permissions": None, "expires": None})
        self._health_of(await self._answers(system, "$SYS.REQ.SERVER.PING.HEALTHZ", {"account": "NONE"}), 404)
        self._health_of(await self._answers(system, "$SYS.REQ.SERVER.PING.HEALTHZ", {"stream": "S"}), 400)
        self._health_of(await self._answers(system, "$SYS.REQ.SERVER.PING.HEALTHZ", {"consumer": "C"}), 400)
        missing = {"account": ACCOUNT, "stream": "NONE"}
        self._health_of(await self._answers(system, "$SYS.REQ.SERVER.PING.HEALTHZ", missing), 404)
        self._health_of(await self._answers(system, "$SYS.REQ.SERVER.PING.HEALTHZ", {"account": ACCOUNT}), 200)
        visitor.line.go(at_once=False)
        await own.close()
        await system.close()

    def _health_of(self, told: dict[str, Json], wanted: int) -> None:
        """Servers without JetStream are asked for nothing but the parameters."""
        for name, one in told.items():
            status = wanted if self.deployment.servers[name].jetstream or wanted == 400 else 200
            self.equal(f"the health of {name}", one["data"]["status_code"], status)

    async def _leaves(self, session: Session) -> None:
        """A server ends in order, or sends its clients away first; it tells so, and comes back under another id."""
        name = self.rng.choice(self._servers())
        others = [other for other in self._servers() if other != name]
        system = await self.session("system", *others[:1], user="sys")
        ends, ducks = (self._listen(system, f"$SYS.SERVER.*.{what}") for what in ("SHUTDOWN", "LAMEDUCK"))
        await self._settled(system)
        visitor, machine = await self._visitor(name, "sent away"), self.deployment.machines[name]
        before, slowly = self._id(name), self.rng.random() < 0.5
        self.elects()
        self.deployment.off.add(name)
        machine.signal(signal.SIGUSR2 if slowly else signal.SIGTERM)
        try:
            await self.until(f"{name} has ended", lambda: _now(not machine.runs), AWAY)
            await asyncio.sleep(SPREAD)
            self.equal("who is said to have ended", [_server(msg) for msg in ends], [(name, before)])
            self.equal("who is said to go away", [_server(msg) for msg in ducks], [(name, before)] if slowly else [])
            self.equal("the client of who has ended", visitor.line.over, True)
            found = await self._answers(system, "$SYS.REQ.SERVER.PING")
            active = {other: found[other]["statsz"]["active_servers"] for other in others}
            self.equal("servers that are counted", active, dict.fromkeys(others, len(others)))
        finally:
            self.deployment.off.discard(name)
            start(machine)
        await self.until(f"{name} serves again", lambda: _now(machine.ready), AWAY)
        await asyncio.sleep(SPREAD)
        found = await self._answers(system, "$SYS.REQ.SERVER.PING")
        self.equal("servers that are back", sorted(found), sorted([*others, name]))
        self.equal("whether the id is another one", found[name]["server"]["id"] != before, True)
        await system.close()


def _json(msg: Msg) -> Json:
    found: Json = json.loads(msg.payload)
    return found


def _numbers(msg: Msg) -> tuple[str, int]:
    event = _json(msg)
    return event["server"]["name"], event["conns"]


def _name(answer: Json) -> str:
    """IDZ has no `server`."""
    return str(answer["name"] if "name" in answer else answer["server"]["name"])


def _server(msg: Msg) -> tuple[str, str]:
    block = _json(msg)
    return block["name"], block["id"]


async def _now(is_so: bool) -> bool:
    return is_so
