"""`$SYS` events: inform the system account of servers and connections of the cluster.

An event is built only when there is a subscriber, on this node or another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from jetcluster.clock import TimerHandle
from jetcluster.logs import get_logger
from jetcluster.model.advisory import Advisories, Event
from jetcluster.model.codec import dumps
from jetcluster.model.times import rfc3339
from jetcluster.monitor.accstatz import account_stats, connected_accounts, data_stats
from jetcluster.monitor.claims_view import of_connection
from jetcluster.monitor.source import Json
from jetcluster.monitor.view import ServerBlock
from jetcluster.node.node import Node

if TYPE_CHECKING:
    from jetcluster.server.accounts.router import Router
    from jetcluster.server.client.connection import ClientConnection

log = get_logger("monitor")

FIRST_STATSZ_SECONDS = 0.25
STATSZ_SECONDS = 10.0
"""Seconds between STATSZ; shorter ones come first."""
CONNS_SECONDS = 30.0
CONNS_PAUSE_SECONDS = 1.0
"""Least seconds between two counts of connections of the same account."""
_TYPE = "io.nats.server.advisory.v1."
CONNECTIONS = _TYPE + "account_connections"
_AUTH_REASONS = frozenset(("Authentication Failure", "Authentication Timeout"))


_CLIENT = (
    "start", "host", "id", "acc", "user", "name", "lang", "ver", "rtt", "stop", "jwt", "issuer_key", "name_tag", "tags",
    "kind", "client_type",
)  # fmt: skip
"""The fields of a client in an event, in this order: all but the server, which the event names beside it."""


class SystemEvents:
    """A `server.ConnectionWatcher`."""

    def __init__(self, node: Node, block: ServerBlock) -> None:
        self._node = node
        self._block = block
        self._bus: Router = node.server.account(node.options.system_account_name)
        self._advisories = Advisories(node.clock, node.server.rng)
        self._prefix = f"$SYS.SERVER.{node.server.server_id}."
        self._timers: dict[str, TimerHandle] = {}
        self._beat = FIRST_STATSZ_SECONDS
        self._changed: set[str] = set()
        self._telling: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._node.server.clients.watch(self)
        self._arm("stats", self._beat, self._stats_due)
        self._arm("conns", CONNS_SECONDS, self._conns_due)

    def stop(self) -> None:
        """Publishes that this server shuts down."""
        self._node.server.clients.watch(None)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._about_server("SHUTDOWN")

    def lame_duck(self) -> None:
        self._about_server("LAMEDUCK")

    def _about_server(self, what: str) -> None:
        subject = (self._prefix + what).encode()
        if self._bus.has_interest(subject):
            self._bus.publish(subject, dumps(self._block.make()))

    def _arm(self, name: str, delay: float, callback: Callable[[], None]) -> None:
        self._timers[name] = self._node.server.timers.call_later(delay, callback)

    # ---- connections

    def connected(self, client: ClientConnection) -> None:
        self._about_client(f"$SYS.ACCOUNT.{client.account}.CONNECT", "client_connect", client, {})
        self._count_changed(client.account)

    def disconnected(self, client: ClientConnection) -> None:
        reason = client.close_reason
        account = client.account or "$G"  # as nats-server: where it would have been without a name
        end = {
            "sent": data_stats(client.out_msgs, client.out_bytes),
            "received": data_stats(client.in_msgs, client.in_bytes),
            "reason": reason,
        }
        if reason in _AUTH_REASONS:
            self._about_client(self._prefix + "CLIENT.AUTH.ERR", "client_disconnect", client, end)
        if client.account or reason in _AUTH_REASONS:  # the others never had an identity
            self._about_client(f"$SYS.ACCOUNT.{account}.DISCONNECT", "client_disconnect", client, end)
        if client.account:
            self._count_changed(account)

    def _about_client(self, subject: str, kind: str, client: ClientConnection, end: Json) -> None:
        target = subject.encode()
        if not self._bus.has_interest(target):
            return
        account = client.account or "$G"
        info = {**client.client_info(), "acc": account, "name_tag": account, **of_connection(client)}
        if end:
            info["stop"] = rfc3339(self._node.clock.time_ns())
        told = {key: info[key] for key in _CLIENT if key in info}
        if not told["rtt"]:
            del told["rtt"]  # not known yet
        self._publish(target, _TYPE + kind, {"client": told, **end})

    def _publish(self, subject: bytes, kind: str, fields: Json) -> None:
        event = Event(subject, kind, {"server": self._block.make(), **fields})
        self._bus.publish(subject, self._advisories.render(event))

    # ---- numbers of connections

    def _count_changed(self, account: str) -> None:
        self._changed.add(account)
        if "changed" not in self._timers:
            self._arm("changed", 0.0, self._changed_due)

    def _changed_due(self) -> None:
        """Publishes all changes of the pause together, once it is over."""
        del self._timers["changed"]
        if self._changed:
            self._tell_conns(self._changed)
            self._changed = set()
            self._arm("changed", CONNS_PAUSE_SECONDS, self._changed_due)

    def _conns_due(self) -> None:
        self._tell_conns(connected_accounts(self._node))
        self._arm("conns", CONNS_SECONDS, self._conns_due)

    def _tell_conns(self, accounts: set[str]) -> None:
        heard = [name for name in sorted(accounts) if any(self._bus.has_interest(s) for s in _conns_subjects(name))]
        for stat in account_stats(self._node, heard):
            for subject in _conns_subjects(stat["acc"]):
                if self._bus.has_interest(subject):
                    self._publish(subject, CONNECTIONS, stat)

    # ---- statistics

    def _stats_due(self) -> None:
        self._beat = min(self._beat * 2, STATSZ_SECONDS)
        self._arm("stats", self._beat, self._stats_due)
        if self._bus.has_interest(self._stats_subject) and (self._telling is None or self._telling.done()):
            self._telling = asyncio.get_running_loop().create_task(self._tell_stats())

    @property
    def _stats_subject(self) -> bytes:
        return f"{self._prefix}STATSZ".encode()

    async def _tell_stats(self) -> None:
        """The page is imported in a thread, once."""
        statsz = await asyncio.to_thread(import_statsz)
        try:
            found = statsz(self._node)
        except Exception:
            log.exception("STATSZ failed")
            return
        self._bus.publish(self._stats_subject, dumps({"server": self._block.make(), "statsz": found}))


def import_statsz() -> Callable[[Node], Json]:
    """Imports the page; runs in a thread."""
    from jetcluster.monitor.varz import statsz

    return statsz


def _conns_subjects(account: str) -> tuple[bytes, bytes]:
    """Returns the newer and the older name."""
    return f"$SYS.ACCOUNT.{account}.SERVER.CONNS".encode(), f"$SYS.SERVER.ACCOUNT.{account}.CONNS".encode()
