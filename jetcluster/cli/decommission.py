"""`jetcluster decommission NODE`: takes a server out of the cluster for good, without a moment below a majority.

The steps are the cluster's own, through the system account's API on any server (docs/membership.md): SERVER.EVACUATE
marks the server in the meta log and moves what it holds, one change at a time per stream; SERVER.REMOVE takes it out of
the meta group; then the tool looks whether it is gone. Nothing is kept here, so a run that is cut off is simply started
again. Every refusal is the cluster's, with its numbers.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jetcluster.cli.bench_client import Client, ClientError

EVACUATE = "$JS.API.SERVER.EVACUATE"
REMOVE = "$JS.API.SERVER.REMOVE"
LOOK_AGAIN = 0.5
ASK_SECONDS = 6.0
"""For one answer; the cluster itself waits up to 4 s for a leader."""
TEMPORARY = {10008, 10202}
"""No leader at the moment; another change of members is under way."""
NOT_MEMBER = 10044
DONE, REFUSED, NOT_REACHED, TOO_SLOW = 0, 1, 2, 3
Say = Callable[[str], None]


class RefusedError(Exception):
    """The cluster says no; the text is its reason."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class Decommission:
    """`urls` are tried in turn, with credentials of the system account."""

    urls: Sequence[str]
    node: str
    within: float
    """Seconds until it gives up; what was begun goes on in the cluster."""
    say: Say
    credentials: str = ""
    _client: Client | None = None
    _at: int = 0

    async def run(self) -> None:
        """Raises RefusedError, ClientError, OSError, TimeoutError."""
        try:
            async with asyncio.timeout(self.within):
                await self._empty()
                await self._remove()
                await self._verify()
        finally:
            if self._client is not None:
                self._client.close()

    async def cancel(self) -> None:
        try:
            async with asyncio.timeout(self.within):
                await self._ask(EVACUATE, cancel=True)
        finally:
            if self._client is not None:
                self._client.close()
        self.say(f"{self.node} takes replicas again; what has moved stays where it is")

    async def _empty(self) -> None:
        told = ""
        while True:
            try:
                left = await self._ask(EVACUATE)
            except RefusedError as error:
                if error.code == NOT_MEMBER and told:
                    return  # somebody else removed it meanwhile
                raise
            text = _progress(left)
            if text != told:
                self.say(text)
                told = text
            held = left["held"]
            gone = not left["online"] or (held is not None and not held["replicas"])
            if not left["assigned"] and gone:
                return
            await asyncio.sleep(LOOK_AGAIN)

    async def _remove(self) -> None:
        try:
            await self._ask(REMOVE)
        except RefusedError as error:
            if error.code != NOT_MEMBER:
                raise
        self.say(f"{self.node}: removed from the meta group")

    async def _verify(self) -> None:
        try:
            await self._ask(EVACUATE)
        except RefusedError as error:
            if error.code == NOT_MEMBER:
                self.say(f"{self.node}: verified, the cluster does without it; its process can be stopped")
                return
            raise
        raise RefusedError(0, f"{self.node} is a member still, or again: another server of that name has come")

    async def _ask(self, subject: str, **more: Any) -> dict[str, Any]:
        """The success reply. What is temporary is asked again."""
        body = json.dumps({"peer": self.node, **more}).encode()
        while True:
            client = await self._connected()
            try:
                reply = await client.request(subject, body, ASK_SECONDS)
            except (ClientError, TimeoutError):
                self._drop()
                continue
            if reply.status == 503:
                raise RefusedError(503, f"{subject} is answered to users of the system account only: check --server")
            answer = reply.json()
            error = answer.get("error")
            if error is None:
                return answer
            if int(error.get("err_code") or 0) not in TEMPORARY:
                raise RefusedError(int(error.get("err_code") or 0), str(error.get("description")))
            self._drop()  # the one that was removed may not hear of it: another one knows
            await asyncio.sleep(LOOK_AGAIN)

    async def _connected(self) -> Client:
        """Any server that answers: the one that goes may be one of them, and may be down."""
        while self._client is None or self._client.closed.is_set():
            url, self._at = self.urls[self._at % len(self.urls)], self._at + 1
            try:
                self._client = await Client.connect(url, credentials=self.credentials)
            except ClientError:
                raise  # wrong credentials do not become right ones
            except (OSError, TimeoutError):
                await asyncio.sleep(LOOK_AGAIN)
        return self._client

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None


def _progress(left: dict[str, Any]) -> str:
    held = left["held"]
    text = f"{left['name']} ({left['peer']}): {left['assigned']} streams assigned"
    if held is not None:
        text += f", {held['replicas']} replicas, {held['leaders']} leaders, {held['consumers']} consumers there"
    elif not left["online"]:
        text += ", not connected"
    meta = left["meta"]
    text += f"; meta group without it: {meta['current']} of {meta['voters']} caught up, {meta['needed']} needed"
    return text + (f"; stuck: {'; '.join(left['stuck'])}" if left["stuck"] else "")


def run_decommission(servers: str, node: str, within: float, *, cancel: bool, credentials: str = "") -> int:
    """The exit code: 0 done, 1 refused, 2 no server reached, 3 not done in time."""
    urls = [url.strip() for url in servers.split(",") if url.strip()]
    work = Decommission(urls, node, within, lambda text: print(text, flush=True), credentials)
    try:
        asyncio.run(work.cancel() if cancel else work.run())
    except RefusedError as error:
        return _fail(f"refused: {error}", REFUSED)
    except TimeoutError:
        return _fail(f"not done after {within:.0f} s; the cluster goes on with it, run the command again", TOO_SLOW)
    except (ClientError, OSError) as error:
        return _fail(f"{servers}: {error}", NOT_REACHED)
    return DONE


def _fail(text: str, code: int) -> int:
    print(f"jetcluster decommission: {text}", file=sys.stderr)
    return code
