"""`ImportContext`: what the service imports of all accounts share, and the way that a message takes through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetcluster.clock import Clock, Rng, Timers
from jetcluster.protocol.bus import Origin

Link = tuple[tuple[str, str], dict[str, Any] | None, bool]
"""(account and subject of an export, who asked, whether that is shared in full) of a service import under way; of a
response it is not said who asked."""

Publish = Callable[[bytes, bytes], int]
"""(subject, payload), in one account."""


class ImportContext:
    """One per server. `system_account`, `server_name` and `cluster` are as the options have them at the start."""

    def __init__(
        self, clock: Clock, timers: Timers, rng: Rng, *, server_name: str, cluster: str, system_account: str
    ) -> None:
        self.clock = clock
        self.timers = timers
        self.rng = rng
        self.server_name = server_name
        self.cluster = cluster
        self.system_account = system_account
        self.way: tuple[Origin | None, tuple[Link, ...]] = None, ()
        """Whose message is being routed now, and the service imports that it has come through. What a callback
        publishes meanwhile has another origin, and its own way."""

    def chain_of(self, origin: Origin) -> tuple[Link, ...]:
        """The service imports that the message of `origin` which is being routed has come through."""
        return self.way[1] if self.way[0] is origin else ()

    def tell(self, publish: Publish, subject: bytes, kind: str, fields: dict[str, Any]) -> None:
        """Publishes a metric of the type `kind`."""
        from jetcluster.model.advisory import Advisories, Event

        publish(subject, Advisories(self.clock, self.rng).render(Event(subject, kind, fields)))


def describe(origin: Origin, share: bool) -> dict[str, Any]:
    """`share`: all that is known of a client, else its account and round-trip time."""
    if share and (info := origin.client_info()):
        return _told(info)
    found: dict[str, Any] = {"acc": origin.account}
    rtt = int(origin.rtt * 1e9)
    if rtt:
        found["rtt"] = rtt
    return found


def responder(origin: Origin) -> dict[str, Any]:
    """The client that answered; {} when that is not a client of this node."""
    return _told(origin.client_info())


def _told(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key != "rtt" or value}
