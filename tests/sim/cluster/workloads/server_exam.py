"""Exam of what administrators ask of servers and of where a stream is: what is refused, with its code, and changes
nothing; what is done, and what a server is then."""

from __future__ import annotations

from typing import Any

from testkit.sim.session import Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.invariants import jetstream_of, newest_meta
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.replicas import replicas

STREAM = "PLACED"
BAD, GONE, NO_MEMBER, NOT_ITS, NO_PLACE, NO_PEERS = 10003, 10059, 10044, 10040, 10075, 10005
NO_MEMBER_OF = 10040
REFUSED, NEEDED, NO_CHANGE, NO_CONSUMER = 10224, 10041, 10129, 10014
"""Codes of errors."""
NOBODY = "nobody"


class ServerExam(Exam):
    name = "exam-servers"
    weight = 0
    judges = (Exact,)
    promises = (
        "a server that holds what nobody else has room for is not emptied, and one that is connected not removed",
        "who leads next is the server that is named, or has the tags that are asked for; else nobody takes over",
        "a stream leaves the server that is named for another one, and is refused where there is none",
    )

    system: Session | None = None

    async def check(self) -> None:
        if "system_account: SYS" not in self.deployment.servers[self.members[0]].config:
            return
        await self.examine([self._unknown, self._meta, self._emptied, self._moves, self._leads, self._consumers], 5)

    async def _codes(self, session: Session, *rows: tuple[str, Any, int]) -> None:
        for subject, body, code in rows:
            self.equal(f"{subject} {body}", await self.refused(session, subject, body), code)

    async def _administrator(self) -> Session:
        if self.system is None:
            self.system = await self.session("administrator", *self.members, user="sys")
        return self.system

    async def _placed(self, session: Session, size: int = 3) -> list[str]:
        """Servers that have the stream, its leader first."""
        await self.create(session, STREAM, subjects=["placed"], num_replicas=size)
        await self.store(session, "placed", "before")
        return await self._where(session)

    async def _where(self, session: Session) -> list[str]:
        cluster = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["cluster"]
        return [cluster["leader"], *(one["name"] for one in cluster.get("replicas") or ())]

    async def _ends(self, session: Session) -> None:
        """All that was stored is there."""
        await self.store(session, "placed", "after")
        texts = [msg.payload.decode() for msg in (await self.contents(session, STREAM)).values()]
        self.equal("its messages", texts, ["before", "after"])
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _unknown(self, session: Session) -> None:
        """Asks of servers, streams and consumers that are not there, and names none."""
        system = await self._administrator()
        held = await self._placed(session)
        left = [name for name in self.members if name not in held]
        of = f"ACCOUNT.STREAM.MOVE.APP.{STREAM}"
        await self._codes(
            system,
            ("SERVER.EVACUATE", {"peer": NOBODY}, NO_MEMBER),
            ("SERVER.EVACUATE", {"peer_id": NOBODY, "cancel": True}, NO_MEMBER),
            ("SERVER.EVACUATE", {}, BAD),
            ("SERVER.REMOVE", {"peer_id": NOBODY}, NO_MEMBER),
            ("META.RESCUE", {}, BAD),
            ("META.RESCUE", None, BAD),
            ("META.RESCUE", {"quorum_needed": 0}, REFUSED),
            ("META.RESCUE", {"quorum_needed": 99}, REFUSED),
            (of, {"server": NOBODY}, NO_MEMBER),
            (of, {"server": held[0], "domain": "else"}, NO_MEMBER),
            (of, {"server": held[0], "cluster": "else"}, NO_MEMBER),
            ("ACCOUNT.STREAM.MOVE.APP.NONE", {"server": held[0]}, GONE),
            ("ACCOUNT.STREAM.MOVE.NOBODY.ANY", {"server": held[0]}, GONE),
            (f"ACCOUNT.STREAM.CANCEL_MOVE.APP.{STREAM}", None, NO_CHANGE),
            ("ACCOUNT.STREAM.CANCEL_MOVE.APP.NONE", None, GONE),
            *((of, {"server": name}, NOT_ITS) for name in left[:1]),
        )
        await self._codes(
            session,
            (f"STREAM.PEER.REMOVE.{STREAM}", {}, BAD),
            (f"CONSUMER.PEER.REMOVE.{STREAM}.none", {}, BAD),
            *((f"STREAM.PEER.REMOVE.{STREAM}", {"peer": name}, NOT_ITS) for name in left[:1]),
        )
        self.equal("where it is", sorted(await self._where(session)), sorted(held))
        await self._ends(session)

    async def _meta(self, session: Session) -> None:
        """The view of the meta leader: servers with JetStream are named, others are not known."""
        system = await self._administrator()
        leader = self._meta_leader()
        none = {"placement": {"tags": ["nobody:has"]}}
        await self._codes(
            system,
            ("META.LEADER.STEPDOWN", {"placement": {"preferred": leader}}, NO_PEERS),
            ("META.LEADER.STEPDOWN", {"placement": {"cluster": "else"}}, NO_PEERS),
            ("META.LEADER.STEPDOWN", none, NO_PEERS),
        )
        self.equal("who leads", self._meta_leader(), leader)
        wanted = self.rng.choice([name for name in self.members if name != leader and self._votes(name)])
        self.elects()
        await self.ask(system, "META.LEADER.STEPDOWN", {"placement": {"preferred": wanted}})
        await self.until(f"{wanted} leads", lambda: self._is(lambda: self._meta_leader() == wanted), 10.0)
        await self.create(session, STREAM, subjects=["placed"], num_replicas=1)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _emptied(self, session: Session) -> None:
        """With no more servers than replicas none can be emptied; with more one can, and is put back into use."""
        system = await self._administrator()
        held = await self._placed(session)
        name = held[-1]
        refusal = await self.refused(system, "SERVER.REMOVE", {"peer": name})
        self.equal("a server that holds something is removed", refusal, NEEDED)
        if self._widest() >= len(self.members):
            refusal = await self.refused(system, "SERVER.EVACUATE", {"peer": name})
            self.equal("a server that is needed", refusal, NEEDED)
            answer = await self.ask(system, "SERVER.EVACUATE", {"peer": name, "cancel": True})
            self.equal("of one that is in use", (answer["draining"], answer["assigned"] > 0), (False, True))
        else:
            self.elects()
            self.deployment.emptying = self.deployment.machines[name].peer_id
            answer = await self.ask(system, "SERVER.EVACUATE", {"peer": name})
            told = answer["name"], answer["draining"], answer["online"]
            self.equal("of one that is emptied", told, (name, True, True))
            wide = {"name": "WIDE", "num_replicas": len(self.members)}
            code = await self.refused(session, "STREAM.CREATE.WIDE", wide)
            self.equal("a stream that needs it as well", code, NO_PEERS)
            await self.until("the stream leaves it", lambda: self._left(session, name), 60.0)
            self.deployment.emptying = ""
            await self.until("it is put back", lambda: self._put_back(system), 30.0)
        await self._ends(session)

    def _widest(self) -> int:
        """Servers of the stream that has most, which may be one of another workload."""
        return max(len(one.peers) for one in newest_meta(self.deployment).all_assignments())

    async def _put_back(self, system: Session) -> bool:
        drained = [node.peer for node in newest_meta(self.deployment).nodes.values() if node.draining]
        for peer in drained:
            self.deployment.put_back.add(peer)
            await system.api("SERVER.EVACUATE", {"peer_id": peer, "cancel": True})
        return not drained

    async def _left(self, session: Session, name: str) -> bool:
        return name not in await self._where(session) and name not in replicas(self.deployment, STREAM)

    async def _moves(self, session: Session) -> None:
        """A stream leaves a server."""
        system = await self._administrator()
        held = await self._placed(session, self.rng.choice([1, 3]))
        name = self.rng.choice(held)
        left = [one for one in self.members if one not in held]
        of = f"ACCOUNT.STREAM.MOVE.APP.{STREAM}"
        nowhere = {"server": name, "tags": ["nobody:has"]}
        self.equal("a place that is none", await self.refused(system, of, nowhere), NO_PEERS)
        if left:
            self.elects()
            body = self.rng.choice([{"server": name}, {"server": name, "cluster": "sim"}])
            await self.ask(system, of, body)
            await self.until(f"it leaves {name}", lambda: self._left(session, name), 60.0)
        else:
            self.equal("where there is no other", await self.refused(system, of, {"server": name}), NO_PEERS)
            refusal = await self.refused(session, f"STREAM.PEER.REMOVE.{STREAM}", {"peer": name})
            self.equal("a replica that has no other place", refusal, NO_PLACE)
        await self._ends(session)

    async def _leads(self, session: Session) -> None:
        """The leader of a stream hands over to whom it should, or to nobody."""
        held = await self._placed(session)
        subject = f"STREAM.LEADER.STEPDOWN.{STREAM}"
        leader = held[0]
        await self._codes(
            session,
            (subject, {"placement": {"preferred": leader}}, NO_PEERS),
            (subject, {"placement": {"preferred": NOBODY}}, NO_PEERS),
            (subject, {"placement": {"cluster": "else"}}, NO_PEERS),
            (subject, {"placement": {"tags": ["nobody:has"]}}, NO_PEERS),
        )
        self.equal("who leads", (await self._where(session))[0], leader)
        wanted = self.rng.choice(held[1:])
        self.elects()
        await self.ask(session, subject, {"placement": {"preferred": wanted}})

        async def leads() -> bool:
            return (await self._where(session))[0] == wanted

        await self.until(f"{wanted} leads the stream", leads, 10.0)
        await self._ends(session)

    async def _consumers(self, session: Session) -> None:
        """The same for who delivers a consumer's messages; one of a single replica may leave a server."""
        held = await self._placed(session)
        await self.create_consumer(session, STREAM, "alone", num_replicas=1)
        await self.create_consumer(session, STREAM, "all")
        step, leave = (f"CONSUMER.{kind}.{STREAM}" for kind in ("LEADER.STEPDOWN", "PEER.REMOVE"))
        await self._codes(
            session,
            (f"{step}.all", {"placement": {"preferred": NOBODY}}, NO_PEERS),
            (f"{step}.all", {"placement": {"tags": ["nobody:has"]}}, NO_PEERS),
            (f"{leave}.all", {"peer": NOBODY}, NO_MEMBER_OF),
            (f"{leave}.alone", {"peer": NOBODY}, NO_MEMBER_OF),
            (f"{leave}.all", {"peer": held[0]}, NO_PLACE),
            (f"{leave}.none", {"peer": held[0]}, NO_CONSUMER),
        )
        owner = await self._owner(session, "alone")
        await self.ask(session, f"{leave}.alone", {"peer": owner})

        async def moved() -> bool:
            return await self._owner(session, "alone") not in {"", owner}

        await self.until(f"it leaves {owner}", moved, 10.0)
        got = await self.take(session, STREAM, "alone", {"batch": 1, "expires": 2_000_000_000})
        self.equal("what it delivers then", [msg.payload for msg in got], [b"before"])
        await self._ends(session)

    async def _owner(self, session: Session, name: str) -> str:
        return str((await self.ask(session, f"CONSUMER.INFO.{STREAM}.{name}"))["cluster"].get("leader", ""))

    # ---- who is who

    def _meta_leader(self) -> str:
        for machine in self.deployment.running:
            jetstream = jetstream_of(machine)
            if jetstream is not None and jetstream.meta.leading and machine.name in self.members:
                return machine.name
        return ""

    def _votes(self, name: str) -> bool:
        machine = self.deployment.machines[name]
        jetstream = jetstream_of(machine)
        group = None if jetstream is None else jetstream.meta.group
        return group is not None and group.me in group.log.config.voters

    async def _is(self, so: Any) -> bool:
        return bool(so())
