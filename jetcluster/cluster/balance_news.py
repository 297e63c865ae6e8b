"""`BalanceMove`: a move for balance, for the log and the advisory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jetcluster.model.advisory import balanced, for_system_account
from jetcluster.records import NamedTuple

if TYPE_CHECKING:
    from jetcluster.logs import Log
    from jetcluster.meta.state import Assignment
    from jetcluster.replica.services import Events

Numbers = Mapping[str, int]
"""{"count": leaders, consumers or replicas, "weight"} of a server."""


class BalanceMove(NamedTuple):
    """One move, with names of servers, never their ids."""

    kind: str
    """`leader`, `consumer` or `replica`."""
    assignment: Assignment
    consumer: str
    source: str
    target: str
    why: str
    before: tuple[Numbers, Numbers]
    """The source's, and the target's."""
    after: tuple[Numbers, Numbers]

    def to_dict(self) -> dict[str, Any]:
        """For monitoring."""
        found = {
            "account": self.assignment.account, "stream": self.assignment.name, "kind": self.kind,
            "consumer": self.consumer, "from": self.source, "to": self.target, "why": self.why,
        }  # fmt: skip
        return {key: value for key, value in found.items() if value}

    def tell(self, log: Log, events: Events) -> None:
        """Log line and advisory, for the stream's account and the system account."""
        account, stream = self.assignment.account, self.assignment.name
        consumer = {"consumer": self.consumer} if self.consumer else {}
        log.info(
            f"for balance a {self.kind} goes to another server", account=account, stream=stream, **consumer,
            source=self.source, target=self.target, reason=self.why,
        )  # fmt: skip
        names = self.source, self.target
        before, after = (dict(zip(names, numbers, strict=True)) for numbers in (self.before, self.after))
        event = balanced(stream, self.kind, self.consumer, names, self.why, before, after)
        events.tell(account, event)
        events.tell(events.system_account, for_system_account(event, account))
