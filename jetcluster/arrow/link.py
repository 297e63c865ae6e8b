"""`Link`: the connection of one task and the subject of its requests, by the query's `readPreference`.

After a failure the task moves on to the next server. jetcluster routes a request to any one replica from every server,
so there the stream's own replicas are asked, not its mirrors, which may hold less. With nats-server, the server that a
client is connected to usually answers itself, so `leader`, `peer:NAME` and `local` choose the server
(docs/spark-source.md).
"""

from __future__ import annotations

import socket
from collections import Counter
from urllib.parse import urlsplit

from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.planner import Target
from jetcluster.client.connection import Connection
from jetcluster.client.reply import ConnectionLostError
from jetcluster.client.servers import ServerOptions
from jetcluster.client.stream_state import StreamError, is_ours


class Link:
    """A link to the replicas of `target.read_from`; `index` spreads tasks over servers. It connects on first use."""

    def __init__(self, options: SourceOptions, target: Target, index: int) -> None:
        self.stream = target.read_from
        self._options = options
        self._preference = options.preference
        self.target = target
        self._connection: Connection | None = None
        self._found: tuple[str, ...] = ()
        """Servers learnt from the `connect_urls` of the others."""
        self._servers = _order(options, index)
        self._next = 0
        self._unheard = 0
        """Requests in a row to the subject of one replica that got no responders."""
        self._by_name = False
        """The last subject addressed one replica."""
        self._asked = ""
        """The server with that replica, or the one connected to."""
        self.answers: Counter[str] = Counter()
        """Good answers, by the server whose replica was asked, or that was connected to."""
        self.retries = 0
        """Requests repeated after an unproven answer or a failure, as the fetches count them."""

    @property
    def connection(self) -> Connection:
        """Raises what `Connection` raises, StreamError."""
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    @property
    def subject(self) -> str:
        """The subject for a Direct Get with a JSON body."""
        connection = self.connection
        name = self._replica(connection)
        self._by_name = bool(name) and (self._preference.kind == "peer" or self._unheard < len(self.target.peers))
        self._asked = name if self._by_name else connection.server_name
        if self._by_name:
            return f"$JS.API.DIRECT.PEER.{self.stream}.{name}"
        return f"{connection.api_prefix}DIRECT.GET.{self.stream}"

    def no_responders(self) -> None:
        """Moves on after a 503: to each other replica, then to the subject that any replica or mirror answers."""
        self._unheard += 1
        self.go_on()

    def answered(self) -> None:
        """Notes that the answer to the last request was good."""
        self.answers[self._asked] += 1
        if self._by_name:  # otherwise no replica can be addressed from here
            self._unheard = 0

    def go_on(self) -> None:
        """Sends the next request to the next server."""
        self.close()
        self._next += 1

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _replica(self, connection: Connection) -> str:
        """Returns the server whose replica to address, the preferred one or the nearest; "" where none can be."""
        if not is_ours(connection):
            return ""
        if self._preference.kind == "peer":
            return self._preference.name
        if self._preference.kind == "leader" and not self._unheard:
            return self.target.leader
        peers = self.target.peers
        if connection.server_name in peers and not self._unheard:
            return connection.server_name
        return peers[self._next % len(peers)] if peers else ""

    def _connect(self) -> Connection:
        server = self._options.server
        servers = (*self._servers, *self._found)
        at = self._next % len(servers)
        connection = server.connect_to(*servers[at:], *servers[:at])
        self._found = tuple(url for url in told(connection, server) if url not in self._servers)
        wanted = {"peer": self._preference.name, "leader": self.target.leader}.get(self._preference.kind)
        if wanted is None or is_ours(connection) or connection.server_name == wanted:
            return connection
        connection.close()
        return self._connect_to(wanted)

    def _connect_to(self, wanted: str) -> Connection:
        """Connects to the nats-server of that name. Raises ConnectionLostError."""
        failures = []
        for url in (*self._servers, *self._found):
            try:
                connection = self._options.server.connect_to(url)
            except ConnectionLostError as error:
                failures.append(str(error))
                continue
            if connection.server_name == wanted:
                return connection
            connection.close()
        if self._preference.kind == "leader":
            return self._options.server.connect_to(*self._servers, *self._found)
        raise ConnectionLostError(f"no server named {wanted} among {', '.join(self._servers)} {'; '.join(failures)}")


def check_preference(options: SourceOptions, peers: tuple[str, ...]) -> None:
    """Raises StreamError when the query names a replica that the stream does not have."""
    name = options.preference.name
    if options.preference.kind == "peer" and name not in peers:
        raise StreamError(f"readPreference=peer:{name}: the stream has replicas on {', '.join(sorted(peers))}")


def _order(options: SourceOptions, index: int) -> tuple[str, ...]:
    servers = options.server.servers
    if options.preference.kind == "local":
        return tuple(sorted(servers, key=lambda url: not _is_here(url)))
    at = index % len(servers)
    return servers[at:] + servers[:at]


def told(connection: Connection, server: ServerOptions) -> list[str]:
    """Returns the URLs of the servers that this one tells of."""
    scheme = "tls" if server.credentials.wants_tls or connection.url.startswith("tls") else "nats"
    return [f"{scheme}://{address}" for address in connection.info.get("connect_urls") or ()]


def _is_here(url: str) -> bool:
    host = urlsplit(url if "//" in url else f"nats://{url}").hostname or ""
    if host in ("localhost", "::1", socket.gethostname()) or host.startswith("127."):
        return True
    try:
        own = socket.gethostbyname_ex(socket.gethostname())[2]
        return socket.gethostbyname(host) in own
    except OSError:
        return False
