"""`GuardWatch`: a stream's leader says when its retention guard begins to refuse publishes, and when it gives messages
up (advisories and a line in the log). It looks after commands; what was counted before it led is not told again."""

from __future__ import annotations

from typing import Final

from jetcluster.model.advisory import guard_overrun, guard_refuses
from jetcluster.replica.replica_state import ReplicaState, tell_both

PAUSE_SECONDS: Final = 1.0
"""Time between two looks: a guard that gives up all the time says so once per second."""


class GuardWatch:
    """The watch over the guard of one stream."""

    def __init__(self, replica: ReplicaState) -> None:
        self._replica = replica
        self._looked = 0.0
        self._given_up = -1
        """Messages given up when it was last looked; -1: not yet, since this replica leads."""
        self._refuses = False
        self._waits = False
        """A look is due at the end of the pause."""

    def look(self) -> None:
        """Tells what has changed. Called at the end of a turn with commands, while the stream has a guard."""
        replica = self._replica
        clock = replica.runtime.clock
        guard, rules = replica.machine.guard, replica.machine.rules.guard
        if rules is None or not replica.leading:
            self._given_up, self._refuses = -1, False
            return
        rest = self._looked + PAUSE_SECONDS - clock.monotonic()
        if rest > 0:
            if not self._waits:
                self._waits = True
                replica.runtime.timers.call_later(rest, self._look_again)
            return
        self._looked = clock.monotonic()
        name, log = replica.assignment.name, replica.runtime.log
        refused = guard.refuses_now(clock.time_ns())
        if refused is not None and not self._refuses:
            log.warning("a retention guard refuses publishes", stream=name, consumer=rules.consumer, reason=refused)
            tell_both(replica, guard_refuses(name, rules.consumer, refused, guard.waiting))
        self._refuses = refused is not None
        messages = guard.overrun.messages
        if messages > self._given_up >= 0:
            more = messages - self._given_up
            log.warning("a retention guard gave messages up", stream=name, consumer=rules.consumer, messages=more)
            tell_both(replica, guard_overrun(name, rules.consumer, more, guard.overrun.to))
        self._given_up = messages

    def _look_again(self) -> None:
        self._waits = False
        if not self._replica.failed and self._replica.leading:
            self.look()
