"""Which servers there are: clusters, servers without JetStream, and clusters that are leaves of another one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final
from unittest.mock import patch

CLIENT_PORT = 4222
WEB_PORT = 8080
ROUTE_PORT = 6222
LEAF_PORT = 7422
SECRET = "secret"
"""The secret of routes and leaf links."""
AUTHORITY = "/tls"
"""The authority of all certificates of servers; each has the path of its own below it."""

Chosen = AbstractContextManager[Any]
"""A choice of what servers or clients are, in force while it is entered."""


class Encryption:
    """Encryption at rest: "" for none, the cipher of all servers, or `MIXED`."""

    cipher = ""
    MIXED: ClassVar = {"1": "", "2": "aes", "3": "chachapoly"}
    """With "mixed": by the last letter of a server's name; others have the first cipher."""

    @classmethod
    def chosen(cls, cipher: str) -> Chosen:
        """All servers have this one meanwhile; "" changes nothing."""
        return patch.object(cls, "cipher", cipher or cls.cipher)

    @classmethod
    def of(cls, name: str) -> str:
        return cls.MIXED.get(name[-1], "aes") if cls.cipher == "mixed" else cls.cipher


class AckVersions:
    """Reply subjects of consumers: "" for version 1, "v2" for version 2 at all servers, or "mixed"."""

    chosen_now = ""

    @classmethod
    def chosen(cls, version: str) -> Chosen:
        """All servers have it meanwhile."""
        return patch.object(cls, "chosen_now", version)

    @classmethod
    def is_second(cls, name: str) -> bool:
        """With "mixed": servers whose names end with an odd number."""
        return cls.chosen_now == "v2" or (cls.chosen_now == "mixed" and name[-1] in "13579")


class Security:
    """TLS of all ports and links: "" for none, "after" with INFO in clear before the handshake, as far as there is one,
    "first" with the handshake before all; clients have to show certificates then. With "auto" a client may begin with
    the handshake or wait for INFO, with "either" it may have TLS or none."""

    mode = ""
    _KINDS: Final = {"after": ("after",), "first": ("first",), "auto": ("first", "after"), "either": ("after", "")}
    MODES = tuple(_KINDS)

    @classmethod
    def chosen(cls, mode: str) -> Chosen:
        """All servers have it meanwhile."""
        return patch.object(cls, "mode", mode)

    @classmethod
    def kind(cls, number: int) -> str:
        """The kind of the client's connection with this number: "first" and "after" INFO, or "" in clear."""
        kinds = cls._KINDS.get(cls.mode, ("",))
        return kinds[number % len(kinds)]

    @classmethod
    def clients(cls) -> str:
        """A line for the port of clients alone; "" for none."""
        return "allow_non_tls: true" if cls.mode == "either" else ""

    @classmethod
    def field(cls, ip: str, *, routes: bool = False) -> str:
        """A comma, and the `tls` block of a server with this address; "" for none. `routes`: those show certificates
        anyway, and begin with the handshake."""
        if not cls.mode:
            return ""
        path = f"{AUTHORITY}/{ip}"
        how = {"first": ", handshake_first: true, verify: true", "auto": ", handshake_first: auto"}
        first = "" if routes else how.get(cls.mode, "")
        return f', tls {{ cert_file: "{path}.pem", key_file: "{path}.key", ca_file: "{AUTHORITY}/ca.pem"{first} }}'


class Entrance:
    """The port that clients come by: that of NATS, or that of WebSocket, which servers have only then."""

    port = CLIENT_PORT

    @classmethod
    def chosen(cls, *, web: bool) -> Chosen:
        """All clients come by it meanwhile; without `web` nothing changes."""
        return patch.object(cls, "port", WEB_PORT if web else cls.port)


@dataclass(slots=True, frozen=True)
class Server:
    name: str
    ip: str
    cluster: str = "sim"
    """"" for one that stands alone."""
    jetstream: bool = True
    domain: str = ""
    leaf_of: str = ""
    """The cluster that it has a leaf link to; "" for none."""
    sync_interval: float = 0.0
    """Seconds; 0: every message is synced before its ack."""
    config: str = ""
    """More lines of its configuration."""
    tags: tuple[str, ...] = ()
    unique_tag: str = ""
    """Prefix of tags of which no two replicas of a stream may have the same."""
    max_payload: int = 0
    """Bytes; 0: as usual."""
    requests: int = 0
    """Requests of the API that may wait for their turn; 0: as usual."""
    rotated: bool = False
    """The key of its store is the second one, and the first is the one before it; where stores are encrypted."""
    jetstream_options: str = ""
    """More fields of `jetstream`, each behind a comma."""
    worker_of: str = ""
    """The machine of which it is a worker; "" for a server that is none."""
    worker: int = 0
    """Its number on that machine."""

    def text(self, others: Sequence[Server]) -> str:
        """Its configuration; `others`: all servers there are."""
        peers = [other for other in others if other.cluster == self.cluster and other.name != self.name]
        hub = [other for other in others if self.leaf_of and other.cluster == self.leaf_of]
        tls = Security.field(self.ip)
        lines = [f"server_name: {self.name}", f'listen: "{self.ip}:{CLIENT_PORT}"', tls.removeprefix(", ")]
        lines.append(Security.clients())
        if self.jetstream:
            domain = f", domain: {self.domain}" if self.domain else ""
            sync = f', sync_interval: "{self.sync_interval:g}s"' if self.sync_interval else ""
            most = f", request_queue_limit: {self.requests}" if self.requests else ""
            apart = f', unique_tag: "{self.unique_tag}"' if self.unique_tag else ""
            more = f"{most}{self._key()}{self.jetstream_options}"
            lines.append(f'jetstream {{ store_dir: "/data"{domain}{sync}{apart}{more} }}')
        if self.cluster:
            routes = ", ".join(f'"nats://{SECRET}:{SECRET}@{peer.ip}:{ROUTE_PORT}"' for peer in peers)
            lines.append(
                f'cluster {{ name: {self.cluster}, listen: "{self.ip}:{ROUTE_PORT}", '
                f"authorization {{ user: {SECRET}, password: {SECRET} }}, routes: [{routes}]"
                f"{Security.field(self.ip, routes=True)} }}"
            )
        if hub or any(other.leaf_of == self.cluster for other in others if self.cluster):
            lines.append("ping_interval: 2s")  # a leaf link is given up after two that nobody answers
        if hub:
            urls = ", ".join(f'"nats-leaf://{one.ip}:{LEAF_PORT}"' for one in hub)
            lines.append(f"leafnodes {{ reconnect: 1, remotes: [ {{ urls: [{urls}]{tls} }} ] }}")
        if any(other.leaf_of == self.cluster for other in others if self.cluster):
            lines.append(f'leafnodes {{ listen: "{self.ip}:{LEAF_PORT}"{tls} }}')
        if Entrance.port == WEB_PORT:
            lines.append(f'websocket {{ listen: "{self.ip}:{WEB_PORT}"{tls or ", no_tls: true"} }}')
        if self.tags:
            lines.append(f"server_tags: [{', '.join(map(json.dumps, self.tags))}]")
        if self.max_payload:
            lines.append(f"max_payload: {self.max_payload}")
        if AckVersions.is_second(self.name):
            lines.append("feature_flags: { js_ack_fc_v2: true }")
        return "\n".join((*lines, self.config))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key of its store, and the one before it if there was one; () for a store that is not encrypted."""
        first = f"key of {self.name}"
        if not Encryption.of(self.name):
            return ()
        return (f"second {first}", first) if self.rotated else (first,)

    def _key(self) -> str:
        """Fields of `jetstream` that encrypt its store; "" for none."""
        fields = zip(("key", "prev_encryption_key"), self.secrets, strict=False)
        keys = "".join(f', {field}: "{secret}"' for field, secret in fields)
        return f"{keys}, cipher: {Encryption.of(self.name)}" if keys else ""


def cluster(size: int, *, plain: int = 0, sync_interval: float = 0.0, config: str = "") -> tuple[Server, ...]:
    """`plain`: so many more without JetStream."""
    return tuple(
        Server(f"n{number}", f"10.0.0.{number}", jetstream=number <= size, sync_interval=sync_interval, config=config)
        for number in range(1, size + plain + 1)
    )


def with_leaf(size: int, leaves: int, *, config: str = "") -> tuple[Server, ...]:
    """A cluster, and one that is a leaf of it (a single server where `leaves` is 1), each with a JetStream domain:
    "hub" and "leaf"."""
    own = "" if leaves == 1 else "leaf"
    hub = [Server(f"n{n}", f"10.0.0.{n}", domain="hub", config=config) for n in range(1, size + 1)]
    leaf = [
        Server(f"l{n}", f"10.0.2.{n}", own, domain="leaf", leaf_of="sim", config=config) for n in range(1, leaves + 1)
    ]
    return (*hub, *leaf)


ACCOUNTS = """
accounts {
  APP {
    jetstream: enabled
    users: [
      { user: app, password: app },
      { user: narrow, password: narrow, permissions: {
        publish: { allow: ["may.*", "$JS.API.INFO"], deny: ["may.not"] }, subscribe: ["to.>", "_INBOX.>"],
        allow_responses: { max: 1, expires: "5s" } } }
    ]
    exports: [ { service: "svc.*" }, { stream: "out.>" } ]
  }
  OTHER {
    jetstream: { max_streams: 2, max_consumers: 3, max_mem: 0, max_file: 1MB }
    users: [ { user: other, password: other } ]
    imports: [
      { service: { account: APP, subject: "svc.one" }, to: "remote.one" }
      { stream: { account: APP, subject: "out.a.>" }, prefix: "in" }
    ]
  }
  SYS { users: [ { user: sys, password: sys } ] }
}
system_account: SYS
no_auth_user: app
"""
"""Configuration of clusters without leaves: clients are APP's, unless they say who they are."""

ZONES = tuple(
    replace(server, tags=tags, unique_tag="az:")
    for server, tags in zip(
        cluster(5, config=ACCOUNTS),
        (
            ("az:a", "disk:ssd"),
            ("az:a", "disk:hdd"),
            ("az:b", "disk:ssd"),
            ("az:b", "disk:hdd"),
            ("az:c", "disk:ssd", "disk:hdd"),
        ),
        strict=True,
    )
)
"""Three zones, each with a disk of each kind."""

LAYOUTS: dict[str, tuple[Server, ...]] = {
    "three": cluster(3, config=ACCOUNTS),
    "five": cluster(5, config=ACCOUNTS),
    "three and a plain one": cluster(3, plain=1, config=ACCOUNTS),
    "three and a leaf": with_leaf(3, 1),
    "three and a leaf of three": with_leaf(3, 3),
    "zones": ZONES,
    "relaxed": cluster(3, sync_interval=1.0),
    "alone": (Server("n1", "10.0.0.1", cluster="", config=ACCOUNTS),),
}
