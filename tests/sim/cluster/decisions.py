"""Decisions about the servers of a stream, at the moment at which a replica of the meta group applies each: it was made
for the servers that the stream has then. Else it takes back what was decided meanwhile, which a client may have asked
for; whoever tends the streams puts right what is no valid place, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from jetcluster.meta.machine import MetaMachine
from testkit.sim.deployment import Deployment

Peers = tuple[str, ...]


class Decisions:
    """It tells `deployment.failed` of what was decided for others."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        """Counts the decisions that changed a stream's servers."""
        self._deployment = deployment

    def applied(self, command: Mapping[str, Any], before: Peers, after: Peers) -> None:
        """The command has changed the servers of its stream."""
        self.looked += 1
        made_for = tuple(command.get("from", before))
        if made_for != before:
            what = f"{command['kind']} to {after} was decided for {made_for}, and the stream is on {before}"
            self._deployment.failed(f"at {self._deployment.scheduler.now:.3f}: the meta group: {what}")


@contextmanager
def watched(deployment: Deployment) -> Iterator[Decisions]:
    """All decisions are looked at meanwhile."""
    decisions = Decisions(deployment)
    usual: Callable[..., Any] = MetaMachine.apply

    def apply(self: MetaMachine, index: int, term: int, raw: bytes) -> Any:
        command = _of_a_stream(raw)
        before = _peers(self, command)
        found = usual(self, index, term, raw)
        after = _peers(self, command)
        if command is not None and before and after and before != after:
            decisions.applied(command, before, after)
        return found

    with patch.object(MetaMachine, "apply", apply):
        yield decisions


def _of_a_stream(raw: bytes) -> dict[str, Any] | None:
    """The command, where it says for which servers it was decided."""
    if b'"from"' not in raw:
        return None
    try:
        command = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return command if isinstance(command, dict) and isinstance(command.get("from"), list) else None


def _peers(machine: MetaMachine, command: Mapping[str, Any] | None) -> Peers:
    if command is None:
        return ()
    config = command.get("config")
    name = command.get("name", config.get("name") if isinstance(config, dict) else None)
    found = machine.assignment(str(command.get("account")), str(name))
    return () if found is None else found.peers
