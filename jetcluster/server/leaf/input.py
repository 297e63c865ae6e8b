"""The input of a leaf link, run in portions, in turns with other heavy senders (`fairness.Governor`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from jetcluster.log_limit import FROM_STRANGERS
from jetcluster.protocol import leaf
from jetcluster.protocol.connection_states import CHECKING, JOINED, SECURING
from jetcluster.server.client.clients import ServerParts
from jetcluster.server.fairness import CHUNK_BYTES, HEAVY_READ, LINE_BYTES, MAX_QUANTUM, PORTION_SECONDS, SMALL_READ
from jetcluster.server.leaf.connection import LeafConnection
from jetcluster.server.leaf.handshake import Handshake

log = logging.getLogger("jetcluster.server")

HEADROOM_BYTES = 64 * 1024
"""Bytes by which a message may exceed max_payload, for headers that servers add on the way."""
MESSAGES_PER_CLOCK_READ = 16
"""Messages between two reads of the clock."""
COMMAND_MESSAGES = 8
"""Messages charged to a portion for a command other than a message."""


class LeafInput:
    """The input of one link."""

    def __init__(self, link: LeafConnection, parts: ServerParts, handshake: Handshake) -> None:
        self._link = link
        self._governor = parts.governor
        self._handshake = handshake
        options = parts.state.options
        self._parser = leaf.LeafParser(options.max_payload + HEADROOM_BYTES, options.max_control_line)
        self._rest: list[leaf.Command] = []
        """Parsed commands that wait for a turn, or for the end of a slow login."""
        self._queued = False
        """True while the link waits for a turn (`fairness.Governor`)."""

    def receive(self, data: bytes) -> None:
        link = self._link
        if link.state is SECURING:
            self._handshake.receive_early(data)
            return
        link.last_activity = link.server.clock.monotonic()
        self._parser.push(data)
        if link.state is CHECKING or self._queued:
            return  # reading is paused, but this read was in progress
        if len(data) < SMALL_READ or self._governor.admits(heavy=len(data) >= HEAVY_READ):
            self._work(MAX_QUANTUM)
        else:
            self._queue()

    def _work(self, quantum: int) -> None:
        """Runs the input, up to the end of this turn's portion."""
        link, parser, clock = self._link, self._parser, self._link.server.clock
        end = clock.monotonic() + PORTION_SECONDS
        work = 0
        while (self._rest or parser.waiting) and not link.close_reason and link.state is not CHECKING:
            if work >= quantum or (work and clock.monotonic() >= end):
                self._queue()
                return
            work += self._run(iter(self._rest or parser.take(CHUNK_BYTES)), quantum - work, end)
        if link.close_reason:
            return
        if link.state is CHECKING:
            link.pause_reading("login")
            return
        link.resume_reading("portion")
        if parser.error is not None:
            log.warning("leafnode cid %d: %s", link.cid, parser.error, extra=FROM_STRANGERS)
            link.close(parser.error.reason, parser.error.text)

    def _run(self, commands: Iterator[leaf.Command], quantum: int, end: float) -> int:
        """Runs `commands` up to the end of the portion and keeps the rest; returns the work done, in messages."""
        link = self._link
        work = 1  # also without a command
        for kind, subject, reply, queues, headers, payload in commands:
            try:
                if kind == leaf.MESSAGE:
                    link.take_message(subject, reply, queues, headers, payload)
                    work += 1
                else:
                    link.run_command(kind, subject, reply, queues)
                    work += COMMAND_MESSAGES + len(subject) // LINE_BYTES
            except Exception:  # an unexpected exception in one command must not affect the loop or end the link
                said = b"CONNECT" if kind == leaf.CONNECT else subject[:200]  # CONNECT holds a password
                log.exception("leafnode cid %d: error in %r", link.cid, said)
            if link.close_reason or link.state is CHECKING or work >= quantum:
                break
            if not work % MESSAGES_PER_CLOCK_READ and link.server.clock.monotonic() >= end:
                break  # one message may have thousands of takers
        self._rest = list(commands)
        return work

    # ---- turns

    def _queue(self) -> None:
        self._queued = True
        self._link.pause_reading("portion")
        self._governor.wait(self._link, None, light=False)

    def take_turn(self, quantum: int) -> None:
        """See `fairness.Governed`."""
        self._queued = False
        self._work(quantum)

    def go_on(self) -> None:
        """Processes the input that waited for a slow login."""
        self._work(MAX_QUANTUM)

    def end(self) -> None:
        """Drops the input of a link that is gone, and its place in the queue."""
        self._rest.clear()
        self._parser.drop()
        if self._queued:
            self._queued = False
            self._governor.leave(self._link, None)

    def finish(self) -> None:
        """Runs all input that was received before the connection was lost, which is at most one read."""
        link = self._link
        link.holds.add("over")  # the transport is gone: it must not be paused or resumed
        while link.state is JOINED and self._queued and not link.close_reason:
            self._governor.leave(link, None)
            self.take_turn(MAX_QUANTUM)
