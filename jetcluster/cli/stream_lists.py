"""`jetcluster streams` and `jetcluster consumers`: the streams of the user's account through the JetStream API, or
those of all accounts for a user of the system account."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from jetcluster.cli.cluster_state import PING, StreamGroup, jsz_page, lag_of, natural, streams_of, untold_beyond
from jetcluster.cli.common import DONE, NOT_REACHED, ServerRefusedError, connected, fail
from jetcluster.cli.status_view import size, table
from jetcluster.cli.stream_pages import all_pages
from jetcluster.client.connection import Connection
from jetcluster.client.listing import WholeList, listed
from jetcluster.client.reply import NoRespondersError
from jetcluster.client.servers import ServerOptions
from jetcluster.client.survey import NoSystemUserError, survey
from jetcluster.errors import NOT_ENABLED_FOR_ACCOUNT, ApiError

Json = dict[str, Any]

_NO_JETSTREAM: Final = (
    "the account of this user has no JetStream, and only a user of the system account sees those of others"
)


def run_streams(servers: ServerOptions, *, as_json: bool) -> int:
    """Lists streams. Returns 0, 1 for an account without JetStream, 2 when no server is reached."""

    def work(connection: Connection) -> int:
        groups, more = _streams(connection, servers.connect_timeout)
        if more:
            print(f"jetcluster streams: {more}", file=sys.stderr)
        if as_json:
            print(json.dumps([_stream_object(group) for group in groups], ensure_ascii=False))
            return DONE
        several = any(group.account for group in groups)
        titles = ["stream", "leader", ">replicas", ">messages", ">size", ">consumers", "lag"]
        _show(titles, [_stream_row(group, several) for group in groups], "there are no streams")
        return DONE

    return connected("streams", servers, work)


def _streams(connection: Connection, within: float) -> tuple[list[StreamGroup], str]:
    """Returns the streams, and a text on those that are not among them; "" for none."""
    try:
        found = _listed(connection, "STREAM.LIST", "streams", within)
        groups = [_group(info, connection) for info in found.entries.values()]
        silent = [StreamGroup("", name, silent=True) for name in found.missing]
        return sorted([*groups, *silent], key=lambda group: group.name), ""
    except (ApiError, NoRespondersError) as error:
        if isinstance(error, ApiError) and error.err_code != NOT_ENABLED_FOR_ACCOUNT:
            raise
    answers, late = _all_accounts(connection, {}, within)
    more = [f"{', '.join(late)} did not list their streams in time"] if late else []
    return streams_of(answers), "; ".join(filter(None, [*more, untold_beyond(answers)]))


def _all_accounts(connection: Connection, more: Mapping[str, Any], within: float) -> tuple[list[Json], list[str]]:
    """Returns the answers, and the names of servers that are there and did not answer in time."""
    try:
        (pings,) = survey(connection, [(PING, {})], within)
        first = jsz_page(connection, 0, more, len(pings), within)
        found = all_pages(first, lambda offset: jsz_page(connection, offset, more, len(pings), within))
    except NoSystemUserError:
        raise ServerRefusedError(_NO_JETSTREAM) from None
    there, told = ({str(answer["server"]["name"]) for answer in answers} for answers in (pings, found))
    return found, sorted(there - told, key=natural)


def _listed(connection: Connection, subject: str, what: str, within: float) -> WholeList:
    return listed(lambda path, body: connection.api(path, body, timeout=within), subject, what)


def _group(info: Json, connection: Connection) -> StreamGroup:
    """Returns the stream of an answer of the API, without the account, which that does not say."""
    cluster = info.get("cluster") or {"leader": connection.server_name}
    state, leader = info["state"], str(cluster.get("leader") or "")
    replicas = list(cluster.get("replicas") or ())
    holders = [*([leader] if leader else []), *(str(replica["name"]) for replica in replicas)]
    return StreamGroup(
        "", str(info["config"]["name"]), leader, replicas, holders, state["messages"], state["bytes"],
        state.get("consumer_count", 0), bool(leader),
    )  # fmt: skip


def _stream_object(group: StreamGroup) -> Json:
    return {
        **({"account": group.account} if group.account else {}),
        "name": group.name, "leader": group.leader, "replicas": group.replicas, "messages": group.messages,
        "bytes": group.bytes, "consumers": group.consumers, "trouble": group.trouble(),
    }  # fmt: skip


def _stream_row(group: StreamGroup, several: bool) -> list[str]:
    lag = group.trouble() or "; ".join(group.lags()) or "none"
    count = max(len(group.replicas) + 1, len(group.holders)) if group.leader else len(group.holders)
    return [
        group.label if several else group.name, group.leader or "-", str(count), f"{group.messages:,}",
        size(group.bytes), f"{group.consumers:,}", lag,
    ]  # fmt: skip


def run_consumers(servers: ServerOptions, stream: str, *, as_json: bool) -> int:
    """Lists the consumers of `stream` (ACCOUNT/STREAM for a user of the system account), the slowest first. Returns 0,
    1 for an unknown stream, 2 when no server is reached."""

    def work(connection: Connection) -> int:
        consumers = sorted(_consumers(connection, stream, servers.connect_timeout), key=_behind, reverse=True)
        if as_json:
            print(json.dumps(consumers, ensure_ascii=False))
            return DONE
        titles = ["consumer", "kind", ">pending", ">unacked", ">redeliv", ">waiting", ">floor", "leader, lag"]
        _show(titles, [_consumer_row(one) for one in consumers], f"stream {stream} has no consumers")
        return DONE

    if not stream.strip("/"):
        return fail("consumers", "name a stream", NOT_REACHED)
    return connected("consumers", servers, work)


def _consumers(connection: Connection, stream: str, within: float) -> list[Json]:
    account, slash, name = stream.rpartition("/")
    if not slash:
        try:
            found = _listed(connection, f"CONSUMER.LIST.{stream}", "consumers", within)
        except ApiError as error:
            if error.err_code != NOT_ENABLED_FOR_ACCOUNT:
                raise
            text = "the account of this user has no JetStream; a user of the system account asks for ACCOUNT"
            raise ServerRefusedError(f"{text}/{stream}") from None
        if found.missing:
            raise ServerRefusedError(f"consumers that do not answer: {', '.join(sorted(found.missing))}")
        return list(found.entries.values())
    answers, silent = _all_accounts(connection, {"acc": account, "consumer": True, "config": True}, within)
    reports = list(_reports(answers, account, name))
    if not reports:
        for answer in answers:
            if problem := answer.get("error"):  # more than a server puts into one answer
                why = f"{answer['server']['name']} does not list them ({problem.get('description', problem)})"
                raise ServerRefusedError(f"{why}; a user of account {account} gets them in pages: consumers {name}")
        if silent:
            why = f"{', '.join(silent)} did not list them in time"
            raise ServerRefusedError(f"{why}; a user of account {account} gets them in pages: consumers {name}")
        raise ServerRefusedError(f"no server reports a stream {name} of account {account}")
    for server, report in reports:
        if (report.get("cluster") or {"leader": server}).get("leader") == server:
            return list(report.get("consumer_detail") or ())
    raise ServerRefusedError(f"stream {stream} has no leader that answers")


def _reports(answers: list[Json], account: str, stream: str) -> Iterator[tuple[str, Json]]:
    """Yields each server with its report on the stream."""
    for answer in answers:
        for one in answer.get("data", {}).get("account_details") or ():
            for detail in one.get("stream_detail") or () if one["name"] == account else ():
                if detail["name"] == stream:
                    yield str(answer["server"]["name"]), detail


def _behind(consumer: Json) -> tuple[int, int, int]:
    """Returns the order of slowness: messages not acknowledged yet, those of them that are delivered, redeliveries."""
    unacked = consumer.get("num_ack_pending", 0)
    return consumer.get("num_pending", 0) + unacked, unacked, consumer.get("num_redelivered", 0)


def _consumer_row(consumer: Json) -> list[str]:
    config, cluster = consumer.get("config") or {}, consumer.get("cluster") or {}
    lags = [text for replica in cluster.get("replicas") or () if (text := lag_of(replica))]
    kind = "push" if config.get("deliver_subject") else "pull"
    if consumer.get("paused"):
        kind += ", paused"
    elif kind == "push" and not consumer.get("push_bound"):
        kind += ", unbound"
    # Letters first, as a narrow screen cuts the end off: somebody has to see to them.
    if letters := (consumer.get("dead_letters") or {}).get("waiting"):
        kind += f", letters: {letters:,}"
    sharing = consumer.get("order_per_key") or {}
    for field, title in (("keys_waiting", "keys"), ("members", "members")):
        if count := sharing.get(field):
            kind += f", {title}: {count:,}"
    waiting = f"{consumer.get('num_waiting', 0):,}" if kind.startswith("pull") else "-"
    return [
        str(consumer["name"]), kind, f"{consumer.get('num_pending', 0):,}", f"{consumer.get('num_ack_pending', 0):,}",
        f"{consumer.get('num_redelivered', 0):,}", waiting, f"{consumer['ack_floor']['stream_seq']:,}",
        "; ".join([str(cluster.get("leader") or "-"), *lags]),
    ]  # fmt: skip


def _show(titles: list[str], rows: list[list[str]], none: str) -> None:
    from rich.console import Console

    if rows:
        console = Console(highlight=False)
        console.print(table(titles, rows, console.width, last_wraps=True))
    else:
        print(none)
