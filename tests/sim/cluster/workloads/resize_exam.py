"""The exam of resizes: a stream gets other servers, other numbers of them and other settings, one update right after
another, while it is written into and the meta group changes hands."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

from testkit.sim.deployment import Deployment
from testkit.sim.session import ApiError, Disconnected, NoResponders, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.invariants import jetstream_of
from tests.sim.cluster.judges import Exact, Log
from tests.sim.cluster.replicas import replicas
from tests.sim.cluster.server_changes import meta_stepdown
from tests.sim.cluster.workload import PASSING

STREAM, SUBJECT = "RESIZED", "resized.a"
NO_PEERS, MOVES, CHANGES, NOT_ITS, NO_PLACE = 10005, 10124, 10226, 10040, 10075
"""Codes of errors."""
SIDES = {1: ("side:left",), 2: ("side:right",), 0: ("side:left", "side:right")}
"""Tags by the number of a server, modulo 3: each side has two of three servers."""
UPDATES, RACES, MESSAGES = 12, 6, 20
CROWD = 12
"""Streams on one server."""
BALANCED = 60.0
"""Seconds in which replicas have moved for balance: servers have to be steady for half of them."""
SETTLED = 60.0
"""Seconds within which a stream is where it should be, as a whole."""
AGAIN = 30.0
"""Seconds for which an update is asked for again that nobody has answered."""
SLOW = 10.0
"""Factor by which disks are slower while two changes race: what is decided takes some milliseconds then."""


class ResizeExam(Exam):
    name = "exam-resizes"
    weight = 0
    judges = (Log, Exact)
    promises = (
        "of updates that follow each other the last one holds: settings, number of replicas, tags of their servers",
        "while a stream changes its servers it takes settings and messages, and is not sent elsewhere",
        "streams move for balance where their placement permits it, and others stay",
        "of two changes of a stream's servers that are asked for at once, each is carried out as a whole, or refused",
    )

    @classmethod
    def before(cls, deployment: Deployment, rng: Random) -> None:
        """Servers have a side, and a tag of their own, unless some have tags already."""
        if any(server.tags for server in deployment.servers.values()):
            return
        for at, (name, server) in enumerate(deployment.servers.items(), 1):
            deployment.servers[name] = replace(server, tags=(f"at:{name}", *SIDES[at % 3]))

    async def check(self) -> None:
        if len(self.members) < 3 or not all(self._tags(name, "side:") for name in self.members):
            return
        await self.examine([self._updates, self._joins, self._leaves, self._races, self._balance], 3)

    def _tags(self, name: str, prefix: str = "") -> list[str]:
        return [tag for tag in self.deployment.servers[name].tags if tag.startswith(prefix)]

    def _fitting(self, tags: list[str]) -> list[str]:
        return [name for name in self.members if set(tags) <= set(self._tags(name))]

    # ---- the stream

    async def _begin(self, session: Session, size: int) -> None:
        self.elects()
        self.log = Log()
        self.clients = [await self.session(f"at-{name}", name) for name in self.members]
        await self.create(session, STREAM, subjects=[SUBJECT], num_replicas=size)
        for at in range(MESSAGES):
            await self.store_logged(self.log, session, SUBJECT, f"before-{at}")
        self.config = await self._told(session)

    async def _end(self, session: Session, *others: dict[str, Any]) -> None:
        """All is as the last update said, or one of `others`; all messages are everywhere."""
        await self._settled(session, *others)
        last = max(self.log.acked)
        await self.everywhere(STREAM, last, lambda at, found: self.stored(self.log, at, found), nodes=(*self.members,))
        await self.ask(session, f"STREAM.DELETE.{STREAM}")
        for one in self.clients:
            await one.close()

    async def _settled(self, session: Session, *others: dict[str, Any]) -> None:
        """So many servers as the stream is to have, and no other ones, have it as a whole, and any server says so."""
        told = await self._told(session)
        self.equal("the configuration in the end", told, next((one for one in others if one == told), self.config))
        self.config = told
        for client in self.clients:
            self.equal("the configuration, as any server tells", await self._told(client), told)
        wrong = [""]

        async def well() -> bool:
            wrong[0] = await self._wrong(self.rng.choice(self.clients))
            return not wrong[0]

        try:
            await self.until("the stream is whole, and where it should be", well, SETTLED)
        finally:
            self.note(f"{STREAM}: {wrong[0]}")

    async def _wrong(self, session: Session) -> str:
        cluster = (await session.api(f"STREAM.INFO.{STREAM}"))["cluster"]
        others = cluster.get("replicas") or []
        named = {cluster.get("leader", ""), *(one["name"] for one in others)}
        behind = [one for one in others if not one["current"] or one.get("offline") or one.get("lag")]
        if len(named) != self.config["num_replicas"] or "" in named or behind:
            return f"INFO has {sorted(named)}, {behind} are not current"
        if there := named ^ set(replicas(self.deployment, STREAM)):
            return f"INFO has {sorted(named)}, and replicas are elsewhere: {sorted(there)}"
        if strays := named - set(self._fitting(self._wanted_tags(self.config))):
            return f"{sorted(strays)} have not the tags of {self.config.get('placement')}"
        servers = [jetstream_of(self.deployment.machines[name]) for name in self.members]
        meta = max((one.meta.machine for one in servers if one is not None), key=lambda one: one.applied_index)
        peers = next((one.peers for one in meta.all_assignments() if one.name == STREAM), ())
        assigned = {meta.nodes[peer].name for peer in peers}
        return "" if assigned == named else f"INFO has {sorted(named)}, assigned are {sorted(assigned)}"

    async def _told(self, session: Session) -> dict[str, Any]:
        """The configuration, without what servers put into its metadata."""
        found: dict[str, Any] = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["config"]
        own = {key: value for key, value in found["metadata"].items() if not key.startswith("_nats.")}
        return {**found, "metadata": own}

    def _wanted_tags(self, config: dict[str, Any]) -> list[str]:
        return list((config.get("placement") or {}).get("tags") or ())

    # ---- requests

    async def _update(self, wanted: dict[str, Any]) -> int:
        """The code of the answer, 0 for none. Whoever is not answered asks again: in the end the stream has this
        configuration, or the one that it had, and `self.config` says which."""
        uncertain, end = False, self.now + AGAIN
        while True:
            try:
                await self.rng.choice(self.clients).api(f"STREAM.UPDATE.{STREAM}", wanted)
            except ApiError as error:
                if error.code < 500:
                    if uncertain:  # the first attempt may be what is under way
                        told = await self._told(self.clients[0])
                        self.require(told in (wanted, self.config), f"{told} is neither {wanted} nor {self.config}")
                        self.config = told
                        return 0 if told == wanted else error.err_code
                    return error.err_code
                self.note(f"no update: {error}")
            except (TimeoutError, Disconnected, NoResponders) as error:
                self.note(f"no update: {error!r}")
            else:
                self.config = wanted
                return 0
            uncertain = True
            self.require(self.now < end, f"nobody answers for {AGAIN} s")
            await asyncio.sleep(0.2)

    def _changed(self, step: int) -> dict[str, Any]:
        """Another configuration. Replicas and placement cannot change at once."""
        wanted = dict(self.config)
        kinds = self.rng.sample(["replicas", "replicas", "description", "subjects", "metadata", "max_msgs"], 2)
        if self.rng.random() < 0.25:
            kinds = ["placement", *(kind for kind in kinds if kind != "replicas")]
        for kind in kinds:
            if kind == "replicas":
                wanted["num_replicas"] = self.rng.choice([1, 3, 3] if wanted["num_replicas"] == 1 else [1, 1, 2, 3])
            elif kind == "placement":
                tags = self.rng.choice([[], ["side:left"], ["side:right"]])
                wanted["placement"] = {"cluster": "sim", "tags": tags} if tags else None
            elif kind == "subjects":
                wanted["subjects"] = [SUBJECT, *(f"resized.{step}.{at}" for at in range(self.rng.randint(0, 2)))]
            elif kind == "metadata":
                wanted["metadata"] = {"step": str(step)}
            else:
                wanted[kind] = f"step {step}" if kind == "description" else 100_000 + step
        return {key: value for key, value in wanted.items() if value is not None}

    # ---- parts

    async def _updates(self, session: Session) -> None:
        """One after the other, as fast as they are answered, while messages come and the meta group changes hands."""
        await self._begin(session, self.rng.choice([1, 3]))
        writes = asyncio.ensure_future(self._write())
        try:
            for step in range(UPDATES):
                wanted, before = self._changed(step), self.config
                handed = asyncio.ensure_future(self._hand_over()) if self.rng.random() < 0.3 else None
                code = await self._update(wanted)
                if handed is not None:
                    await handed
                self._permitted(step, code, before, wanted)
                told = await self._told(self.rng.choice(self.clients))
                self.equal(f"the configuration after update {step}, which had {code}", told, self.config)
                if self.rng.random() < 0.3:
                    await asyncio.sleep(self.rng.uniform(0.0, 0.5))
        finally:
            writes.cancel()
            await asyncio.wait([writes])
        if not writes.cancelled():
            writes.result()
        await self._end(session)

    def _permitted(self, step: int, code: int, before: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Settings are always taken. Other servers are refused where there are not enough, or while a move lasts."""
        moves = before.get("placement") != wanted.get("placement")
        scales = before["num_replicas"] != wanted["num_replicas"]
        room = len(self._fitting(self._wanted_tags(wanted))) >= wanted["num_replicas"]
        permitted = {0} if room or not (moves or scales) else {NO_PEERS}
        permitted |= {MOVES, CHANGES} if moves or scales else set()
        self.count(f"resizes: {code}")
        self.require(code in permitted, f"update {step} has {code}, of {permitted}: {before} to {wanted}")

    async def _write(self) -> None:
        session, count = self.rng.choice(self.clients), 0
        while True:
            await self.store_logged(self.log, session, SUBJECT, f"meanwhile-{count}")
            count += 1
            await asyncio.sleep(self.rng.expovariate(20.0))

    async def _hand_over(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, 0.02))
        await meta_stepdown(self.deployment, self.rng)

    async def _joins(self, session: Session) -> None:
        """While a replica is added that stands still, the stream takes settings and numbers, and no other place."""
        waits = self._follower()
        if waits is None or len(self.members) not in (3, 5):
            return None
        await self._begin(session, 1)
        if waits.name in replicas(self.deployment, STREAM):
            return await self._end(session)
        self.clients = [one for one in self.clients if not one.name.endswith(f"-{waits.name}")]
        waits.pause()
        try:
            self.equal("more replicas", await self._update(self.config | {"num_replicas": len(self.members)}), 0)
            self.equal("a place", await self._update(self.config | {"placement": {"cluster": "sim"}}), CHANGES)
            self.equal("settings", await self._update(self.config | {"description": "meanwhile"}), 0)
            await self.store_logged(self.log, session, SUBJECT, "meanwhile")
        finally:
            waits.resume()
        await self._settled(session)
        self.equal("a place", await self._update(self.config | {"placement": {"cluster": "sim"}}), 0)
        self.equal("one again", await self._update(self.config | {"num_replicas": 1}), 0)
        return await self._end(session)

    async def _leaves(self, session: Session) -> None:
        """While a stream is on its way to a server that stands still, it takes settings, and no other number."""
        waits = self._follower()
        if waits is None or len(self._fitting([f"at:{waits.name}"])) != 1:
            return None
        await self._begin(session, 1)
        if waits.name in replicas(self.deployment, STREAM):
            return await self._end(session)
        self.clients = [one for one in self.clients if not one.name.endswith(f"-{waits.name}")]
        there = {"placement": {"tags": [f"at:{waits.name}"]}}
        waits.pause()
        try:
            self.equal("a place", await self._update(self.config | there), 0)
            self.equal("a number", await self._update(self.config | {"num_replicas": 2}), MOVES)
            without = {key: value for key, value in self.config.items() if key != "placement"}
            self.equal("no place", await self._update(without), MOVES)
            self.equal("settings", await self._update(self.config | {"max_msgs": 1000}), 0)
            await self.store_logged(self.log, session, SUBJECT, "meanwhile")
        finally:
            waits.resume()
        await self._settled(session)
        self.equal("a number of servers", await self._update(self.config | {"num_replicas": 2}), NO_PEERS)
        return await self._end(session)

    def _follower(self) -> Any:
        """A server that leads nothing and may stand still, if there is one."""
        for name in self.rng.sample(self.members, len(self.members)):
            machine = self.deployment.machines[name]
            jetstream = jetstream_of(machine)
            leads = jetstream is None or jetstream.meta.leading
            if not leads and not any(one.leading for one in jetstream.replicas.values()):
                return machine
        return None

    async def _races(self, session: Session) -> None:
        """A replica is to leave its server at the moment at which the stream gets another number of them."""
        most = min(len(self.members) - 1, 3)
        await self._begin(session, most)
        for machine in self.deployment.machines.values():
            machine.disk.pace = SLOW
        try:
            for _ in range(RACES):
                await self._race(session, self.rng.randint(1, most))
        finally:
            for machine in self.deployment.machines.values():
                machine.disk.pace = 1.0
        await self._end(session)

    async def _balance(self, session: Session) -> None:
        """Streams that were placed on one server, and half of them are not any more: those move for balance, the others
        stay."""
        self.elects()
        self.clients = [session]
        crowded = self.rng.choice([name for name in self.members if f"at:{name}" in self._tags(name)])
        place = {"placement": {"tags": [f"at:{crowded}"]}}
        names = [f"{STREAM}-{at}" for at in range(CROWD)]
        for name in names:
            await self.create(session, name, subjects=[name], num_replicas=1, **place)
        free, bound = names[: CROWD // 2], names[CROWD // 2 :]
        for name in free:
            config = (await self.ask(session, f"STREAM.INFO.{name}"))["config"]
            del config["placement"]
            await self.ask(session, f"STREAM.UPDATE.{name}", config)
        await asyncio.sleep(BALANCED)
        left = [name for name in free if crowded not in replicas(self.deployment, name)]
        self.count("resizes: moved for balance", len(left))
        self.require(bool(left), f"none of {len(free)} streams has left {crowded}, which has the most")
        allowed = set(self._fitting([f"at:{crowded}"]))
        strays = [name for name in bound if not set(replicas(self.deployment, name)) <= allowed]
        self.equal(f"streams that are to be on {crowded}, and are elsewhere", strays, [])
        for name in names:
            await self.ask(session, f"STREAM.DELETE.{name}")

    async def _race(self, session: Session, size: int) -> None:
        cluster = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["cluster"]
        here = [cluster["leader"], *(one["name"] for one in cluster.get("replicas") or ())]
        victim, before = self.rng.choice(here), self.config["num_replicas"]
        ahead = self.rng.uniform(-0.04, 0.02)  # an update asks the stream's leader first
        removal = asyncio.ensure_future(self._removed(victim, max(0.0, -ahead)))
        await asyncio.sleep(max(0.0, ahead))
        code = await self._update(self.config | {"num_replicas": size})
        removed = await removal
        self.count(f"resizes: raced, {code} and {removed}")
        self.require(code in (0, CHANGES), f"{size} replicas instead of {before}: {code}")
        self.require(removed in (0, CHANGES, NOT_ITS, NO_PLACE, -1), f"the removal of {victim} has {removed}")
        await self._settled(session)
        if removed == 0 and size <= before:
            self.equal(f"{victim}, which was left, has a replica", victim in replicas(self.deployment, STREAM), False)

    async def _removed(self, name: str, after: float) -> int:
        """The code of the answer; -1 where there is none."""
        await asyncio.sleep(after)
        try:
            await self.rng.choice(self.clients).api(f"STREAM.PEER.REMOVE.{STREAM}", {"peer": name})
        except ApiError as error:
            return error.err_code if error.code < 500 or error.err_code == NO_PLACE else -1
        except PASSING:
            return -1
        return 0
