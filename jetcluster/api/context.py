"""`ApiContext`: the services, settings and counters that the handlers of one server share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jetcluster.budget import LoopBudget
from jetcluster.clock import Clock, Rng
from jetcluster.config.options import CompatOptions
from jetcluster.logs import Log
from jetcluster.model.advisory import Advisories
from jetcluster.model.limits import UNLIMITED, AccountLimits

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream


@dataclass(slots=True)
class RequestCounters:
    """Requests answered on this node for one account: `api` in `$JS.API.INFO`."""

    total: int = 0
    errors: int = 0


@dataclass(slots=True)
class RestoreRoom:
    """The restores that clients of this node do, of all accounts."""

    restores: int = 0
    held: int = 0
    """Bytes that they have received and not passed on yet."""


@dataclass(slots=True)
class ApiContext:
    cluster: JetStream
    clock: Clock
    rng: Rng
    log: Log
    server_name: str
    budget: LoopBudget
    """For what may take longer than a request may keep the loop; by account."""
    domain: str = ""
    limits: Callable[[str], AccountLimits] = field(default=lambda account: UNLIMITED)
    """Limits of an account, by name: its own limits and what the servers hold."""
    own_limits: Callable[[str], AccountLimits] = field(default=lambda account: UNLIMITED)
    """Limits that the configuration gives the account alone; `$JS.API.INFO` shows it."""
    strict: bool = False
    """`jetstream { strict: true }`: keys that a request does not have are refused with 10025."""
    compat: CompatOptions = field(default_factory=CompatOptions)
    """Settings of what this node decides for requests that it takes; a reload puts another one here."""
    restore_room: RestoreRoom = field(default_factory=RestoreRoom)

    def advisories(self) -> Advisories:
        return Advisories(self.clock, self.rng, self.server_name, self.domain)

    def request_id(self) -> str:
        """Unique for ever: the meta group answers a repeated id with the first verdict."""
        return self.rng.token(12).hex()
