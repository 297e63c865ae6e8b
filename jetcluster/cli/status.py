"""`jetcluster status` and `jetcluster health`: the cluster on one screen, and as an exit code."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from jetcluster.cli.cluster_state import NO_ANSWER, OK, PING, ClusterState, health_reasons, read_cluster
from jetcluster.cli.common import DONE, NOT_REACHED, connected, fail
from jetcluster.cli.status_view import printable, screen
from jetcluster.client.connection import Connection
from jetcluster.client.reconnect import Reconnecting
from jetcluster.client.reply import RequestTimeoutError
from jetcluster.client.servers import ServerOptions
from jetcluster.client.survey import NoSystemUserError, survey
from jetcluster.errors import JetclusterError, PassingError

if TYPE_CHECKING:
    from rich.console import Console

UNHEALTHY: Final = 1


def run_status(servers: ServerOptions, *, as_json: bool, watch: bool, every: float) -> int:
    """Shows the cluster once, or every `every` seconds until Ctrl-C. Returns 0, or 2 when no server is reached or the
    user may not ask."""
    try:
        if watch:
            return _watch(servers, as_json, every)
        return connected("status", servers, lambda connection: _show(connection, servers.connect_timeout, as_json))
    except KeyboardInterrupt:
        return DONE


def _show(connection: Connection, within: float, as_json: bool) -> int:
    try:
        cluster = read_cluster(connection, within)
    except NoSystemUserError as error:
        return fail("status", str(error), NOT_REACHED)
    if as_json:
        print(as_text(cluster))
    else:
        _console().print(screen(cluster))
    return DONE


def as_text(cluster: ClusterState) -> str:
    """Returns the cluster as one line of JSON."""
    return json.dumps(as_object(cluster), ensure_ascii=False)


def as_object(cluster: ClusterState) -> dict[str, Any]:
    """Returns all fields of the state, `healthy`, and `troubles` as texts."""
    troubles = cluster.troubles()
    return {"healthy": not troubles, "troubles": troubles, **asdict(cluster)}


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def _watch(servers: ServerOptions, as_json: bool, every: float) -> int:
    link = Reconnecting(servers, lambda text: print(f"jetcluster status: {text}", file=sys.stderr, flush=True))
    console = _console()
    try:
        if as_json or not console.is_terminal:
            show: Callable[[ClusterState], None] = lambda cluster: print(as_text(cluster), flush=True)  # noqa: E731
            return _repeat(
                link, show if as_json else lambda cluster: console.print(screen(cluster), ""), servers, every
            )
        from rich.live import Live

        with Live(console=console, auto_refresh=False, screen=True) as live:
            return _repeat(link, lambda cluster: live.update(screen(cluster), refresh=True), servers, every)
    except JetclusterError as error:
        return fail("status", str(error), NOT_REACHED)
    finally:
        link.close()


def _repeat(link: Reconnecting, show: Callable[[ClusterState], None], servers: ServerOptions, every: float) -> int:
    while True:
        begun = time.monotonic()
        try:
            show(read_cluster(link.connection(servers.connect_timeout), servers.connect_timeout))
        except PassingError:
            link.next()
        time.sleep(max(every - (time.monotonic() - begun), 0.1))


def run_health(servers: ServerOptions, server: str, *, as_json: bool) -> int:
    """Prints the reasons why the cluster, or one server, is not healthy. Returns 0 for a healthy one, 1 for one that is
    not, 2 when that cannot be found out."""

    def work(connection: Connection) -> int:
        try:
            if server:
                return _one(connection, server, servers.connect_timeout, as_json)
            cluster = read_cluster(connection, servers.connect_timeout)
        except (NoSystemUserError, RequestTimeoutError) as error:
            return fail("health", str(error), NOT_REACHED)
        return _verdict(f"cluster {cluster.name}" if cluster.name else "the server", cluster.troubles(), as_json)

    return connected("health", servers, work)


def _one(connection: Connection, server: str, within: float, as_json: bool) -> int:
    body = {"details": True, "server_name": server, "exact_match": True}
    try:
        ((answer, *_),) = survey(connection, [(f"{PING}.HEALTHZ", body)], within, lambda _: 1)
    except RequestTimeoutError:
        return _verdict(server, [f"{server} does not answer within {within:g} s"], as_json)
    health, reasons = health_reasons(answer)
    assert health != NO_ANSWER
    return _verdict(server, [] if health == OK else reasons, as_json)


def _verdict(what: str, troubles: list[str], as_json: bool) -> int:
    if as_json:
        print(json.dumps({"healthy": not troubles, "troubles": troubles}, ensure_ascii=False))
    else:
        print(printable("\n".join(troubles) or f"{what} is healthy"))
    return UNHEALTHY if troubles else DONE
