"""The commands that create a stream.

`jetcluster mirror STREAM` makes servers mirror a stream of another JetStream domain, behind a leaf link. It may run at
every start of an edge: an existing mirror stays as it is. Neither the stream nor the link need exist yet; the mirror
fills as soon as both do.

`jetcluster object add BUCKET` creates a bucket that both the object service and stock clients can use.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jetcluster.cli.common import DONE, NOT_REACHED, REFUSED, ServerRefusedError, connected, fail, shown
from jetcluster.client.connection import Connection
from jetcluster.client.credentials import CredentialsError
from jetcluster.client.reconnect import Reconnecting
from jetcluster.client.reply import ServerError
from jetcluster.client.servers import ServerOptions
from jetcluster.errors import NO_SUITABLE_PEERS, STREAM_NAME_EXISTS, ApiError, PassingError

AGAIN_SECONDS = 0.5
ASK_SECONDS = 5.0


@dataclass(slots=True)
class Mirror:
    """`name` mirrors `stream` of `domain` (`""`: of the same domain) and answers Direct Gets for it."""

    link: Reconnecting
    stream: str
    domain: str
    name: str
    replicas: int
    say: Callable[[str], None]

    def run(self, within: float) -> None:
        """Creates the mirror. Raises ServerRefusedError, ServerError, CredentialsError, or at the end TimeoutError."""
        deadline = time.monotonic() + within
        while (left := deadline - time.monotonic()) > 0:
            try:
                if self._done(self.link.connection(min(left, ASK_SECONDS))):
                    return
            except PassingError:
                pass  # a link or a leader may appear
            self.link.next()
            time.sleep(AGAIN_SECONDS)
        raise TimeoutError

    def _done(self, connection: Connection) -> bool:
        """Creates the mirror if it is missing. Returns False after a temporary error."""
        try:
            try:
                found = connection.api(f"STREAM.INFO.{self.name}", timeout=ASK_SECONDS)
            except ApiError as error:
                if not error.is_stream_not_found:
                    raise
            else:
                self._compare(found["config"])
                self.say(f"{self.name} mirrors {self._upstream} already")
                return True
            connection.api(f"STREAM.CREATE.{self.name}", self._config(), timeout=ASK_SECONDS)
        except ApiError as error:
            if error.retriable or error.err_code == NO_SUITABLE_PEERS:  # no leader yet; not enough servers yet
                return False
            raise ServerRefusedError(error.description) from None
        self.say(f"{self.name} mirrors {self._upstream} now")
        return True

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
            raise ServerRefusedError(f"there is a stream {self.name} that does not mirror {self._upstream}")

    @property
    def _api(self) -> str:
        return f"$JS.{self.domain}.API" if self.domain else ""

    @property
    def _upstream(self) -> str:
        return f"{self.stream} of {self.domain}" if self.domain else self.stream


def run_mirror(servers: ServerOptions, stream: str, domain: str, name: str, replicas: int, within: float) -> int:
    """Runs the command and returns the exit code: 0 the mirror exists, 1 refused, 2 no server answered in time or the
    user is refused."""
    say = functools.partial(print, flush=True)
    link = Reconnecting(servers, say, patient=True)
    try:
        Mirror(link, stream, domain, name or stream, replicas, say).run(within)
    except ServerRefusedError as error:
        return fail("mirror", str(error), REFUSED)
    except TimeoutError:
        return fail("mirror", f"{', '.join(shown(servers))}: no answer within {within:.0f} s", NOT_REACHED)
    except (ServerError, CredentialsError) as error:
        return fail("mirror", f"{', '.join(shown(servers))}: {error}", NOT_REACHED)
    finally:
        link.close()
    return DONE


@dataclass(slots=True)
class Wish:
    """The requested configuration of a bucket. `max_bytes` 0 and `ttl` (seconds) 0: no limit."""

    bucket: str
    replicas: int = 1
    storage: str = "file"
    max_bytes: int = 0
    ttl: float = 0.0
    description: str = ""

    def config(self) -> dict[str, Any]:
        """Returns the stream's configuration: that of stock clients, with the subjects of the object service added."""
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


def run_add(servers: ServerOptions, wish: Wish) -> int:
    """Asks the first server that answers. Returns the exit code: 0 the bucket exists as requested, 1 refused, 2 no
    server answered or the user is refused."""

    def add(connection: Connection) -> int:
        try:
            connection.api(f"STREAM.CREATE.OBJ_{wish.bucket}", wish.config())
        except ApiError as error:
            if error.err_code != STREAM_NAME_EXISTS:
                raise
            raise ServerRefusedError(f"bucket {wish.bucket} is there, with another configuration") from None
        print(f"bucket {wish.bucket} is ready: $O.{wish.bucket} for stock clients, $OBJ.{wish.bucket} for the service")
        return DONE

    return connected("object add", servers, add)
