"""A raw client of one stream's consumers: requests, pulls, acks, and inboxes that keep what came, in order."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any, Self

from testkit.client import Client, ClientError, Msg, create_stream

SECOND = 1_000_000_000
MILLISECOND = 1_000_000

_numbers = itertools.count(1)


class Inbox:
    """Collects the messages that are published to one subject."""

    def __init__(self, client: Client, subject: str = "", queue: str = "") -> None:
        self.subject = subject or f"_INBOX.box{next(_numbers)}_{id(self):x}"
        self.messages: list[Msg] = []
        self._more = asyncio.Event()
        self._client = client
        self._sid = client.subscribe(self.subject, self._take, queue)

    def _take(self, msg: Msg) -> None:
        self.messages.append(msg)
        self._more.set()

    def close(self) -> None:
        self._client.unsubscribe(self._sid)

    async def take(self, count: int = 1, within: float = 5.0) -> list[Msg]:
        """The next `count` messages. AssertionError when they do not come."""
        try:
            async with asyncio.timeout(within):
                while len(self.messages) < count:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"{len(self.messages)} of {count} came: {shown(self.messages)}") from None
        found, self.messages = self.messages[:count], self.messages[count:]
        return found

    async def one(self, within: float = 5.0) -> Msg:
        return (await self.take(1, within))[0]

    async def until_status(self, within: float = 5.0) -> tuple[list[Msg], Msg]:
        """Messages, and the status that ends them (heartbeats are left out)."""
        found: list[Msg] = []
        while True:
            msg = await self.one(within)
            if msg.status and msg.status != 100:
                return found, msg
            if not msg.status:
                found.append(msg)

    async def nothing(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        assert not self.messages, shown(self.messages)


def shown(messages: list[Msg]) -> list[tuple[bytes, bytes, bytes, bytes]]:
    return [(m.subject, m.reply, m.header, m.data) for m in messages]


def ack_fields(msg: Msg) -> tuple[int, int, int, int]:
    """(deliveries, stream sequence, consumer sequence, pending) of a delivery's reply subject."""
    tokens = msg.reply.decode().split(".")
    assert (len(tokens), tokens[:2]) == (9, ["$JS", "ACK"]), msg.reply
    assert tokens[7].isdigit()
    return int(tokens[4]), int(tokens[5]), int(tokens[6]), int(tokens[8])


class Jet:
    """One stream on `<name>.>` (lower case), and a client of it."""

    def __init__(self, client: Client, stream: str, replicas: int, server: str) -> None:
        self.client = client
        self.stream = stream
        self.replicas = replicas
        self.server = server
        self.ours = server == "jetcluster"
        self.prefix = stream.lower()

    @classmethod
    async def start(cls, client: Client, stream: str, replicas: int, server: str, **config: Any) -> Self:
        self = cls(client, stream, replicas, server)
        for patience in range(100, -1, -1):
            try:
                await create_stream(client, stream, [f"{self.prefix}.>"], replicas, **config)
                break
            except ClientError as error:
                if self.ours or not patience or "/10005 " not in str(error):
                    raise
                await asyncio.sleep(0.05)  # nats-server is ready before it knows the other nodes' resources
        if not self.ours:
            await asyncio.sleep(0.05)  # the answer can overtake the interest of a stream that another node leads
        return self

    async def ask(self, suffix: str, body: Any = None, within: float = 8.0) -> dict[str, Any]:
        """`$JS.API.<suffix>`: the decoded answer, an error too."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        msg = await self.client.request(f"$JS.API.{suffix}", data, within)
        assert not msg.status, f"{suffix}: {msg.header!r}"
        return msg.json()

    async def refused(self, suffix: str, body: Any = None) -> tuple[int, int, str]:
        """(code, err_code, description) of the answer, which must be an error."""
        reply = await self.ask(suffix, body)
        assert "error" in reply, f"{suffix} {body}: {reply}"
        error = reply["error"]
        return error["code"], error["err_code"], error["description"]

    def request(self, config: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"stream_name": self.stream, "config": {"ack_policy": "explicit", **config}, **more}

    async def consumer(self, name: str, *, durable: bool = True, **config: Any) -> dict[str, Any]:
        """Creates or updates; explicit acks by default. Returns the answer. Raises ClientError."""
        named = {"durable_name": name} if durable else {"name": name}
        body = self.request({**named, **config})
        created = await self.client.api(f"CONSUMER.CREATE.{self.stream}.{name}", body)
        if not self.ours:
            await asyncio.sleep(0.05)  # the answer can overtake the interest of a consumer that another node leads
        return created

    async def info(self, name: str) -> dict[str, Any]:
        return await self.client.api(f"CONSUMER.INFO.{self.stream}.{name}")

    async def counters(self, name: str) -> tuple[int, int, int, int, int, int, int]:
        """(delivered consumer and stream sequence, floor consumer and stream sequence, ack pending, redelivered,
        pending)."""
        i = await self.info(name)
        return (
            i["delivered"]["consumer_seq"], i["delivered"]["stream_seq"],
            i["ack_floor"]["consumer_seq"], i["ack_floor"]["stream_seq"],
            i["num_ack_pending"], i["num_redelivered"], i["num_pending"],
        )  # fmt: skip

    async def publish(self, *payloads: bytes, subject: str = "a", headers: dict[str, str] | None = None) -> None:
        """Each to `<prefix>.<subject>`, acked."""
        for payload in payloads:
            msg = await self.client.request(f"{self.prefix}.{subject}", payload, 5.0, headers)
            assert b'"seq"' in msg.data, msg.data

    def pull(self, name: str, body: Any = None, *, inbox: Inbox | None = None, headers: Any = None) -> Inbox:
        """Sends MSG.NEXT; the inbox gets what comes."""
        inbox = inbox or Inbox(self.client)
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{name}"
        self.client.publish(subject, data, inbox.subject.encode(), headers)
        return inbox

    async def fetch(self, name: str, count: int = 1, within: float = 5.0) -> list[Msg]:
        """`count` messages, which must come."""
        inbox = self.pull(name, {"batch": count, "expires": int(within * SECOND)})
        messages = await inbox.take(count, within)
        inbox.close()
        assert not any(m.status for m in messages), shown(messages)
        return messages

    async def takes_pulls(self, name: str) -> bool:
        """A pull that is refused for what it says is answered."""
        inbox = self.pull(name, b"{")
        answer = await inbox.one()
        inbox.close()
        return not answer.header.startswith(b"NATS/1.0 503")

    async def none_left(self, name: str) -> None:
        """A pull without waiting finds nothing."""
        found, status = await self.pull(name, {"batch": 1, "no_wait": True}).until_status()
        assert (shown(found), status.status) == ([], 404)

    async def ack(self, msg: Msg, word: bytes = b"+ACK", within: float = 5.0) -> Msg:
        """Returns the confirmation. Raises TimeoutError, and ClientError where no node takes the ack: while a consumer
        moves, its earlier owner listens no more and the next one not yet, and the client gets a 503 at once."""
        answer = await self.client.request(msg.reply.decode(), word, within)
        if answer.status:
            raise ClientError(f"{msg.reply.decode()}: status {answer.status}")
        return answer

    def ack_soon(self, msg: Msg, word: bytes = b"+ACK") -> None:
        self.client.publish(msg.reply.decode(), word)
