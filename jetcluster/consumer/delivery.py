"""`Delivery`: what is different between pull and push, as `owner.ConsumerOwner` sees it.

The owner keeps what both share - state, selection, acks, subscriptions, redelivery times, inactivity - and calls its
delivery, which decides who gets what:

- `owner.selection.take(n)` / `take_due(n)` give messages, `give_back(...)` returns what was not used after all;
- `owner.submit(kind, value, token)` puts ops into the log; those of kinds DELIVER, REDELIVER, ADVANCE, WAIT, UNWAIT and
  PIN come back to `applied`;
- `owner.wake_at(ns)` asks for a tick, `owner.run_soon()` for a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from jetcluster.consumer.turn import Value

DELETED = "deleted"
MOVED = "moved"
SHUTDOWN = "shutdown"
"""Why an owner stops: the consumer is gone; another node owns it; this server goes down."""


class Delivery(Protocol):
    @property
    def num_waiting(self) -> int:
        """Open pull requests; 0 for push."""
        ...

    @property
    def push_bound(self) -> bool:
        """Somebody takes the deliver subject; False for pull."""
        ...

    @property
    def in_use(self) -> bool:
        """Someone is there to deliver to: open requests whose client still listens, or a bound deliver subject. May
        look closely: asked when the inactivity threshold has passed."""
        ...

    @property
    def wants_messages(self) -> bool:
        """New messages in the stream are worth a `run`."""
        ...

    def start(self) -> None:
        """Subscribes to what the strategy needs."""
        ...

    def stop(self, reason: str) -> Iterator[None]:
        """Unsubscribes; tells those who wait. `reason`: DELETED, MOVED or SHUTDOWN. Some thousands are told with each
        step of what is returned."""
        ...

    def run(self) -> None:
        """End of a loop turn: delivers what can be delivered. Not called while the consumer is paused."""
        ...

    def tick(self, now: int) -> None:
        """`now`: wall clock, ns. May come for another's sake; asks again with `owner.wake_at` for what is still to
        come. Called while paused too (heartbeats and expiries go on)."""
        ...

    def flush(self) -> None:
        """Puts into the log what was sent and is not there yet: somebody wants to know."""
        ...

    def applied(self, kind: int, value: Value, outcome: object, token: object) -> None:
        """An op of this delivery was applied here. The selection has seen it before."""
        ...

    def reset(self) -> None:
        """None of the ops in flight will ever be applied; the selection stands at the replicated state again."""
        ...

    def configured(self) -> None:
        """`owner.state.rules` is another one than before (update, pause)."""
        ...
