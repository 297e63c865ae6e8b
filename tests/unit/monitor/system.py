"""The system account of a real `Server`, asked as another part of the server would ask."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

from jetcluster.monitor.start import load_answers
from jetcluster.monitor.system.requests import GROWING, SystemServices
from jetcluster.monitor.view import ServerBlock
from jetcluster.server.server import Server


class Asker:
    """Requests on one account's bus; collects what comes to its inbox."""

    def __init__(self, server: Server, account: str = "$SYS") -> None:
        self.bus = server.account(account)
        self.replies: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()
        self.bus.subscribe(b"inbox", lambda s, r, h, payload, o: self.replies.put_nowait((s, payload)))

    def listen(self, subject: bytes) -> None:
        self.bus.subscribe(subject, lambda s, r, h, payload, o: self.replies.put_nowait((s, payload)))

    async def next(self) -> tuple[str, dict[str, Any]]:
        subject, payload = await asyncio.wait_for(self.replies.get(), 10)
        return subject.decode(), json.loads(payload)

    async def ask(self, subject: str, **options: Any) -> dict[str, Any]:
        assert self.bus.ask(subject.encode(), json.dumps(options).encode() if options else b"", b"inbox") > 0
        return (await self.next())[1]

    async def ask_raw(self, subject: str, body: bytes) -> dict[str, Any]:
        self.bus.ask(subject.encode(), body, b"inbox")
        return (await self.next())[1]

    async def silent(self, subject: str, **options: Any) -> bool:
        """True when this server does not answer; a request that it must answer goes behind it, in the same queue."""
        self.bus.ask(subject.encode(), json.dumps(options).encode(), b"inbox")
        if subject.rpartition(".")[2] in GROWING:
            last = await self.ask("$SYS.REQ.SERVER.PING.SUBSZ")
            return "num_subscriptions" in last.get("data", ()) and self.replies.empty()
        return set(await self.ask("$SYS.REQ.SERVER.PING.IDZ")) == {"name", "host", "id"} and self.replies.empty()


def services(node: Any, reload: str = "") -> SystemServices:
    found = SystemServices(node, partial(load_answers, node, ServerBlock(node), lambda: reload))
    found.start()
    return found
