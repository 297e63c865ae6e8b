"""Facts that the rules look at: records of one server, one stream, one consumer, one configuration, one machine.

Plain values without references to what they were taken from. `ServerFacts` and `ConfigFacts` travel between servers, of
which some may be older or newer: members that the reader does not know are dropped, and those that are missing have
their default, which stands for "not known" and makes no finding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from jetcluster.records import NamedTuple, dataclass


class Absent(NamedTuple):
    """A member of the cluster to which a server has no link."""

    name: str
    seconds: float
    """Since it was last heard; -1 if never since this process started."""


class Remote(NamedTuple):
    """A configured link to a hub."""

    account: str
    urls: str
    connected: bool


class Certificate(NamedTuple):
    """The end of a certificate in use."""

    port: str
    """"clients", "cluster", "leafnodes" or "websocket"."""
    seconds: float
    """Until its end; negative once it is over."""


@dataclass(slots=True, frozen=True)
class ConfigFacts:
    """A server's configuration, as far as rules look at it."""

    open_to: str = ""
    """The client port's host, unless that is this machine only."""
    users: bool = True
    """Clients need credentials."""
    tls: bool = True
    clustered: bool = False
    cluster_open_to: str = ""
    """The cluster port's host, unless that is this machine only."""
    routes_secret: bool = True
    """Routes need credentials."""
    routes_tls: bool = True
    trusted_network: bool = False
    system_user: bool = True
    """Somebody can log in to the system account."""
    http_open_to: str = ""
    """The monitoring port's host, unless it is this machine only or speaks TLS."""
    console: bool = False
    temporary_store: bool = False
    """The store is in the system's folder for temporary files."""
    jetstream: bool = False
    sync_interval: float = 0.0
    """Seconds until an acknowledged message is on the disk; 0: before it is acknowledged."""
    inert: tuple[str, ...] = ()
    """Keys without effect."""


@dataclass(slots=True, frozen=True)
class ServerFacts:
    """One server, by itself. Sizes in bytes, times in seconds; 0 of a limit is "not known"."""

    name: str
    peer: str = ""
    version: str = ""
    level: int = 0
    loops: str = ""
    """Which loops run, as `-v` shows it."""
    compiled: bool = True
    machine: str = ""
    uptime: float = 0.0
    jetstream: bool = False
    clustered: bool = False
    lame_duck: bool = False
    troubles: tuple[tuple[str, str, float], ...] = ()
    """(aspect, reason, seconds since it began) of `health.node_health`."""
    removed: str = ""
    """Why it is out of the cluster."""
    refused: str = ""
    """Why it does not follow the meta leader."""
    skew: float = 0.0
    """Its clock minus the cluster's time."""
    memory: int = 0
    memory_limit: int = 0
    """The control group's, or the machine's."""
    descriptors: int = 0
    descriptor_limit: int = 0
    disk_free: int = 0
    disk_size: int = 0
    storage: int = 0
    max_storage: int = 0
    reserved_storage: int = 0
    stored_memory: int = 0
    max_memory: int = 0
    reserved_memory: int = 0
    meta_leader: str = ""
    members: tuple[str, ...] = ()
    """Names of the meta group's members, this server's included."""
    quorum: int = 0
    linked: tuple[str, ...] = ()
    """Names of the members with a link."""
    absent: tuple[Absent, ...] = ()
    refused_peers: tuple[tuple[str, str], ...] = ()
    """(name, reason) of absent members that knock, and that this server refuses."""
    left_out: tuple[str, ...] = ()
    """Members that a rescue went on without."""
    leads: int = 0
    replicated: int = 0
    """Replicas here of streams with several."""
    journal_losses: int = 0
    """Groups that lost records to damage found at the start."""
    unassigned: int = 0
    """Stored streams that are not placed here."""
    api_waiting: int = 0
    """API requests that wait for an answer."""
    leaf_remotes: tuple[Remote, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    refused_reload: tuple[str, float] | None = None
    """(reason, seconds since) of the last reload, if it was refused."""
    config: ConfigFacts = field(default_factory=ConfigFacts)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ServerFacts:
        """Raises KeyError, TypeError and AttributeError for what no server sends."""
        known = {one.name for one in dataclasses.fields(cls)}
        given = {name: _frozen(value) for name, value in data.items() if name in known}
        for name, kind in (("absent", Absent), ("leaf_remotes", Remote), ("certificates", Certificate)):
            given[name] = tuple(kind(*row) for row in given.get(name, ()))
        given["config"] = _config(data.get("config", {}))
        return cls(**given)


def _config(data: Mapping[str, Any]) -> ConfigFacts:
    known = {one.name for one in dataclasses.fields(ConfigFacts)}
    return ConfigFacts(**{name: _frozen(value) for name, value in data.items() if name in known})


def _frozen(value: Any) -> Any:
    """Returns a JSON list as the tuple that it was."""
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value


class Unanswered(NamedTuple):
    """A linked server that did not tell its facts."""

    name: str
    reason: str


@dataclass(slots=True, frozen=True)
class ClusterFacts:
    """All servers that answered, and those that did not. `by` is the server that asked the others."""

    by: str
    servers: tuple[ServerFacts, ...]
    unanswered: tuple[Unanswered, ...] = ()


class OrphanFacts(NamedTuple):
    """A stream of which no server with a replica is linked to anybody, so that none of them tells of it."""

    account: str
    name: str
    servers: tuple[str, ...]
    """Names of the servers of its replicas."""


class ReplicaFacts(NamedTuple):
    """A replica of a stream elsewhere, as the stream's leader sees it."""

    name: str
    linked: bool
    voter: bool
    lag: int
    """Log entries that it lacks."""
    silent: float
    """Seconds since it was last heard; -1: never."""
    well: bool = True


class UpstreamFacts(NamedTuple):
    """A mirror's or source's upstream."""

    name: str
    lag: int
    silent: float
    """Seconds since the last word of it; -1: never."""
    error: str
    mirror: bool


class GuardFacts(NamedTuple):
    """A stream's retention guard."""

    consumer: str
    found: bool
    waiting: int
    """Messages that it has yet to acknowledge."""
    refuses: str
    """The reason for which publishes are refused; "" when they are not."""


class StateFetch(NamedTuple):
    """A state that is being fetched to this server."""

    done: int
    """Bytes compared or fetched."""
    total: int
    seconds: float
    """Since it began."""
    peer: str
    stalled: bool


@dataclass(slots=True, frozen=True)
class StreamFacts:
    """One stream, as one server with a replica of it sees it."""

    server: str
    account: str
    name: str
    clustered: bool = True
    leader: str = ""
    leading: bool = False
    """This server leads it: only then `replicas`, `upstreams` and the limits are looked at."""
    wanted: int = 1
    """Replicas by its configuration."""
    present: int = 1
    """Voters with a link, this server's included."""
    quorum: int = 1
    failed: str = ""
    damaged: str = ""
    rejected: str = ""
    disputed: str = ""
    undecided: bool = False
    refused: str = ""
    broken: str = ""
    """Why its replica could not be started here."""
    unapplied: int = 0
    """Entries that are committed and not applied here."""
    catch_up: StateFetch | None = None
    replicas: tuple[ReplicaFacts, ...] = ()
    machines: tuple[str, ...] = ()
    """The machine of each voter."""
    messages: int = 0
    bytes: int = 0
    max_messages: int = -1
    max_bytes: int = -1
    discard_new: bool = False
    consumers: int = 0
    max_consumers: int = -1
    retention: str = "limits"
    upstreams: tuple[UpstreamFacts, ...] = ()
    guard: GuardFacts | None = None


@dataclass(slots=True, frozen=True)
class RefusalFacts:
    """A stream that the meta leader has refused lately."""

    server: str
    account: str
    stream: str
    code: int
    """The error's number, five digits."""
    description: str
    why: tuple[str, ...]
    """A reason each: for all servers, then server by server."""
    seconds: float
    """Since then."""


@dataclass(slots=True, frozen=True)
class ConsumerFacts:
    """One consumer, as its owner sees it. Times in seconds; -1: never."""

    server: str
    account: str
    stream: str
    name: str
    push: bool = False
    pending: int = 0
    """Stored messages that are not delivered yet."""
    oldest: float = -1
    """Age of the oldest of them."""
    delivered: float = -1
    """Since the last delivery."""
    acked: float = -1
    """Since the last ack."""
    waiting: int = 0
    """Pull requests that wait."""
    bound: bool = False
    """A push consumer whose subject somebody has subscribed."""
    target: str = ""
    """That subject, with its queue group in brackets."""
    withheld: str = ""
    """Why it sends nothing now although messages and readers are there (`consumer.owner.delivery`); "" if for no reason
    that is known."""
    in_flight: int = 0
    """First deliveries that the stream's log does not have yet."""
    ack_pending: int = 0
    max_ack_pending: int = 0
    redelivered: int = 0
    ack_wait: float = 0.0
    paused: float = 0.0
    """Until its pause ends."""
    exhausted: int = 0
    """Messages given up after max_deliver, kept by interest retention."""
    letters: int = 0
    """Dead letters that no stream has confirmed."""
    letters_oldest: float = -1
    """Since the first of them was given up."""
    letters_error: str = ""
    """The end of the last try."""


class ReservingStream(NamedTuple):
    """A stream whose max_bytes counts against a limit."""

    name: str
    max_bytes: int
    counted: int
    """Its replicas; 1 in a tier, where they count once."""


class ReservationFacts(NamedTuple):
    """The bytes that max_bytes of an account's streams reserves of a limit, its own or a tier's."""

    name: str
    """`max_file`, `R3 max_file`."""
    limit: int
    reserved: int
    largest: tuple[ReservingStream, ...] = ()
    """Those that reserve the most, the first the largest."""
    others: int = 0
    """Number of the other streams that reserve something."""


@dataclass(slots=True, frozen=True)
class AccountFacts:
    """An account's use of its limits over the whole cluster, as one server counts it; -1: no limit."""

    server: str
    name: str
    storage: int = 0
    max_storage: int = -1
    memory: int = 0
    max_memory: int = -1
    streams: int = 0
    max_streams: int = -1
    reservations: tuple[ReservationFacts, ...] = ()


@dataclass(slots=True, frozen=True)
class MachineFacts:
    """The machine on which `jetcluster doctor` runs, beside a server. None: not known here."""

    server: str
    """The server's name in the configuration, or the machine's."""
    problem: str = ""
    """Why the configuration file is not valid."""
    warnings: tuple[str, ...] = ()
    """Lines that a start would log of the configuration."""
    descriptor_limit: int | None = None
    somaxconn: int | None = None
    clock_synchronized: bool | None = None
    clock_source: str = ""
    """Where the answer about the clock comes from, or why there is none."""
    sync_seconds: tuple[float, ...] = ()
    """Durations of single fdatasyncs in the store's folder."""
    store: str = ""
    store_error: str = ""
    """Why nothing can be written there."""
    disk_free: int | None = None
    disk_size: int | None = None
    memory_limit: int | None = None
    """The control group's; None without one."""
    taken_ports: tuple[tuple[str, int, bool], ...] = ()
    """(what for, port, True when it is a NATS server that holds it)."""
    unresolved: tuple[tuple[str, str], ...] = ()
    """(host of a route, why it has no address)."""
    unreachable: tuple[tuple[str, str], ...] = ()
    """(host:port of a route, why nothing answers there)."""
