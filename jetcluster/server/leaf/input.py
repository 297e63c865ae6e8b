"""The input of a leaf link, worked on in portions, in turns with others who send much (`fairness.Governor`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from jetcluster.protocol import leaf
from jetcluster.protocol.connection_states import CHECKING, JOINED
from jetcluster.protocol.valve import Valve
from jetcluster.server.client.clients import ServerParts
from jetcluster.server.connection import Connection
from jetcluster.server.fairness import CHUNK_BYTES, HEAVY_READ, LINE_BYTES, MAX_QUANTUM, PORTION_SECONDS, SMALL_READ

log = logging.getLogger("jetcluster.server")

HEADROOM = 64 * 1024
"""Bytes a message may have beyond max_payload: headers that servers add on the way."""
LOOK_EVERY = 16
"""Messages after which it is seen whether there is time left."""
COMMAND_WORK = 8
"""So many messages of a portion a command is worth that is none."""


class LeafInput(Connection):
    """A leaf link, but for what its commands do (`link.LeafLink`)."""

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts.state, parts.sockets, parts.new_cid())
        self.parts = parts
        options = parts.state.options
        self._parser = leaf.LeafParser(options.max_payload + HEADROOM, options.max_control_line)
        self._rest: list[leaf.Command] = []
        """Commands that were read and wait for their turn, or for the password."""
        self._queued = False
        """It waits for a turn (`fairness.Governor`)."""

    def _message(self, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes) -> None:
        raise NotImplementedError

    def _command(self, kind: int, a: bytes, b: bytes, weight: list[bytes]) -> None:
        raise NotImplementedError

    def _process(self, data: bytes) -> None:
        self._parser.push(data)
        if self.state is CHECKING or self._queued:
            return  # reading is paused, but this may have been under way
        if len(data) < SMALL_READ or self.parts.governor.admits(heavy=len(data) >= HEAVY_READ):
            self._run(MAX_QUANTUM)
        else:
            self._queue()

    def _run(self, quantum: int) -> None:
        """Runs what has been read, up to the end of this turn's portion."""
        parser, clock = self._parser, self.server.clock
        end = clock.monotonic() + PORTION_SECONDS
        work = 0
        while (self._rest or parser.waiting) and not self.close_reason and self.state is not CHECKING:
            if work >= quantum or (work and clock.monotonic() >= end):
                self._queue()
                return
            work += self._run_some(iter(self._rest or parser.take(CHUNK_BYTES)), quantum - work, end)
        if self.close_reason:
            return
        if self.state is CHECKING:
            self.pause_reading("login")
            return
        self.resume_reading("portion")
        if parser.error is not None:
            log.warning("leafnode cid %d: %s", self.cid, parser.error)
            self.close(parser.error.reason, parser.error.text)

    def _run_some(self, commands: Iterator[leaf.Command], quantum: int, end: float) -> int:
        """Runs `commands`, or some of them when that is enough for one portion; how much work that was."""
        work = 1  # of those that say nothing
        for kind, a, b, queues, headers, payload in commands:
            try:
                if kind == leaf.MESSAGE:
                    self._message(a, b, queues, headers, payload)
                    work += 1
                else:
                    self._command(kind, a, b, queues)
                    work += COMMAND_WORK + len(a) // LINE_BYTES
            except Exception:  # a fault of ours with one command must not reach the loop or end the link
                said = b"CONNECT" if kind == leaf.CONNECT else a[:200]  # it holds a password
                log.exception("leafnode cid %d: error in %r", self.cid, said)
            if self.close_reason or self.state is CHECKING or work >= quantum:
                break
            if not work % LOOK_EVERY and self.server.clock.monotonic() >= end:
                break  # one of them may go to thousands
        self._rest = list(commands)
        return work

    # ---- turns

    def _queue(self) -> None:
        self._queued = True
        self.pause_reading("portion")
        self.parts.governor.wait(self, None, light=False)

    def _forget_input(self) -> None:
        self._rest.clear()
        self._parser.drop()
        if self._queued:
            self._queued = False
            self.parts.governor.leave(self, None)

    def take_turn(self, quantum: int) -> None:
        """See `fairness.Governed`."""
        self._queued = False
        self._run(quantum)

    def wait_at(self, valve: Valve) -> None:
        """A link is not held for what it brings: see `valve.Waiter`."""

    def _finish_input(self) -> None:
        """Everything that the other end had sent counts: there is no more of it than of one read."""
        self.holds.add("over")  # the transport is gone: nothing pauses or resumes it
        while self.state is JOINED and self._queued and not self.close_reason:
            self.parts.governor.leave(self, None)
            self.take_turn(MAX_QUANTUM)
