"""`Inflow`: messages on their way from the upstream into the log: collected per loop turn and proposed as SOURCED
commands, a bounded number of bytes at a time. The upstream's flow control bounds the waiting ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from jetcluster.errors import ApiError
from jetcluster.mirror.ports import LinkDependencies
from jetcluster.mirror.upstream import Upstream
from jetcluster.store.batch import MAX_SUBJECT, Batch
from jetcluster.stream.apply import counters
from jetcluster.stream.log import bodies, commands
from jetcluster.stream.log.bodies import cut

COMMAND_BYTES: Final = 512 << 10
COMMAND_MESSAGES: Final = 4096
FLIGHT_BYTES: Final = 8 << 20
MAX_WAITING_BYTES: Final = 64 << 20
"""Bytes that may wait: twice the largest window of flow control, so more bytes prove that there is none."""
RETRY_SECONDS: Final = 0.1
"""Delay before a command that the log did not take is offered again."""
OVERHEAD_BYTES: Final = 64


class Inflow:
    """The messages of one attempt of a link. `failed(error)` is called when a command was refused; it must `close`."""

    def __init__(
        self,
        around: LinkDependencies,
        upstream: Upstream,
        identity: bytes,
        after: int,
        failed: Callable[[ApiError], None],
    ) -> None:
        self._around = around
        self._upstream = upstream
        self._identity = identity
        self._after = after
        self._failed = failed
        self._seqs: list[int] = []
        self._times: list[int] = []
        self._subjects: list[bytes] = []
        self._headers: list[bytes] = []
        self._payloads: list[bytes] = []
        self._waiting = 0
        """Bytes not proposed yet."""
        self._pending = 0
        self._scheduled = False
        self._retrying = False
        """The log took nothing; a timer tries again."""
        self._closed = False
        self._flight: dict[int, tuple[int, int]] = {}
        """Proposed commands by log index: bytes, messages."""
        self._flight_bytes = 0
        self._taken = 0
        self.done = 0
        """Number of messages applied."""
        self._questions: deque[tuple[int, bytes, bytes]] = deque()
        """Flow control requests: number of applied messages that each waits for, reply subject, headers."""

    @property
    def settled(self) -> bool:
        """True when no message is under way."""
        return not self._seqs and not self._flight

    def newest(self) -> int:
        """Log index of the newest command under way, which has the last message received; 0 for none."""
        if self._seqs and not self._retrying:
            self._end_of_turn()
        return next(reversed(self._flight), 0)

    def close(self) -> None:
        self._closed = True
        self._flight.clear()
        self._questions.clear()

    def begin(self, upto: int, pending: int) -> bool:
        """Proposes the sequence at which the link begins; False when the log takes nothing now."""
        begun = self.tell(pending, upto)
        self._after = max(self._after, upto)
        return begun

    def tell(self, pending: int, upto: int = 0) -> bool:
        """Proposes the number of messages that the upstream has left, without a message."""
        return self._propose(bodies.encode_sourced(self._upstream.key, self._identity, pending, self._after, upto), 0)

    def take(self, seq: int, ts: int, subject: bytes, headers: bytes, payload: bytes, pending: int) -> None:
        """Takes a message of the upstream, which has `pending` more after it."""
        upstream = self._upstream
        block = headers
        if not upstream.mirror or headers:
            block = upstream.headers(headers, seq, subject, self._identity)
        made = upstream.mapped(subject, seq) if upstream.transforms else subject
        if not 0 < len(made) <= MAX_SUBJECT:
            self._failed(
                upstream.setup_error(f"the subject of message {seq} is empty or longer than {MAX_SUBJECT} bytes")
            )
            return
        self._seqs.append(seq)
        self._times.append(ts)
        self._subjects.append(made)
        self._headers.append(block)
        self._payloads.append(payload)
        self._pending = pending
        self._taken += 1
        self._waiting += len(block) + len(payload)
        if self._waiting > MAX_WAITING_BYTES:
            self._failed(upstream.setup_error("the upstream sends more than flow control permits"))
            return
        if not self._scheduled:
            self._scheduled = True
            self._around.timers.call_soon(self._end_of_turn)

    def question(self, reply: bytes, headers: bytes = b"") -> None:
        """Takes a flow control request: answers with `headers` once all messages before it are applied."""
        self._questions.append((self._taken, reply, headers))
        self._answer()

    def applied(self, index: int, result: object) -> None:
        entry = self._flight.pop(index, None)
        if entry is None or self._closed:
            return
        size, count = entry
        self._flight_bytes -= size
        if isinstance(result, ApiError):
            self._failed(result)
            return
        self.done += count
        self._answer()
        if self._seqs:
            self._end_of_turn()

    def _answer(self) -> None:
        while self._questions and self._questions[0][0] <= self.done:
            _, reply, headers = self._questions.popleft()
            self._around.bus.publish(reply, headers=headers)

    def _end_of_turn(self) -> None:
        self._scheduled = self._retrying = False
        while self._seqs and not self._closed and self._flight_bytes < FLIGHT_BYTES:
            count = self._fitting()
            body = self._body(count)
            if not self._propose(body, count):
                self._scheduled = self._retrying = True
                self._around.timers.call_later(RETRY_SECONDS, self._end_of_turn)
                return
            self._after = self._seqs[count - 1]
            self._waiting -= sum(map(len, self._headers[:count])) + sum(map(len, self._payloads[:count]))
            for column in (self._seqs, self._times, self._subjects, self._headers, self._payloads):
                del column[:count]

    def _fitting(self) -> int:
        """Number of messages in the next command."""
        counts = self._around.target.rules.allow_msg_counter and not self._upstream.mirror
        count = min(len(self._seqs), counters.MAX_COMMAND_MESSAGES if counts else COMMAND_MESSAGES)
        size = 0
        for i in range(count):
            size += len(self._headers[i]) + len(self._payloads[i]) + OVERHEAD_BYTES
            if size >= COMMAND_BYTES:
                return i + 1
        return count

    def _body(self, count: int) -> bytes:
        seqs, headers = self._seqs[:count], self._headers[:count]
        subjects, payloads = self._subjects[:count], self._payloads[:count]
        key, pending = self._upstream.key, self._pending + len(self._seqs) - count
        if self._upstream.mirror:
            runs = cut(seqs, self._times[:count], subjects, headers, payloads)
            return bodies.encode_sourced(key, self._identity, pending, self._after, 0, runs)
        batch = Batch.encode(subjects, headers, payloads)
        return bodies.encode_sourced(key, self._identity, pending, self._after, seqs[-1], (), seqs, batch)

    def _propose(self, body: bytes, count: int) -> bool:
        index = self._around.target.propose(commands.encode_sourced(self._around.clock.time_ns(), body))
        if index is None:
            return False
        self._flight[index] = (len(body), count)
        self._flight_bytes += len(body)
        return True
