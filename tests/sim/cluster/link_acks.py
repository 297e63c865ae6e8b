"""Acknowledgements of links to their upstream, at the moment of each: the copy has what they say. The harm takes the
loss of the copy's leader before it has it, of an upstream that removes what is acknowledged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from jetcluster.server.accounts.router import Router
from testkit.sim.deployment import Deployment
from tests.sim.cluster.invariants import jetstream_of

if TYPE_CHECKING:
    from testkit.sim.machine import Machine

ACK: Final = re.compile(rb"NATS/1\.0\r\nNats-Last-Consumer: \d+\r\nNats-Last-Stream: (\d+)\r\n\r\n")
"""Headers of an answer to flow control that acknowledges; those of heartbeats have a status."""


class LinkAcks:
    """It tells `deployment.failed` of what is acknowledged and not there."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        self._deployment = deployment

    def acks(self, router: Any, subject: bytes, seq: int) -> None:
        """A link of this server says to the consumer that is named in `subject` that it has all up to `seq`."""
        machine = self._machine(router)
        told = subject.split(b".")
        for replica in jetstream_of(machine).replicas.values() if machine is not None else ():
            for link in replica.mirrors.links.by_key.values():
                # consumers of two upstreams may have one name
                if not {str(attrgetter("_consumer")(link)).encode(), link.upstream.name.encode()}.issubset(told):
                    continue
                self.looked += 1
                cursor = replica.machine.cursor(link.upstream.key)
                has = replica.store.last_seq if link.upstream.mirror else 0 if cursor is None else cursor.seq
                if seq > has:
                    self._broken(replica, f"it acknowledges {seq} of {link.upstream.name}, and has {has}")

    def _broken(self, replica: Any, what: str) -> None:
        name, now = replica.network.name, self._deployment.scheduler.now
        self._deployment.failed(f"at {now:.3f}: {name}, stream {replica.assignment.name}: {what}")

    def _machine(self, router: Any) -> Machine | None:
        for machine in self._deployment.machines.values():
            if jetstream_of(machine) is not None and router in attrgetter("node.server.accounts")(machine):
                return machine
        return None


@contextmanager
def watched(deployment: Deployment) -> Iterator[LinkAcks]:
    """All acknowledgements of links are looked at meanwhile."""
    acks = LinkAcks(deployment)
    usual: Callable[..., int] = Router.publish

    def publish(self: Router, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        if headers and (told := ACK.fullmatch(headers)) is not None:
            acks.acks(self, subject, int(told[1]))
        return usual(self, subject, payload, reply, headers)

    with patch.object(Router, "publish", publish):
        yield acks
