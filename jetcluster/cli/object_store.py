"""`jetcluster object add BUCKET`: a bucket that both the object service and stock clients can use."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

from jetcluster.cli.bench_client import Client, ClientError

NAME_IN_USE = "10058"
DONE, REFUSED, NOT_REACHED = 0, 1, 2


@dataclass(slots=True)
class Wish:
    """A bucket as it is asked for. `max_bytes` 0 and `ttl` (seconds) 0: no limit."""

    bucket: str
    replicas: int = 1
    storage: str = "file"
    max_bytes: int = 0
    ttl: float = 0.0
    description: str = ""

    def config(self) -> dict[str, Any]:
        """Of its stream: what stock clients give it, and the subjects of the service too."""
        bucket = self.bucket
        return {
            "name": f"OBJ_{bucket}",
            "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>", f"$OBJ.{bucket}.>"],
            "retention": "limits",
            "discard": "new",
            "storage": self.storage,
            "num_replicas": self.replicas,
            "max_bytes": self.max_bytes or -1,
            "max_age": int(self.ttl * 1e9),
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            **({"description": self.description} if self.description else {}),
        }


async def add(url: str, wish: Wish, credentials: str = "") -> None:
    """Creates the bucket; it may be there already, if it is as wished. Raises ClientError (also for a refusal, then
    with code and text), OSError, TimeoutError."""
    async with await Client.connect(url, credentials=credentials) as client:
        await client.api(f"STREAM.CREATE.OBJ_{wish.bucket}", wish.config())


def run_add(servers: str, wish: Wish, credentials: str = "") -> int:
    """The exit code: 0 the bucket is there, 1 refused, 2 no server answered. The first of `servers` (URLs, by commas)
    that can be reached is asked."""
    trouble: list[str] = []
    for url in filter(None, map(str.strip, servers.split(","))):
        try:
            asyncio.run(add(url, wish, credentials))
        except (OSError, TimeoutError) as error:
            trouble.append(f"{url}: {error or 'no answer'}")
            continue
        except ClientError as error:
            text = str(error)
            if NAME_IN_USE in text:
                text = f"bucket {wish.bucket} is there, with another configuration"
            return _fail(text, REFUSED)
        print(f"bucket {wish.bucket} is ready: $O.{wish.bucket} for stock clients, $OBJ.{wish.bucket} for the service")
        return DONE
    return _fail("; ".join(trouble) or "no server is given", NOT_REACHED)


def _fail(text: str, code: int) -> int:
    print(f"jetcluster object add: {text}", file=sys.stderr)
    return code
