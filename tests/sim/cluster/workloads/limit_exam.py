"""The exam of limits: what an account may have, up to the last stream, consumer and byte, and how it is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

from testkit.sim.deployment import Deployment
from testkit.sim.session import ApiError, Disconnected, NoResponders, Session
from tests.sim.cluster.account_ledger import (
    ACCOUNTS,
    CONSUMERS,
    FILE_STREAM,
    FILES,
    MANY_CONSUMERS,
    MANY_STREAMS,
    MEMORY,
    MEMORY_STREAM,
    NO_MEMORY,
    NO_STORAGE,
    STREAM_TOO_BIG,
    STREAMS,
    Kept,
    Ledger,
)
from tests.sim.cluster.exam import Exam, with_accounts
from tests.sim.cluster.judges import Exact

BYTES_REQUIRED = "400 10113 account requires a stream config to have max bytes set"
ACCOUNT_FULL = "400 10002 resource limits exceeded for account"
NO_STREAM = "404 10059 stream not found"
OTHER_CONFIG = "400 10058 stream name already in use with a different configuration"
OVERLAP = "400 10065 subjects overlap with an existing stream"
NO_CONSUMER = "400 10149 consumer does not exist"
"""Errors as clients get them."""
TELLS = 15.0
"""Seconds in which INFO has what another server's replicas have."""
STEPS = 30
NAMES = ("S1", "S2", "S3", "S4", "S5")
DURABLES = ("a", "b", "c", "d")
SIZE = 50_000
"""Bytes of a message."""


class LimitExam(Exam):
    name = "exam-limits"
    weight = 0
    judges = (Exact,)
    promises = (
        "an account has as many streams, consumers of each, and reserved bytes as its limits say, and not one more",
        "what goes, shrinks or is refused gives its place back, and $JS.API.INFO counts what is there after each step",
        "a stream is refused without max_bytes where its account requires one, or where nothing is left for it",
        "messages are taken up to the account's last byte, all replicas counted",
    )

    @classmethod
    def before(cls, deployment: Deployment, rng: Random) -> None:
        """Accounts of its own, so that those of others are as without it."""
        with_accounts(deployment, ACCOUNTS)

    async def check(self) -> None:
        if "SMALL" not in self.deployment.servers[self.members[0]].config or len(self.members) < 3:
            return  # leaf clusters have no accounts
        parts = [self._streams, self._bytes, self._updates, self._consumers, self._required, self._stored]
        await self.examine([*parts, self._history], 5)

    # ---- clients

    async def _clients(self, user: str = "small") -> None:
        """One at each server; each request goes to any of them. What the part before has left goes."""
        self.clients = [await self.session(f"{user}-{name}", name, user=user) for name in self.members]
        self.ledger = Ledger()
        for name in (await self.ask(self.clients[0], "STREAM.NAMES"))["streams"] or ():
            await self.ask(self.clients[0], f"STREAM.DELETE.{name}")

    async def _end(self) -> None:
        for name in (await self.ask(self.clients[0], "STREAM.NAMES"))["streams"] or ():
            await self.ask(self.clients[0], f"STREAM.DELETE.{name}")
        for one in self.clients:
            await one.close()

    async def _says(self, subject: str, body: Any = None) -> str:
        """The error of a request to any of the servers, "" for none. Whoever cannot answer now is asked again: what is
        asked for here may be asked for twice."""
        for again in range(20):
            try:
                await self.rng.choice(self.clients).api(subject, body)
            except ApiError as error:
                if again and subject.startswith("STREAM.DELETE") and str(error) == NO_STREAM:
                    return ""
                if error.code != 503:
                    return str(error)
                self.note(f"{subject}: {error}")
            except (TimeoutError, Disconnected, NoResponders) as error:
                self.note(f"{subject}: {error!r}")
            else:
                return ""
            await asyncio.sleep(0.5)
        return "nobody answers"

    def _config(self, name: str, **fields: Any) -> dict[str, Any]:
        return {"name": name, "subjects": [f"small.{name}"], "num_replicas": 1} | fields

    async def _made(self, wanted: str, name: str, **fields: Any) -> None:
        """A new stream, or the error that is wanted."""
        config = self._config(name, **fields)
        self.equal(f"creating {name} {fields}", await self._says(f"STREAM.CREATE.{name}", config), wanted)
        if not wanted and name not in self.ledger.streams:
            self.ledger.streams[name] = self._kept(config)
        await self._told()

    async def _changed(self, wanted: str, name: str, **fields: Any) -> None:
        config = self._config(name, **fields)
        self.equal(f"changing {name} {fields}", await self._says(f"STREAM.UPDATE.{name}", config), wanted)
        if not wanted:
            self.ledger.streams[name] = replace(self._kept(config), consumers=self.ledger.streams[name].consumers)
        await self._told()

    def _kept(self, config: dict[str, Any]) -> Kept:
        bytes_, most = config.get("max_bytes", -1), config.get("max_consumers", -1)
        return Kept(config.get("storage", "file"), config["num_replicas"], bytes_, most)

    async def _gone(self, name: str) -> None:
        self.equal(f"deleting {name}", await self._says(f"STREAM.DELETE.{name}"), "")
        del self.ledger.streams[name]
        await self._told()

    async def _consumer(self, wanted: str, stream: str, name: str, *, durable: bool = True, action: str = "") -> None:
        config: dict[str, Any] = {"name": name, "ack_policy": "explicit"}
        config |= {"durable_name": name} if durable else {}
        body: dict[str, Any] = {"stream_name": stream, "config": config}
        if not durable:
            config["inactive_threshold"] = 3600 * 1_000_000_000
        if action:
            body["action"] = action
        found = await self._says(f"CONSUMER.CREATE.{stream}.{name}", body)
        self.equal(f"consumer {name} of {stream}, {action or 'any action'}", found, wanted)
        if not wanted:
            self.ledger.streams[stream].consumers.add(name)

    async def _consumer_gone(self, stream: str, name: str) -> None:
        found = await self._says(f"CONSUMER.DELETE.{stream}.{name}")
        self.equal(f"consumer {name} of {stream} goes", found, "")
        self.ledger.streams[stream].consumers.discard(name)

    async def _told(self, **more: int) -> None:
        """INFO of any server has what the ledger has. Consumers and stored bytes are counted by others, which tell it
        some time later; streams and what they reserve are not."""
        wanted = self.ledger.numbers | more
        at_once = ("streams", "reserved_memory", "reserved_storage")
        session = self.rng.choice(self.clients)
        info = await self.ask(session, "INFO")
        self.equal("INFO at once", {key: info[key] for key in at_once}, {key: wanted[key] for key in at_once})

        async def is_so() -> bool:
            info = await session.api("INFO")
            return {key: info[key] for key in wanted} == wanted

        try:
            await self.until("INFO has all", is_so, TELLS)
        finally:
            self.note(f"INFO is to have {wanted}")

    # ---- parts

    async def _streams(self, session: Session) -> None:
        """Up to the number of streams, at it and over it."""
        await self._clients()
        limits = (await self.ask(self.clients[0], "INFO"))["limits"]
        wanted = {
            "max_memory": MEMORY, "max_storage": FILES, "max_streams": STREAMS, "max_consumers": CONSUMERS,
            "max_ack_pending": -1, "memory_max_stream_bytes": MEMORY_STREAM, "storage_max_stream_bytes": FILE_STREAM,
            "max_bytes_required": False,
        }  # fmt: skip
        self.equal("limits", limits, wanted)
        for number in range(STREAMS):
            await self._made("", f"S{number}", num_replicas=self.rng.choice([1, 3]))
        first = {"num_replicas": self.ledger.streams["S0"].replicas}
        await self._made(MANY_STREAMS, "MORE")
        await self._made(MANY_STREAMS, "MORE", storage="memory", num_replicas=3)
        await self._made(MANY_STREAMS, "MORE", max_bytes=FILE_STREAM, num_replicas=3)
        await self._made(STREAM_TOO_BIG, "MORE", max_bytes=FILE_STREAM + 1)
        await self._made(OVERLAP, "MORE", subjects=["small.S1"])
        await self._made("", "S0", **first)
        await self._made(OTHER_CONFIG, "S0", max_msgs=5, **first)
        await self._changed("", "S0", max_msgs=5, **first)
        await self._gone("S1")
        await self._made("", "MORE")
        await self._made(MANY_STREAMS, "S1")
        self.equal("who is not there", await self._says("STREAM.UPDATE.S1", self._config("S1")), NO_STREAM)
        await self._end()

    async def _bytes(self, session: Session) -> None:
        """Bytes that streams reserve, all replicas counted, to the last one."""
        await self._clients()
        await self._made("", "S1", num_replicas=3, max_bytes=200_000)
        await self._made(STREAM_TOO_BIG, "S2", max_bytes=FILE_STREAM + 1)
        await self._made(NO_STORAGE, "S2", max_bytes=300_001)
        await self._made(NO_STORAGE, "S2", num_replicas=3, max_bytes=100_001)
        await self._made("", "S2", max_bytes=299_999)
        await self._made(NO_STORAGE, "S3", num_replicas=3)
        await self._made("", "S3", max_bytes=1)
        await self._gone("S3")
        await self._changed("", "S2", max_bytes=300_000)
        await self._made(NO_STORAGE, "S3")
        await self._made(NO_STORAGE, "S3", max_bytes=1)
        await self._made(NO_MEMORY, "S3", storage="memory", num_replicas=3, max_bytes=100_001)
        await self._made(STREAM_TOO_BIG, "S3", storage="memory", max_bytes=MEMORY_STREAM + 1)
        await self._made("", "S3", storage="memory", num_replicas=3, max_bytes=100_000)
        await self._gone("S2")
        await self._made(NO_MEMORY, "S2", storage="memory")
        await self._made("", "S2", max_bytes=300_000)
        await self._end()

    async def _updates(self, session: Session) -> None:
        """A stream that changes counts as it is to be, without what it was."""
        await self._clients()
        await self._made("", "S1", num_replicas=3, max_bytes=200_000)
        await self._made("", "S2", max_bytes=300_000)
        await self._made("", "S3", storage="memory", max_bytes=10)
        three = {"num_replicas": 3}
        await self._changed("", "S1", max_bytes=200_000, description="of a full account", **three)
        await self._changed(NO_STORAGE, "S1", max_bytes=200_001, **three)
        await self._changed(STREAM_TOO_BIG, "S1", max_bytes=FILE_STREAM + 1, **three)
        await self._changed("", "S1", max_bytes=199_999, **three)
        await self._changed(NO_STORAGE, "S2", max_bytes=300_004)
        await self._changed("", "S2", max_bytes=300_003)
        await self._changed(NO_STORAGE, "S1", max_bytes=200_000, **three)
        await self._changed("", "S2", max_bytes=-1)
        await self._changed("", "S1", max_bytes=300_000, **three)
        await self._changed(NO_STORAGE, "S2", max_bytes=1)
        await self._changed(MANY_CONSUMERS, "S2", max_consumers=CONSUMERS + 1)
        await self._changed("", "S2", max_consumers=CONSUMERS)
        await self._made(MANY_STREAMS, "S4")
        self.elects()
        await self._changed("", "S1", max_bytes=300_000)
        await self._changed("", "S2", max_bytes=400_000, max_consumers=CONSUMERS)
        await self._changed(NO_STORAGE, "S1", max_bytes=300_000, **three)
        await self._changed("", "S1", max_bytes=166_666, **three)
        await self._end()

    async def _consumers(self, session: Session) -> None:
        """The lower one of a stream's number and the account's counts, for each stream by itself."""
        await self._clients()
        await self._made(MANY_CONSUMERS, "S1", max_consumers=CONSUMERS + 1)
        for name, most, replicas in (("S1", 2, 3), ("S2", CONSUMERS, 1), ("S3", -1, self.rng.choice([1, 3]))):
            await self._made("", name, num_replicas=replicas, **({"max_consumers": most} if most > 0 else {}))
            most = most if most > 0 else CONSUMERS
            for at in range(most):
                await self._consumer("", name, DURABLES[at], durable=self.rng.random() < 0.5)
            for durable in (True, False):
                await self._consumer(MANY_CONSUMERS, name, "more", durable=durable)
            await self._consumer(MANY_CONSUMERS, name, "more", action="create")
            await self._consumer(NO_CONSUMER, name, "more", action="update")
            await self._told()
            await self._consumer_gone(name, "a")
            await self._consumer("", name, "more", durable=self.rng.random() < 0.5)
            await self._consumer("", name, "more", durable=not await self._ephemeral(name, "more"))
            await self._consumer(MANY_CONSUMERS, name, "a")
            await self._told()
        await self._unnamed("S2")
        await self._changed("", "S1", num_replicas=3, max_consumers=3)
        await self._consumer("", "S1", "third")
        await self._consumer(MANY_CONSUMERS, "S1", "fourth")
        await self._changed("", "S3", num_replicas=self.ledger.streams["S3"].replicas, max_consumers=1)
        await self._consumer_gone("S3", "more")
        await self._consumer(MANY_CONSUMERS, "S3", "again")
        await self._told()
        await self._end()

    async def _ephemeral(self, stream: str, name: str) -> bool:
        info = await self.ask(self.clients[0], f"CONSUMER.INFO.{stream}.{name}")
        return not info["config"].get("durable_name")

    async def _unnamed(self, stream: str) -> None:
        """A consumer that gets its name from the server counts as well, until it goes by itself."""
        await self._consumer_gone(stream, "more")
        config = {"ack_policy": "explicit", "inactive_threshold": 2_000_000_000}
        body = {"stream_name": stream, "config": config}
        client = self.rng.choice(self.clients)
        name = str((await client.api(f"CONSUMER.CREATE.{stream}", body))["name"])
        self.ledger.streams[stream].consumers.add(name)
        self.equal("one more", await self._says(f"CONSUMER.CREATE.{stream}", body), MANY_CONSUMERS)
        await self._told()
        self.ledger.streams[stream].consumers.discard(name)
        await self._told()
        await self._consumer("", stream, "more")
        await self._consumer(MANY_CONSUMERS, stream, "a")

    async def _required(self, session: Session) -> None:
        """An account whose streams must have max_bytes, and that has no memory; one whose limits are 0."""
        await self._clients("strict")
        for fields in ({}, {"max_bytes": 0}, {"max_bytes": -1}, {"storage": "memory"}):
            await self._made(BYTES_REQUIRED, "S1", **fields)
        await self._made(STREAM_TOO_BIG, "S1", max_bytes=FILE_STREAM + 1)
        await self._made(NO_MEMORY, "S1", storage="memory", max_bytes=1)
        await self._made("", "S1", max_bytes=FILE_STREAM)
        await self._changed(BYTES_REQUIRED, "S1")
        await self._changed(STREAM_TOO_BIG, "S1", max_bytes=FILE_STREAM + 1)
        await self._changed("", "S1", max_bytes=FILE_STREAM - 1)
        await self._end()
        await self._clients("zero")
        await self._made(NO_MEMORY, "S1", storage="memory")
        await self._made("", "S1", max_consumers=5)
        await self._made("", "S2", num_replicas=3)
        await self._consumer("", "S2", "one")
        await self._told()
        await self._end()

    async def _stored(self, session: Session) -> None:
        """Messages count with all their replicas; an account that is full takes no more, in any of its streams."""
        await self._clients()
        replicas, storage = self.rng.choice([1, 3]), self.rng.choice(["file", "memory"])
        await self._made("", "S1", num_replicas=replicas, storage=storage)
        await self._made("", "S2", num_replicas=3, storage="memory" if storage == "file" else "file")
        kind, limit = ("memory", MEMORY) if storage == "memory" else ("storage", FILES)
        client = self.rng.choice(self.clients)
        await self._puts(client, "small.S1", 0)
        size = (await self.ask(client, "STREAM.INFO.S1"))["state"]["bytes"]
        most = limit // (size * replicas)
        for at in range(1, most):
            await self._puts(client, "small.S1", at)
        await self._told(**{kind: most * size * replicas})
        self.equal(f"one more than {most} messages", await self._put(client, "small.S1", most), ACCOUNT_FULL)
        self.equal("what is kept elsewhere", await self._put(client, "small.S2", 0), "")
        self.equal("messages", (await self.ask(client, "STREAM.INFO.S1"))["state"]["messages"], most)
        self.equal("the first one goes", await self._says("STREAM.PURGE.S1", {"seq": 2}), "")
        await self._puts(client, "small.S1", most + 1)
        self.equal("and one more", await self._put(client, "small.S1", most + 2), ACCOUNT_FULL)
        await self._end()

    async def _puts(self, client: Session, subject: str, at: int) -> None:
        self.equal(f"message {at}", await self._put(client, subject, at), "")

    async def _put(self, client: Session, subject: str, at: int) -> str:
        """The error. Its bytes and its id have the same length each time."""
        for _ in range(20):
            try:
                await client.js_publish(subject, b"x" * SIZE, {"Nats-Msg-Id": f"{at:04}"}, seconds=5.0)
            except ApiError as error:
                if error.code != 503:
                    return str(error)
            except (TimeoutError, Disconnected, NoResponders) as error:
                self.note(f"message {at}: {error!r}")
            else:
                return ""
            await asyncio.sleep(0.5)
        return "nobody answers"

    async def _history(self, session: Session) -> None:
        """Any requests, near the limits."""
        await self._clients()
        for _ in range(STEPS):
            there = sorted(self.ledger.streams)
            step = self.rng.choice(
                ("make", "make", "make", "change", "change", "drop", "consume", "consume", "consume")
            )
            if step == "make" or not there:
                await self._any_stream(self.rng.choice(NAMES))
            elif step == "change":
                await self._any_stream(self.rng.choice(there))
            elif step == "drop":
                await self._gone(self.rng.choice(there))
            else:
                await self._any_consumer(self.rng.choice(there))
        await self._told()
        await self._end()

    async def _any_stream(self, name: str) -> None:
        known = self.ledger.streams.get(name)
        storage = known.storage if known else self.rng.choice(["file", "file", "memory"])
        replicas = known.replicas if known else self.rng.choice([1, 3])
        room = self.ledger.left(storage, name) // replicas
        sizes = [room - 1, room, room, room + 1, MEMORY_STREAM, FILE_STREAM, FILE_STREAM + 1, 1000, -1]
        fields: dict[str, Any] = {"storage": storage, "num_replicas": replicas}
        size = self.rng.choice(sizes)
        if size > 0:
            fields["max_bytes"] = size
        if len(self.ledger.streams) < STREAMS and self.rng.random() < 0.5:
            fields["max_consumers"] = self.rng.choice([1, 2, CONSUMERS, CONSUMERS + 1])
        wanted = self.ledger.refusal(name, self._kept(self._config(name, **fields)))
        await (self._changed if known else self._made)(wanted, name, **fields)

    async def _any_consumer(self, stream: str) -> None:
        there = sorted(self.ledger.streams[stream].consumers)
        if there and self.rng.random() < 0.25:
            await self._consumer_gone(stream, self.rng.choice(there))
            return
        name = self.rng.choice(DURABLES)
        # What is there is changed by nothing but its kind, which is refused: names say which kind they are.
        await self._consumer(self.ledger.refusal_of_consumer(stream, name), stream, name, durable=name < "c")
