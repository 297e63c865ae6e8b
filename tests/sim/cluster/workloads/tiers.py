"""Accounts that servers know from JWTs, with limits by the number of replicas (tiers), which come with a reload."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import signal
from functools import partial
from random import Random
from typing import Any, Final

from testkit.sim.deployment import Deployment
from testkit.sim.session import ApiError, Session
from testkit.twins import old_archive
from tests.signer import JETSTREAM, NO_LIMITS, ROOM, Key
from tests.sim.cluster import tokens
from tests.sim.cluster.dialogues import PING, PONG, answers
from tests.sim.cluster.judges import Exact, Log
from tests.sim.cluster.workload import PASSING, Workload, together
from tests.sim.cluster.workloads.line_exam import line_to

STREAM = "TIERED"
TOO_MANY_STREAMS, TOO_MANY_CONSUMERS, NO_TIER, ACCOUNT_FULL = 10027, 10026, 10120, 10002
"""Codes of errors."""
STREAMS: Final = {1: 3, 3: 3}
"""Streams that the account may have, by their number of replicas."""
CONSUMERS: Final = 4
DISK: Final = {1: 1_000_000, 3: 4_000_000}
"""Bytes of one replica."""
BIG: Final = 200_000
"""Bytes of a message by which a tier becomes full."""


def key(kind: str, name: str) -> Key:
    """The same each time, so that a seed replays."""
    return Key(kind, hashlib.sha256(f"{kind} {name}".encode()).digest())


class Accounts:
    """The operator's accounts, as the configuration of a server names them."""

    def __init__(self) -> None:
        self.operator = key("operator", "O")
        self.app, self.system = key("account", "APP"), key("account", "SYS")
        tiers = {
            f"R{replicas}": {
                "mem_storage": 0, "disk_storage": DISK[replicas], "streams": most, "consumer": CONSUMERS,
            }
            for replicas, most in STREAMS.items()
        }  # fmt: skip
        self.without = self._config(JETSTREAM)
        self.tiered = self._config({"tiered_limits": tiers})

    def bearer(self, name: str) -> str:
        account = self.system if name == "sys" else self.app
        return account.token(key("user", name), name, {"type": "user", **NO_LIMITS, "bearer_token": True})

    def _config(self, jetstream: dict[str, Any]) -> str:
        limits = {"app": ROOM | jetstream, "sys": ROOM}
        more = {"app": tokens.account_claims(key), "sys": {}}
        known_by = {
            account.public: self.operator.token(
                account, name, {"type": "account", "limits": limits[name], **more[name]}
            )
            for name, account in (("app", self.app), ("sys", self.system))
        }
        about = {"type": "operator", "system_account": self.system.public}
        known = ", ".join(f"{public}: {json.dumps(token)}" for public, token in known_by.items())
        return "\n".join(
            (
                f'operator: "{self.operator.token(self.operator, "O", about)}"',
                f"resolver: MEMORY\nresolver_preload {{ {known} }}",
                f'default_sentinel: "{self.bearer("app")}"',
            )
        )


class Tiers(Workload):
    name = "tiers"
    layout = "three"
    examined = False
    weight = 0
    judges = (Log, Exact)
    promises = (
        "an account with tiers has as many streams, consumers and bytes of each number of replicas as its tier says",
        "tiers that come with a reload count what was there before, and nothing acknowledged is lost meanwhile",
        "who one is and what one may do is what one's JWT says, if somebody has signed it whom the account trusts",
    )

    @classmethod
    def before(cls, deployment: Deployment, rng: Random) -> None:
        accounts = Accounts()
        Session.tokens["sys"] = accounts.bearer("sys")
        config = accounts.without if rng.random() < 0.5 else accounts.tiered
        for name, server in deployment.servers.items():
            deployment.servers[name] = dataclasses.replace(server, config=config)

    async def prepare(self) -> None:
        self.log = Log()
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["tiered.>"])
        await self.create_consumer(self.admin, STREAM, "first")

    async def work(self) -> None:
        await together(self._write(), self._reload(), self._administer())

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(5.0):
            await self.store_logged(self.log, session, "tiered.x", f"tiered-{count}")

    async def _reload(self) -> None:
        """Server after server gets the tiers."""
        tiered = Accounts().tiered
        for name in self.members:
            await asyncio.sleep(self.rng.uniform(0.0, 3.0))
            server, machine = self.deployment.servers[name], self.deployment.machines[name]
            self.deployment.servers[name] = dataclasses.replace(server, config=tiered)
            if machine.ready:
                machine.signal(signal.SIGHUP)

    async def _administer(self) -> None:
        """Streams come and go, within the tiers or beyond."""
        session = await self.session("changes")
        async for count in self.turns(1.0):
            name = f"TIEREDOF{count % 5}"
            replicas = self.rng.choice([1, 1, 3])
            try:
                await session.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "num_replicas": replicas})
                await session.js_publish(name, b"x" * 1000)
            except PASSING:
                self.count("not created")
            if self.rng.random() < 0.6:
                try:
                    await session.api(f"STREAM.DELETE.{name}")
                except PASSING:
                    self.count("not deleted")

    # ---- at the end

    async def check(self) -> None:
        tiered = Accounts().tiered
        for name, server in self.deployment.servers.items():  # also one that has joined, or has missed the signal
            self.deployment.servers[name] = dataclasses.replace(server, config=tiered)
            if self.deployment.machines[name].ready:
                self.deployment.machines[name].signal(signal.SIGHUP)
        await asyncio.sleep(2.0)
        await self.everywhere(
            STREAM, max(self.log.acked, default=0), lambda at, found: self.stored(self.log, at, found)
        )
        await self._users()
        for number in range(5):
            await self._deleted(f"TIEREDOF{number}")
        await self.insist("three", self._three)
        own = await self._streams()
        await self._consumers()
        if own < STREAMS[1] - 1:  # else all of R1 are others' by now
            await self._bytes(f"TIER1OF{own}")
            await self._archive(f"TIER1OF{own}")

    async def _users(self) -> None:
        """Users of all kinds come to some server, and one goes when its time is over."""
        name, accounts = self.rng.choice(self.members), Accounts()
        node = self.deployment.machines[name].node
        assert node is not None
        for case in tokens.cases(node.clock.time_ns() / 1e9):
            line = await line_to(self.deployment, name)
            line.say(tokens.connect(case, accounts, key, line.info["nonce"]) + case.said)
            Exact.equal(case.name, await line.answer(case.heard, ends=case.ends), case.heard)
            Exact.equal(f"the end of {case.name}", line.over, case.ends)
            line.go(at_once=True)
        late = tokens.Case("who may stay for a while", fields={"exp": node.clock.time_ns() // 10**9 + tokens.SOON})
        line = await line_to(self.deployment, name)
        line.say(tokens.connect(late, accounts, key, line.info["nonce"]) + PING)
        Exact.equal(late.name, await line.answer(PONG), PONG)
        await asyncio.sleep(tokens.SOON + 1.0)
        Exact.equal("what one hears whose time is over", (answers(line.heard), line.over), (tokens.EXPIRED, True))

    async def _three(self) -> None:
        """A fault may have left another number of replicas."""
        config = (await self.admin.api(f"STREAM.INFO.{STREAM}"))["config"]
        await self.admin.api(f"STREAM.UPDATE.{STREAM}", config | {"num_replicas": 3})

    async def _deleted(self, name: str) -> None:
        async def gone() -> bool:
            try:
                await self.admin.api(f"STREAM.DELETE.{name}")
            except ApiError as error:
                return error.err_code == 10059
            return False

        await self.until(f"{name} is gone", gone)

    async def _code(self, subject: str, body: Any) -> int:
        """Code of the error, 0 for none."""

        async def attempt() -> int:
            try:
                await self.admin.api(subject, body)
            except ApiError as error:
                if error.code >= 500:
                    raise
                return error.err_code
            return 0

        found: int = await self.insist(subject, attempt)
        return found

    async def _tier(self, replicas: int) -> dict[str, Any]:
        info = await self.insist("INFO", lambda: self.admin.api("INFO"))
        Exact.equal("tiers", sorted(info["tiers"]), sorted(f"R{number}" for number in STREAMS))
        found: dict[str, Any] = info["tiers"][f"R{replicas}"]
        Exact.equal("streams of the tier", found["limits"]["max_streams"], STREAMS[replicas])
        return found

    def _config(self, name: str, replicas: int) -> dict[str, Any]:
        return {"name": name, "subjects": [name], "num_replicas": replicas, "allow_direct": True}

    async def _streams(self) -> int:
        """As many as each tier has, by creation and by a change of the number of replicas. Returns how many of R1 there
        were before."""
        before: dict[int, int] = {}
        for replicas, most in STREAMS.items():
            listed = (await self.insist("all streams", lambda: self.admin.api("STREAM.LIST")))["streams"]
            there = sum(one["config"]["num_replicas"] == replicas for one in listed)
            Exact.equal(f"streams of R{replicas}", (await self._tier(replicas))["streams"], there)
            before[replicas] = there
            for number in range(there, most + 1):
                name = f"TIER{replicas}OF{number}"
                code = await self._code(f"STREAM.CREATE.{name}", self._config(name, replicas))
                Exact.equal(f"creating {name}", code, 0 if number < most else TOO_MANY_STREAMS)
            Exact.equal(f"streams of R{replicas}", (await self._tier(replicas))["streams"], most)
        code = await self._code("STREAM.CREATE.TIER2", self._config("TIER2", 2))
        Exact.equal("a tier that there is not", code, NO_TIER)
        one = f"TIER1OF{STREAMS[1] - 1}"
        Exact.equal("one more of R3", await self._code(f"STREAM.UPDATE.{one}", self._config(one, 3)), TOO_MANY_STREAMS)
        await self._deleted(one)
        last = f"TIER3OF{STREAMS[3] - 1}"
        Exact.equal("of R1 again", await self._code(f"STREAM.UPDATE.{last}", self._config(last, 1)), 0)
        Exact.equal("streams of R3", (await self._tier(3))["streams"], STREAMS[3] - 1)
        return before[1]

    async def _bytes(self, name: str) -> None:
        """A tier that is full takes nothing more, and the other one does."""
        taken = 0
        for number in range(8):
            taken += await self.insist(f"big message {number}", partial(self._takes, name, number))
        # What servers tell each other of their bytes is some messages old.
        self.require(2 <= taken <= 6, f"{taken} messages of {BIG} bytes are taken, with room for {DISK[1]}")
        await self.store_logged(self.log, self.admin, "tiered.x", "the other tier")

        async def told() -> bool:
            return bool((await self._tier(1))["storage"] >= taken * BIG)

        await self.until("INFO tells of these bytes", told, 20.0)

    async def _takes(self, name: str, number: int) -> bool:
        """False where it finds no room. The stream may move for balance right then, and who asks again has an id."""
        try:
            await self.admin.js_publish(name, bytes([number]) * BIG, {"Nats-Msg-Id": str(number)}, seconds=5.0)
        except ApiError as error:
            if error.err_code != ACCOUNT_FULL:
                raise
            return False
        return True

    async def _consumers(self) -> None:
        for number in range(1, CONSUMERS + 1):
            body = {"stream_name": STREAM, "config": {"durable_name": f"c{number}", "ack_policy": "explicit"}}
            code = await self._code(f"CONSUMER.DURABLE.CREATE.{STREAM}.c{number}", body)
            Exact.equal(f"consumer {number}", code, 0 if number < CONSUMERS else TOO_MANY_CONSUMERS)

    async def _archive(self, name: str) -> None:
        """More than the tier has left is not set aside either."""
        await self._deleted(name)
        wish = {"config": self._config(name, 1), "state": {}}
        deliver = (await self.insist("a restore", lambda: self.admin.api(f"STREAM.RESTORE.{name}", wish)))[
            "deliver_subject"
        ]
        block = b"".join(
            old_archive.record(seq, seq, name.encode(), self.rng.randbytes(60_000))
            for seq in range(1, 1 + DISK[1] // 50_000)
        )
        sent = old_archive.archive([("meta.inf", old_archive.meta(name, {"subjects": [name]})), ("msgs/1.blk", block)])
        answer: dict[str, Any] = {}
        for at in range(0, len(sent), 100_000):
            said = (await self.admin.request(deliver, sent[at : at + 100_000], seconds=10.0)).payload
            if said:
                answer = json.loads(said)
                break
        Exact.equal("an archive of more", answer.get("error", {}).get("err_code"), ACCOUNT_FULL)
        await self._gone(name)

    async def _gone(self, name: str) -> None:
        async def is_gone() -> bool:
            try:
                await self.admin.api(f"STREAM.INFO.{name}")
            except ApiError as error:
                return error.err_code == 10059
            return False

        await self.until(f"{name} is gone", is_gone, 20.0)
