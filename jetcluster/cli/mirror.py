"""`jetcluster mirror STREAM`: sees to it that servers mirror a stream of another JetStream domain, behind a leaf link.

To be run at every start of an edge: what is there already stays as it is. The stream need not exist yet, nor the link
stand; the mirror fills as soon as both are there.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jetcluster.cli.bench_client import Client, ClientError
from jetcluster.errors import ApiError

AGAIN = 0.5
ASK_SECONDS = 5.0
TEMPORARY = {10008, 10005}
"""No leader yet; not enough servers yet."""
DONE, REFUSED, NOT_REACHED = 0, 1, 2


class RefusedError(Exception):
    """The servers say no, or something else has the name."""


@dataclass(slots=True)
class Mirror:
    """`name` mirrors `stream` of `domain` (`""`: of the same domain) and answers Direct Gets for it."""

    urls: Sequence[str]
    stream: str
    domain: str
    name: str
    replicas: int
    say: Callable[[str], None]
    credentials: str = ""

    async def run(self, within: float) -> None:
        """Raises RefusedError, ClientError, TimeoutError."""
        async with asyncio.timeout(within):
            at = 0
            while True:
                try:
                    url = self.urls[at % len(self.urls)]
                    async with await Client.connect(url, credentials=self.credentials) as client:
                        if await self._done(client):
                            return
                except ClientError:
                    raise  # wrong credentials do not become right ones
                except (OSError, TimeoutError):
                    pass
                at += 1
                await asyncio.sleep(AGAIN)

    async def _done(self, client: Client) -> bool:
        """False: not now."""
        found = await self._ask(client, "INFO")
        error = found.get("error")
        if error is None:
            self._compare(found["config"])
            self.say(f"{self.name} mirrors {self._upstream} already")
            return True
        if ApiError.from_dict(error).is_stream_not_found:
            error = (await self._ask(client, "CREATE", self._config())).get("error")
            if error is None:
                self.say(f"{self.name} mirrors {self._upstream} now")
                return True
        if error.get("err_code") not in TEMPORARY:
            raise RefusedError(str(error.get("description")))
        return False

    async def _ask(self, client: Client, what: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        subject = f"$JS.API.STREAM.{what}.{self.name}"
        reply = await client.request(subject, json.dumps(body).encode() if body else b"", ASK_SECONDS)
        if reply.status == 503:
            return {"error": {"code": 503, "err_code": 10008, "description": "JetStream does not answer"}}
        return reply.json()

    def _config(self) -> dict[str, Any]:
        mirror: dict[str, Any] = {"name": self.stream}
        if self.domain:
            mirror["external"] = {"api": self._api}
        return {
            "name": self.name,
            "storage": "file",
            "num_replicas": self.replicas,
            "mirror": mirror,
            "mirror_direct": True,
            "allow_direct": True,
        }

    def _compare(self, config: dict[str, Any]) -> None:
        mirror = config.get("mirror") or {}
        api = (mirror.get("external") or {}).get("api", "")
        if (mirror.get("name"), api) != (self.stream, self._api):
            raise RefusedError(f"there is a stream {self.name} that does not mirror {self._upstream}")

    @property
    def _api(self) -> str:
        return f"$JS.{self.domain}.API" if self.domain else ""

    @property
    def _upstream(self) -> str:
        return f"{self.stream} of {self.domain}" if self.domain else self.stream


def run_mirror(
    servers: str, stream: str, domain: str, name: str, replicas: int, within: float, credentials: str = ""
) -> int:
    """The exit code: 0 the mirror is there, 1 refused, 2 no server answered in time."""
    urls = [url.strip() for url in servers.split(",") if url.strip()]
    say = functools.partial(print, flush=True)
    mirror = Mirror(urls, stream, domain, name or stream, replicas, say, credentials)
    try:
        asyncio.run(mirror.run(within))
    except RefusedError as error:
        return _fail(str(error), REFUSED)
    except TimeoutError:
        return _fail(f"{servers}: no answer within {within:.0f} s", NOT_REACHED)
    except ClientError as error:
        return _fail(f"{servers}: {error}", NOT_REACHED)
    return DONE


def _fail(text: str, code: int) -> int:
    print(f"jetcluster mirror: {text}", file=sys.stderr)
    return code
