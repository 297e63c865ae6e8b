"""The cluster as its servers report it: what `status` and `health` show. Servers are asked through the system account.

Nothing but `read_cluster` does I/O: the rest understands the servers' answers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jetcluster.cli.stream_pages import all_pages, page_body
from jetcluster.client.connection import Connection
from jetcluster.client.survey import Answers, survey

PING: Final = "$SYS.REQ.SERVER.PING"
NO_ANSWER: Final = "no answer"
OK: Final = "ok"
UNWELL: Final = "unwell"
UNTOLD: Final = ("lost", "away")
"""Fields of `meta_cluster` with the streams of which no server tells."""


@dataclass
class ServerReport:
    """One server. Without an answer all but its name and the reasons is 0 and ""."""

    name: str
    id: str = ""
    health: str = NO_ANSWER
    """OK, UNWELL or NO_ANSWER."""
    reasons: list[str] = field(default_factory=list)
    meta: str = ""
    """`leader`, `voter`, or "" without clustered JetStream."""
    version: str = ""
    uptime: str = ""
    cpu: float = 0.0
    """Percent of one core."""
    cores: int = 0
    memory: int = 0
    """Bytes of the process."""
    storage: int = 0
    """Bytes of messages in files, of `max_storage`."""
    max_storage: int = 0
    connections: int = 0
    slow_consumers: int = 0
    streams: int = 0
    """Replicas of streams."""
    leaders: int = 0
    consumers: int = 0


@dataclass
class StreamGroup:
    """One stream as its leader reports it, or the servers with a replica where nobody leads."""

    account: str
    name: str
    leader: str = ""
    replicas: list[dict[str, Any]] = field(default_factory=list)
    """The leader's report on its followers: `name`, `current`, `offline`, `lag`, `active` (nanoseconds)."""
    holders: list[str] = field(default_factory=list)
    """Servers that report a replica of it."""
    messages: int = 0
    bytes: int = 0
    consumers: int = 0
    reported: bool = False
    """The leader itself has reported."""
    silent: bool = False
    """Nobody answers for it."""
    lost: bool = False
    """It is on no server of the cluster any more."""

    @property
    def label(self) -> str:
        return f"{self.account}/{self.name}"

    def trouble(self) -> str:
        """Returns the reason why the stream is not served or not safe; "" for none."""
        if self.lost:
            return "it is on no server any more"
        if self.silent and self.holders:
            return f"nobody answers for it; replicas on {', '.join(self.holders)}"
        if self.silent:
            return "nobody answers for it"
        if not self.leader:
            return f"no leader; replicas on {', '.join(self.holders)}"
        if not self.reported:
            return f"its leader {self.leader} does not answer; replicas on {', '.join(self.holders)}"
        return ""

    def lags(self) -> list[str]:
        """Returns a text for each follower that is not current."""
        return [text for replica in self.replicas if (text := lag_of(replica))]


@dataclass
class ClusterState:
    """All servers and streams, and the meta group."""

    name: str = ""
    servers: list[ServerReport] = field(default_factory=list)
    streams: list[StreamGroup] = field(default_factory=list)
    meta_leader: str = ""
    meta_size: int = 0
    """Members of the meta group; 0 without a cluster."""
    meta_quorum: int = 0
    notes: list[str] = field(default_factory=list)
    """Parts that are missing, and why."""

    @property
    def answering(self) -> list[ServerReport]:
        return [server for server in self.servers if server.health != NO_ANSWER]

    @property
    def without_leader(self) -> list[StreamGroup]:
        return [group for group in self.streams if group.trouble()]

    def troubles(self) -> list[str]:
        """Returns the reasons why the cluster is not healthy, one line each; none for a healthy one."""
        found = [f"{server.name}: {reason}" for server in self.servers for reason in server.reasons]
        if self.meta_size and not self.meta_leader:
            found.append(f"the meta group has no leader: {self.meta_quorum} of {self.meta_size} servers are needed")
        return found + [f"stream {group.label}: {group.trouble()}" for group in self.without_leader]


def read_cluster(connection: Connection, within: float) -> ClusterState:
    """Asks all servers, each for at most `within` seconds. Raises what `survey` raises."""
    (pings,) = survey(connection, [(PING, {})], within)
    questions: list[tuple[str, Mapping[str, Any]]] = [
        (f"{PING}.VARZ", {}), (f"{PING}.HEALTHZ", {"details": True}),
        (f"{PING}.JSZ", page_body(0, {})),
    ]  # fmt: skip
    varz, healthz, jsz = survey(connection, questions, within, lambda _: len(pings))
    return cluster_of(
        pings, varz, healthz, all_pages(jsz, lambda offset: jsz_page(connection, offset, {}, len(pings), within))
    )


def jsz_page(connection: Connection, offset: int, more: Mapping[str, Any], servers: int, within: float) -> Answers:
    """Asks for the page of all `servers` from the stream `offset` on. Raises what `survey` raises."""
    (answers,) = survey(connection, [(f"{PING}.JSZ", page_body(offset, more))], within, lambda _: servers)
    return answers


def cluster_of(pings: Answers, varz: Answers, healthz: Answers, jsz: Answers) -> ClusterState:
    """Puts the answers together. A server that is named by others and did not answer is one without an answer."""
    cluster = ClusterState()
    by_name = {str(answer["server"]["name"]): ServerReport(str(answer["server"]["name"])) for answer in pings}
    for answer in pings:
        _add_ping(by_name[answer["server"]["name"]], answer)
        cluster.name = cluster.name or str(answer["server"].get("cluster", ""))
    for answer in varz:
        if server := by_name.get(answer["server"]["name"]):
            _add_varz(server, answer.get("data", {}))
    for answer in healthz:
        if server := by_name.get(answer["server"]["name"]):
            _add_health(server, answer)
    for server in by_name.values():
        if server.health == NO_ANSWER:
            server.reasons.append("it did not say how it is")
    cluster.streams = streams_of(jsz)
    _add_meta(cluster, by_name, jsz)
    if more := untold_beyond(jsz):
        cluster.notes.append(more)
    for answer in jsz:
        name = answer["server"]["name"]
        if error := answer.get("error"):  # more than a server puts into one answer
            cluster.notes.append(f"{name} does not list its streams: {error.get('description', error)}")
        if server := by_name.get(name):
            _add_jetstream(server, answer.get("data", {}), cluster.streams)
    for name in _named(pings) - by_name.keys():
        by_name[name] = ServerReport(name, reasons=["no answer, but other servers are connected to it"])
    cluster.servers = sorted(by_name.values(), key=lambda server: natural(server.name))
    return cluster


def _named(pings: Answers) -> set[str]:
    """Returns the names of servers at the other end of a route."""
    return {str(route["name"]) for ping in pings for route in ping["statsz"].get("routes") or () if route.get("name")}


def _add_ping(server: ServerReport, answer: Mapping[str, Any]) -> None:
    stats = answer.get("statsz", {})
    server.id, server.version = str(answer["server"]["id"]), str(answer["server"].get("ver", ""))
    server.cpu, server.cores, server.memory = float(stats.get("cpu", 0)), stats.get("cores", 0), stats.get("mem", 0)
    server.connections, server.slow_consumers = stats.get("connections", 0), stats.get("slow_consumers", 0)


def _add_varz(server: ServerReport, page: Mapping[str, Any]) -> None:
    server.uptime = str(page.get("uptime", ""))
    server.version = str((page.get("jetcluster") or {}).get("version") or server.version)


def _add_health(server: ServerReport, answer: Mapping[str, Any]) -> None:
    server.health, reasons = health_reasons(answer)
    server.reasons += reasons


def health_reasons(answer: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Returns the health that an answer of HEALTHZ reports, and why it is not OK."""
    page = answer.get("data") or answer.get("error") or {}
    if page.get("status") == "ok":
        return OK, []
    reasons = [str(one.get("error", one)) for one in page.get("errors") or ()]
    return UNWELL, reasons or [str(page.get("error") or page.get("description") or page.get("status"))]


def _add_jetstream(server: ServerReport, page: Mapping[str, Any], streams: Iterable[StreamGroup]) -> None:
    server.storage, server.max_storage = page.get("storage", 0), (page.get("config") or {}).get("max_storage", 0)
    server.streams, server.consumers = page.get("streams", 0), page.get("consumers", 0)
    server.leaders = sum(group.leader == server.name and group.reported for group in streams)


def _add_meta(cluster: ClusterState, by_name: dict[str, ServerReport], jsz: Answers) -> None:
    """Adds the meta group, and its members that did not answer: its leader lists them, or all do without a leader."""
    for answer in jsz:
        meta = answer.get("data", {}).get("meta_cluster")
        if not meta:
            continue
        name = answer["server"]["name"]
        cluster.meta_leader = cluster.meta_leader or str(meta.get("leader", ""))
        cluster.meta_size = max(cluster.meta_size, meta.get("cluster_size", 0))
        cluster.meta_quorum = max(cluster.meta_quorum, meta.get("quorum_needed", 0) or cluster.meta_size // 2 + 1)
        if name in by_name:
            by_name[name].meta = "leader" if meta.get("leader") == name else "voter"
        if meta.get("leader") in (name, None):
            for replica in meta.get("replicas") or ():
                _add_member(by_name, replica)


def _add_member(by_name: dict[str, ServerReport], replica: Mapping[str, Any]) -> None:
    name = str(replica["name"])
    if name not in by_name:
        since = f", last heard of {ago(replica['active'])} ago" if replica.get("active") else ""
        by_name[name] = ServerReport(
            name, reasons=[f"no answer; the meta group has it as a member{since}"], meta="voter"
        )


def streams_of(jsz: Answers) -> list[StreamGroup]:
    """Returns all streams in order of account and name. Those without a replica on a server that answers are in no
    report of replicas: the meta leader tells of them, or, without one, each member of the meta group."""
    found: dict[tuple[str, str], StreamGroup] = {}
    leaders: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for answer in jsz:
        server = str(answer["server"]["name"])
        for account in answer.get("data", {}).get("account_details") or ():
            for stream in account.get("stream_detail") or ():
                key = (str(account["name"]), str(stream["name"]))
                group = found.setdefault(key, StreamGroup(*key))
                group.holders.append(server)
                cluster = stream.get("cluster") or {"leader": server}
                if leader := cluster.get("leader"):
                    leaders[key].add(str(leader))
                if leader == server or not group.reported:
                    _add_report(group, stream)
                if leader == server:
                    group.leader, group.reported = server, True
                    group.replicas = list(cluster.get("replicas") or ())
    for key, group in found.items():
        group.leader = group.leader or min(leaders[key], default="")
        group.holders.sort(key=natural)
    for group in _untold(jsz):
        found.setdefault((group.account, group.name), group)
    return [found[key] for key in sorted(found)]


def _untold(jsz: Answers) -> Iterator[StreamGroup]:
    for answer in jsz:
        meta = answer.get("data", {}).get("meta_cluster") or {}
        for kind in UNTOLD:
            for one in (meta.get(kind) or {}).get("first", ()):
                name, holders = str(one["name"]), sorted(map(str, one["servers"]), key=natural)
                yield StreamGroup(str(one["account"]), name, holders=holders, silent=True, lost=kind == "lost")


def untold_beyond(jsz: Answers) -> str:
    """Returns a text on the streams of which no server tells and that are only counted; "" for none."""
    kinds = [(answer.get("data", {}).get("meta_cluster") or {}).get(kind) or {} for answer in jsz for kind in UNTOLD]
    more = max((int(kind["streams"]) - len(kind["first"]) for kind in kinds if kind), default=0)
    return f"{more:,} more streams are on no server that answers" if more > 0 else ""


def _add_report(group: StreamGroup, stream: Mapping[str, Any]) -> None:
    state = stream.get("state") or {}
    group.messages, group.bytes = state.get("messages", 0), state.get("bytes", 0)
    group.consumers = state.get("consumer_count", 0)


def lag_of(replica: Mapping[str, Any]) -> str:
    """Returns how a follower lags, as its leader reports it; "" for a current one."""
    if replica.get("offline"):
        return f"{replica['name']} is offline, last heard of {ago(replica.get('active', 0))} ago"
    if replica.get("lag"):
        return f"{replica['name']} lags by {replica['lag']:,}"
    return "" if replica.get("current") else f"{replica['name']} is not current"


def ago(nanoseconds: int) -> str:
    """Returns a duration to the second, or in milliseconds below one: `850ms`, `12s`, `3h5m`."""
    seconds = nanoseconds // 1_000_000_000
    if seconds < 1:
        return f"{nanoseconds // 1_000_000}ms"
    parts = ((seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    first = next(at for at, (count, _) in enumerate(parts) if count)
    return "".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)


def natural(name: str) -> list[tuple[int, str]]:
    """Returns the key that sorts `n2` before `n10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
