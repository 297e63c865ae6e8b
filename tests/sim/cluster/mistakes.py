"""The judge of mistakes in the meta group, at the moment at which a replica makes one: a command that raises something
is refused by all alike, and what it was about goes on as before. Who asked may be a server that says nothing of it, and
asks again for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from jetcluster.meta.machine import MetaMachine
from testkit.sim.answers import BAD_META_COMMAND, is_defect
from testkit.sim.deployment import Deployment

SHOWN = 200
"""Bytes of a command that a failure shows."""


class Mistakes:
    """It tells `deployment.failed` of commands that raise something, unless a workload makes such ones."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        """Counts the commands."""
        self._deployment = deployment

    def applied(self, index: int, command: bytes, result: dict[str, Any]) -> None:
        self.looked += 1
        error = result.get("error") or {}
        if is_defect(error) and BAD_META_COMMAND not in self._deployment.expected:
            said = f"{error['description']}, at {index}: {command[:SHOWN]!r}"
            self._deployment.failed(f"at {self._deployment.scheduler.now:.3f}: the meta group: {said}")


@contextmanager
def watched(deployment: Deployment) -> Iterator[Mistakes]:
    """All commands of meta groups are looked at meanwhile."""
    mistakes = Mistakes(deployment)
    usual: Callable[..., Any] = MetaMachine.apply

    def apply(self: MetaMachine, index: int, term: int, command: bytes) -> Any:
        result, effects = usual(self, index, term, command)
        mistakes.applied(index, command, result)
        return result, effects

    with patch.object(MetaMachine, "apply", apply):
        yield mistakes
