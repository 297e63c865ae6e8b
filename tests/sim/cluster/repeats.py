"""Requests that are in a log twice, at the moment at which a replica applies the second one: it changes nothing, and of
the meta group it has the outcome of the first. Servers ask again whenever a leader goes before it has answered; clients
see a second outcome only where it is another one, or where something came in between."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from jetcluster.errors import STREAM_NOT_FOUND, ApiError
from jetcluster.meta.machine import MetaMachine
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.log.commands import NAMED, CommandError, request_of
from testkit.sim.deployment import Deployment

OUTCOME = ("error", "revision", "gid", "created", "removed", "moved")
"""Fields of an answer of the meta group that stay as they are; others show what a stream is now."""
Effects = tuple[int, ...]


class Repeats:
    """It tells `deployment.failed` of requests that are carried out twice."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        """Counts the requests that came again."""
        self._deployment = deployment
        self._outcomes: WeakKeyDictionary[MetaMachine, dict[str, tuple[int, Any]]] = WeakKeyDictionary()
        self._done: WeakKeyDictionary[StreamMachine, dict[int, int]] = WeakKeyDictionary()
        """By number of each request that was carried out, the index of its command."""

    def meta(self, machine: MetaMachine, index: int, command: bytes, result: Mapping[str, Any]) -> None:
        try:
            request = str(json.loads(command)["request"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        outcome = {field: result[field] for field in OUTCOME if field in result}
        known = self._outcomes.setdefault(machine, {})
        at, first = known.setdefault(request, (index, outcome))
        if at >= index:
            return
        self.looked += 1
        went = "gid" in first and outcome.get("error", {}).get("err_code") == STREAM_NOT_FOUND
        if outcome != first and not went:
            self._broken("the meta group", request, at, index, f"{outcome}, after {first}")

    def stream(self, machine: StreamMachine, index: int, request: int, result: object, effects: Effects) -> None:
        """`effects`: how many messages were removed meanwhile, were stored, jobs and consumers came or went."""
        known = self._done.setdefault(machine, {})
        if isinstance(result, ApiError):
            return  # it has changed nothing, and may be tried again
        at = known.setdefault(request, index)
        if at >= index or machine.rules.guard is not None:  # a guard lets go what it will whatever is applied
            return
        self.looked += 1
        if any(effects):
            self._broken(f"stream {machine.name}", request, at, index, f"changes of {effects}")

    def _broken(self, where: str, request: object, at: int, index: int, what: str) -> None:
        now = self._deployment.scheduler.now
        self._deployment.failed(f"at {now:.3f}: {where}: request {request} of {at} comes again at {index}: {what}")


def _counts(machine: StreamMachine) -> Effects:
    return machine.store.removals, machine.store.last_seq, machine.jobs, machine.consumer_count


@contextmanager
def watched(deployment: Deployment) -> Iterator[Repeats]:
    """All requests are looked at meanwhile."""
    repeats = Repeats(deployment)
    usual_meta: Callable[..., Any] = MetaMachine.apply
    usual_stream: Callable[..., Any] = StreamMachine.apply

    def apply_meta(self: MetaMachine, index: int, term: int, command: bytes) -> Any:
        result, effects = usual_meta(self, index, term, command)
        repeats.meta(self, index, command, result)
        return result, effects

    def apply_stream(self: StreamMachine, index: int, term: int, command: bytes) -> Any:
        if len(command) < 2 or not command[1] & NAMED:
            return usual_stream(self, index, term, command)
        before = _counts(self)
        result = usual_stream(self, index, term, command)
        try:
            request = request_of(command)
        except (CommandError, struct.error):
            return result
        after = _counts(self)
        repeats.stream(self, index, request, result, tuple(b - a for a, b in zip(before, after, strict=True)))
        return result

    with patch.object(MetaMachine, "apply", apply_meta), patch.object(StreamMachine, "apply", apply_stream):
        yield repeats
