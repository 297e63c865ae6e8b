"""Answers of servers to the system account, and a server that gives them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jetcluster.client.servers import ServerOptions
from tests.unit.client.fake_server import Peer, hmsg, msg

Json = dict[str, Any]

NOT_FOUND = {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
NO_JETSTREAM = {"error": {"code": 503, "err_code": 10039, "description": "JetStream not enabled for account"}}


def server(name: str) -> Json:
    return {"name": name, "id": f"N{name}", "cluster": "c1", "ver": "2.14.5"}


def ping(name: str, routes: tuple[str, ...] = (), **more: Any) -> Json:
    stats = {"cpu": 12.6, "cores": 2, "mem": 80_500_000, "connections": 3, "active_servers": 1 + len(routes),
             "routes": [{"name": route} for route in routes], **more}  # fmt: skip
    return {"server": server(name), "statsz": stats}


def page(name: str, **data: Any) -> Json:
    return {"server": server(name), "data": data}


def stream(name: str, leader: str, followers: tuple[Json, ...] = (), messages: int = 10) -> Json:
    cluster = {"leader": leader} if leader else {}
    state = {"messages": messages, "bytes": 100 * messages, "consumer_count": 2}
    return {"name": name, "cluster": {**cluster, "replicas": list(followers)}, "state": state}


def follower(name: str, *, lag: int = 0, offline: bool = False, current: bool = True) -> Json:
    return {"name": name, "current": current and not offline, "offline": offline, "lag": lag, "active": 12_000_000_000}


def jsz(name: str, *streams: Json, meta: Json | None = None, account: str = "A", **more: Any) -> Json:
    details = [{"name": account, "memory": 0, "storage": 500, "stream_detail": list(streams)}]
    return page(name, streams=len(streams), consumers=2, storage=500, config={"max_storage": 1000},
                meta_cluster=meta, account_details=details, **more)  # fmt: skip


def meta(leader: str, members: int = 3, replicas: tuple[Json, ...] = ()) -> Json:
    found: Json = {"cluster_size": members, "quorum_needed": members // 2 + 1, "replicas": list(replicas)}
    return {**found, "leader": leader} if leader else found


def serving(answers: Mapping[str, list[Json]]) -> Peer:
    """A server that gives all answers to a subject at once, and 503 to any other."""

    def reply(subject: bytes, to: bytes, _headers: bytes, _body: bytes) -> bytes:
        found = answers.get(subject.decode())
        if found is None:
            return hmsg(to, b"NATS/1.0 503\r\n\r\n")
        return b"".join(msg(to, json.dumps(answer).encode()) for answer in found)

    return Peer(reply)


def options(peer: Peer) -> ServerOptions:
    return ServerOptions((peer.url,), connect_timeout=0.3)


def healthy(*names: str, streams: Mapping[str, tuple[Json, ...]] | None = None) -> dict[str, list[Json]]:
    """Answers of servers of which the first leads the meta group."""
    sys = "$SYS.REQ.SERVER.PING"
    found = streams or {}
    return {
        sys: [ping(name, tuple(other for other in names if other != name)) for name in names],
        f"{sys}.VARZ": [page(name, uptime="6s", jetcluster={"version": "0.2.0"}) for name in names],
        f"{sys}.HEALTHZ": [page(name, status="ok", status_code=200) for name in names],
        f"{sys}.JSZ": [jsz(name, *found.get(name, ()), meta=meta(names[0], len(names))) for name in names],
    }
