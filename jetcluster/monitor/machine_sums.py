"""The pages of a machine's workers as one page: numbers added up, lists joined. Pure.

A member that is not named here is the first worker's, such as the version; rates and the largest of something follow
their own rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jetcluster.model import durations
from jetcluster.monitor.source import Health, Json, Query

Answers = Mapping[int, Json]
"""A page by the number of the worker that made it."""

_SUMMED: Final = frozenset(
    {
        "connections", "total_connections", "routes", "remotes", "leafnodes", "subscriptions", "mem", "cpu",
        "in_msgs", "in_bytes", "in_client_msgs", "in_client_bytes", "out_msgs", "out_bytes", "out_client_msgs",
        "out_client_bytes", "slow_consumers", "stale_connections", "stalled_clients", "clients", "leafs",
        "waiters", "waits", "wait_time", "memory", "storage", "reserved_memory", "reserved_storage",
        "ha_assets", "errors", "max_memory", "max_storage", "streams", "streams_leader", "consumers",
        "consumers_leader", "messages", "bytes", "passes", "damaged_replicas", "damage_found",
        "replicas_repaired", "compared", "rebuilt", "num_connections", "num_subscriptions", "num_cache",
        "num_inserts", "num_removes", "num_matches", "num_routes", "conns", "total_conns", "msgs", "Sys",
        "NumGC", "Frees", "total", "stream_total", "client_connections", "leafnode_connections", "subscriptions_count",
    }
)  # fmt: skip
_LARGEST: Final = frozenset({"max_wait_time", "max_fanout", "avg_fanout"})
_SUMMED_BLOCKS: Final = frozenset({"http_req_stats"})
"""Blocks whose members are all added up."""
_FIRST: Final = frozenset(
    {"meta_cluster", "cluster", "disk", "limits", "websocket", "leaf", "tags", "connect_urls", "uptime"}
)
_JOINED: Final = frozenset(
    {
        "connections", "routes", "leafs", "subscriptions_list", "subscriptions_list_detail", "stream_detail",
        "catching_up", "journal_losses", "unassigned_streams", "undecided", "rescues",
    }
)  # fmt: skip
_KEYED: Final = {"account_details": "name", "account_statz": "acc"}
"""Lists whose elements are joined by a member."""
_ASCENDING: Final = {"cid": "cid", "start": "start", "reason": "reason", "idle": "last_activity"}
_DESCENDING: Final = {
    "subs": "subscriptions", "pending": "pending_bytes", "msgs_to": "out_msgs", "msgs_from": "in_msgs",
    "bytes_to": "out_bytes", "bytes_from": "in_bytes", "last": "last_activity", "stop": "stop", "uptime": "start",
    "rtt": "rtt",
}  # fmt: skip
"""The `sort` of /connz -> the member of a connection by which the lists of several workers are one."""


def whole(query: Query) -> dict[str, str]:
    """Returns the query for each worker: a page of the machine's list may have all its rows from one worker."""
    found = {key: value for key, value in query.items() if key not in ("offset", "stream-offset")}
    offset, limit = _number(query, "offset", 0), _number(query, "limit", 0)
    if offset:
        found["limit"] = str(offset + (limit or _DEFAULT_LIMIT))
    if limit := _number(query, "stream-limit", 0):
        found["stream-limit"] = str(_number(query, "stream-offset", 0) + limit)
    return found


_DEFAULT_LIMIT: Final = 1024


def _number(query: Query, name: str, default: int) -> int:
    text = query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else default


def merged(page: str, query: Query, answers: Answers) -> Json:
    """Returns the machine's page, of at least one answer to `whole(query)`."""
    parts = []
    for index, answer in sorted(answers.items()):
        part = dict(answer)
        if page == "connz":
            part["connections"] = [{**row, "worker": index} for row in part["connections"]]
        parts.append(part)
    found = parts[0]
    for part in parts[1:]:
        found = _added(found, part)
    if page == "jsz":
        found["total"] = max(part.get("total", 0) for part in parts)
    if page == "subsz":
        matches = sum(part["num_matches"] for part in parts)
        hits = sum(part["cache_hit_rate"] * part["num_matches"] for part in parts)
        found["cache_hit_rate"] = hits / matches if matches else 0.0
    return _cut(page, query, found)


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> Json:
    found = dict(one)
    for key, value in other.items():
        mine = found.get(key)
        if mine is None:
            found[key] = value
        elif key in _SUMMED_BLOCKS:
            found[key] = {name: mine.get(name, 0) + value.get(name, 0) for name in sorted({*mine, *value})}
        elif isinstance(value, list):
            found[key] = _listed(key, mine, value)
        elif key in _FIRST:
            continue
        elif isinstance(value, dict):
            found[key] = _added(mine, value)
        elif key in _SUMMED:
            found[key] = mine + value
        elif key in _LARGEST:
            found[key] = max(mine, value)
    return found


def _listed(key: str, one: list[Any], other: list[Any]) -> list[Any]:
    if key == "accounts":
        return [*one, *(name for name in other if name not in one)]
    if key in _JOINED:
        return [*one, *other]
    by = _KEYED.get(key)
    if by is None:
        return one
    rows = {row[by]: row for row in one}
    for row in other:
        rows[row[by]] = _added(rows[row[by]], row) if row[by] in rows else row
    return [rows[name] for name in sorted(rows)]


def _cut(page: str, query: Query, found: Json) -> Json:
    """Returns the part of the lists that the query asks for, sorted over all workers."""
    name = {"connz": "connections", "subsz": "subscriptions_list", "jsz": "account_details"}.get(page, "")
    offset, limit = _number(query, "offset", 0), _number(query, "limit", _DEFAULT_LIMIT)
    if page in ("connz", "subsz"):
        found |= {"offset": offset, "limit": limit}
    if name not in found:
        return found
    rows = found[name]
    if "stream_total" in found:
        found[name] = _streams(rows, _number(query, "stream-offset", 0), _number(query, "stream-limit", 0))
        return found
    if page == "connz":
        rows = _sorted(rows, query.get("sort", "") or "cid")
    found[name] = rows[offset : offset + limit]
    if page == "connz":
        found["num_connections"] = len(found[name])
    return found


def _streams(accounts: list[Json], offset: int, limit: int) -> list[Json]:
    """Returns the accounts that have some of the streams `offset` to `offset + limit`, each with those."""
    shown, before = [], 0
    for account in sorted(accounts, key=lambda one: str(one["id"])):
        streams = sorted(account["stream_detail"], key=lambda stream: str(stream["name"]))
        part = streams[max(offset - before, 0) : max(offset + limit - before, 0)]
        before += len(streams)
        if part:
            shown.append({**account, "stream_detail": part})
    return shown


def _sorted(rows: list[Json], sort: str) -> list[Json]:
    if sort in _ASCENDING:
        return sorted(rows, key=_value_of(_ASCENDING[sort]))
    return sorted(rows, key=_value_of(_DESCENDING[sort]), reverse=True) if sort in _DESCENDING else rows


def _value_of(member: str) -> Callable[[Json], Any]:
    if member == "rtt":
        return lambda row: durations.parse(row.get("rtt", "0s").encode()) or 0
    if member in ("start", "stop", "last_activity"):  # without the zone, so that a text with a fraction comes later
        return lambda row: row.get(member, "").rstrip("Z")
    if member == "reason":
        return lambda row: (row.get("reason", ""), row["cid"])
    return lambda row: row[member]


def worst(answers: Mapping[int, Health | None]) -> Health:
    """Returns the health of a machine: that of its least healthy worker. One without an answer (None) is starting."""
    found: list[Health] = []
    for index, health in sorted(answers.items()):
        if health is None:
            health = Health(503, {"status": "unavailable", "error": "does not answer"})
        if health.status != 200 and "error" in health.body:
            health = Health(health.status, {**health.body, "error": f"worker {index}: {health.body['error']}"})
        found.append(health)
    bad = max(found, key=lambda health: health.status)
    if "groups" not in bad.body:
        return bad
    known = [health.body for health in found]
    body = {**bad.body, "groups": sum(body.get("groups", 0) for body in known)}
    if "unsafe" in body:
        body["unsafe"] = sum(body.get("unsafe", 0) for body in known)
    return Health(bad.status, body)


def labelled(texts: Mapping[int, bytes]) -> bytes:
    """Returns the metrics of several workers as one text, each sample with the label `worker`."""
    families: dict[str, list[str]] = {}
    for index, text in sorted(texts.items()):
        name, known = "", False
        for line in text.decode().splitlines():
            if line.startswith("#"):
                of = line.split(" ", 3)[2]
                if of != name:
                    name, known = of, of in families
                if not known:
                    families.setdefault(of, []).append(line)
            elif line:
                families.setdefault(name, []).append(_with_label(line, index))
    return "\n".join([*(line for family in families.values() for line in family), ""]).encode()


def _with_label(line: str, index: int) -> str:
    name, brace, rest = line.partition("{")
    if brace and " " not in name:
        return f'{name}{{worker="{index}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{worker="{index}"}} {value}'


def overview(rows: Sequence[Json]) -> list[Json]:
    """Returns the `workers` of /varz: a few members of each worker's page."""
    kept = ("server_name", "server_id", "connections", "in_msgs", "out_msgs", "subscriptions", "mem", "cpu", "uptime")
    return [{"worker": row["worker"], **{key: row[key] for key in kept if key in row}} for row in rows]
