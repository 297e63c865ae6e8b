"""`RangeFetch`: every message of a range of sequences, from replicas that may lag, by batched Direct Gets.

A replica that has not applied all of the range answers with what it has and then "no more", exactly as if nothing more
were stored. So the end of an answer counts only with a proof (`_is_covered`): jetcluster reports the sequence up to
which the replica had applied the stream (`Jc-Applied-Seq`, asked for by `Jc-Proof`); without it, the leader is asked
whether it has anything in the rest of the range. A request without a proof is repeated on the next server for
`replicaWait`, with the sequence that the leader has (`min_last_seq`), for which jetcluster waits; then the task fails.
A message missing in the middle of an answer shows in the count that every message carries (`frames.is_whole`).

Mirrors answer Direct Gets of their origin, too. They may lack messages of the origin and hold messages deleted there,
so their answers count only if the query asks for a mirror.
"""

from __future__ import annotations

import heapq
import json
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from jetcluster.arrow.frames import Batch, MessageBatch, sequence, taken
from jetcluster.arrow.link import Link
from jetcluster.arrow.options import SourceOptions
from jetcluster.client.connection import Gather
from jetcluster.client.reply import ConnectionLostError, NoRespondersError, Reply, RequestTimeoutError
from jetcluster.client.stream_state import StreamError, leader_next, stream_state
from jetcluster.errors import ApiError, JetclusterError, PassingError

PROOF: Final = b"NATS/1.0\r\nJc-Proof: 1\r\n\r\n"
FIRST_FILTERED: Final = 512
"""Messages in the first request with a filter: before an answer, nobody knows how far so many messages reach."""
FILTERED_MARGIN: Final = 1.2
GATHERS_AHEAD: Final = 2
"""Requests in flight while an answer is processed."""
MERGED_ROWS: Final = 1000
MERGED_BYTES: Final = 4 << 20
"""Messages of several filters that become one batch: so many, or about so many bytes."""
MIN_PAUSE_SECONDS: Final = 0.02
MAX_PAUSE_SECONDS: Final = 0.5


LOOK_SECONDS: Final = 1.0
"""After this time without anybody who answers for a stream, a reader asks whether it is there."""


class ReplicaLagError(PassingError):
    """No replica that was asked has applied all of the range."""


class IncompleteError(PassingError):
    """An answer has a hole or ended early; the request must be repeated."""


class RangeFetch:
    """Messages with `low` <= sequence < `high` on `subject` of the stream that `link` asks; `leader_of` is the stream
    whose leader is authoritative (the origin, when a mirror is read)."""

    def __init__(
        self,
        link: Link,
        options: SourceOptions,
        leader_of: str,
        subject: str,
        low: int,
        high: int,
        *,
        columns: bool = False,
    ) -> None:
        """`columns`: batches are ColumnBatch where there are compiled loops."""
        self.link = link
        """The connection. Its creator closes it."""
        self._options = options
        self._leader_of = leader_of
        self._subject = subject
        self._columns = columns
        self._at = low
        self._high = high
        self._ahead: deque[tuple[int, Gather]] = deque()
        """Gathers requested in advance, each with the sequence at which it begins."""
        self._dense = False
        """The last answer had every sequence requested, so the start of the answer after the next one can be guessed.
        Two requests in flight hide the round trip to a distant cluster."""
        self._awaited = 0
        """A sequence that the leader has and the last replica had not reached: the next one waits until it has."""
        self._per_sequence = 0.0
        """Messages per sequence in the last answer to a request with a filter; 0 before the first."""
        self._waited = 0.0
        """Monotonic time of the first failure since the last batch; 0 for none."""
        self._pause = MIN_PAUSE_SECONDS

    def __iter__(self) -> Iterator[Batch]:
        """Yields batches in order. Raises StreamError, and the error of the last attempt when retries are exhausted."""
        while self._at < self._high:
            try:
                batch = self._next()
            except (ConnectionLostError, RequestTimeoutError, IncompleteError) as error:
                self.link.go_on()
                self._wait(error, self._options.retry_timeout)
            except NoRespondersError as error:
                self._look_for_stream()
                self.link.no_responders()
                self._wait(error, self._patience)
            except ReplicaLagError as error:
                if self._options.preference.kind != "peer":
                    self.link.go_on()
                self._wait(error, self._options.replica_wait)
            except ApiError as error:
                if not error.retriable:
                    raise
                self.link.go_on()
                self._wait(error, self._options.retry_timeout)
            else:
                if batch is None:
                    return
                self._waited, self._pause = 0.0, MIN_PAUSE_SECONDS
                self.link.answered()
                if self._options.prefetch and self._at < self._high:
                    self._ask_ahead()
                yield batch

    def _look_for_stream(self) -> None:
        """Raises StreamError when nobody has answered for some time and the stream is not there any more."""
        if self._waited and time.monotonic() - self._waited > LOOK_SECONDS:
            check_there(self.link, self._leader_of, self._options.request_timeout)

    @property
    def _patience(self) -> float:
        return max(self._options.retry_timeout, self._options.replica_wait)

    def _wait(self, error: JetclusterError, most: float) -> None:
        self._forget_ahead()
        self.link.retries += 1
        now = time.monotonic()
        self._waited = self._waited or now
        if now - self._waited + self._pause > most:
            raise error
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)

    def _next(self) -> Batch | None:
        """Returns the next batch; None when the rest of the range is proven to be empty."""
        gather = self._asked_early() or self._ask(self._at)
        end = gather.wait()
        if end.status not in (204, 404):
            if is_behind(end):
                raise ReplicaLagError(self._lag(end))
            refuse(end, self._leader_of)
        batch = taken(gather)
        if not batch.count:
            if end.status == 204:
                raise IncompleteError(f"an answer from {self._at} on without messages")
            if self._is_covered(end):
                return None
            raise ReplicaLagError(self._lag(end))
        left = int(end.get("Nats-Num-Pending") or -1)
        if not batch.is_whole(left, int(end.get("Nats-Last-Sequence") or 0)) or batch.first < self._at:
            raise IncompleteError(f"an answer of {batch.count} messages from {self._at} on has holes")
        last = batch.last
        if batch.stream != self.link.stream:
            raise IncompleteError(f"{batch.stream}, a mirror, answered for {self.link.stream}")
        found = batch.count
        if last >= self._high:
            batch = batch.below(self._high)
        if self._subject != ">":
            self._per_sequence = found / (last + 1 - self._at)
        proven = not left and self._applied(end) >= self._high - 1
        self._dense = last + 1 == self._at + self._options.fetch_batch
        self._at = self._high if proven else last + 1
        return batch

    def _ask_ahead(self) -> None:
        """Requests answers that arrive while this one is processed. Ignores failures, as `_next` then asks again."""
        if self._ahead and self._ahead[0][0] != self._at:
            self._forget_ahead()
        step = self._options.fetch_batch
        try:
            while len(self._ahead) < (GATHERS_AHEAD if self._dense else 1):
                at = self._ahead[-1][0] + step if self._ahead else self._at
                if at >= self._high:
                    return
                self._ahead.append((at, self._ask(at)))
        except JetclusterError:
            self._forget_ahead()
            self.link.go_on()

    def _asked_early(self) -> Gather | None:
        if self._ahead and self._ahead[0][0] == self._at:
            return self._ahead.popleft()[1]
        self._forget_ahead()
        return None

    def _forget_ahead(self) -> None:
        for _, gather in self._ahead:
            gather.forget()
        self._ahead.clear()

    def _ask(self, at: int) -> Gather:
        request: dict[str, object] = {
            "seq": at,
            "batch": min(self._options.fetch_batch, self._high - at, self._expected(at)),
            "max_bytes": self._options.fetch_bytes,
        }
        if self._subject != ">":
            request["next_by_subj"] = self._subject
        if self._awaited >= at:
            request["min_last_seq"] = self._awaited
        body = json.dumps(request).encode()
        timeout = self._options.request_timeout
        return self.link.connection.gather(self.link.subject, body, PROOF, timeout, columns=self._columns)

    def _expected(self, at: int) -> int:
        """Returns about how many messages match from `at` on to the end of the range. A request has no upper bound, and
        what lies beyond the range would be sent to no purpose."""
        if self._subject == ">":
            return self._high - at
        if not self._per_sequence:
            return FIRST_FILTERED
        return int((self._high - at) * self._per_sequence * FILTERED_MARGIN) + FIRST_FILTERED // 8

    def _applied(self, end: Reply) -> int:
        """Returns the sequence up to which the replica had applied the stream; 0 for no report, or a mirror's."""
        return int(end.get("Jc-Applied-Seq") or 0) if end.get("Jc-Stream") == self.link.stream else 0

    def _is_covered(self, end: Reply) -> bool:
        """Returns whether nothing of the range is left: the replica had applied it all, or the leader has no more."""
        if self._applied(end) >= self._high - 1:
            return True
        found = leader_next(
            self.link.connection, self._leader_of, self._at, self._subject, self._options.request_timeout
        )
        if found is None or found >= self._high:
            return True
        self._awaited = found
        return False

    def _lag(self, end: Reply) -> str:
        who = end.get("Jc-Peer") or end.get("Nats-Answered-By") or self.link.connection.server_name
        applied = self._applied(end) or int(end.get("Nats-Applied-Sequence") or 0)
        has = f", it has applied {applied}" if applied else ""
        return (
            f"{self._leader_of}: the replica on {who} has nothing from {self._at} on and the leader does{has} "
            f"(the range ends at {self._high - 1}; replicaWait={self._options.replica_wait:g}s)"
        )


def check_there(link: Link, stream: str, timeout: float) -> None:
    """Raises StreamError for a stream that was deleted; returns where nobody can say."""
    try:
        stream_state(link.connection, stream, timeout)
    except (ApiError, ConnectionLostError, NoRespondersError, RequestTimeoutError):
        return


def is_behind(end: Reply) -> bool:
    """Returns whether a replica refused as it had not reached `min_last_seq`."""
    return end.status == 503 and end.description == "Min Last Sequence"


def refuse(end: Reply, stream: str) -> None:
    """Raises the error that a status stands for: NoRespondersError or StreamError."""
    if end.status == 503:
        raise NoRespondersError(
            f"no replica of {stream} answers Direct Gets (allow_direct must be true, the replica up and current)"
        )
    raise StreamError(f"{stream}: Direct Get was answered with {end.status} {end.description}")


def merged(fetches: list[RangeFetch]) -> Iterator[Batch]:
    """Yields the messages of several subjects of one range by sequence, each once. Raises as the fetches do."""
    if len(fetches) == 1:
        yield from fetches[0]
        return
    heads: list[bytes] = []
    payloads: list[bytes] = []
    before = size = 0
    for seq, _, head, payload in heapq.merge(*(_rows(fetch, at) for at, fetch in enumerate(fetches))):
        if seq == before:  # its subject matches two filters
            continue
        before = seq
        heads.append(head)
        payloads.append(payload)
        size += len(head) + len(payload)
        if len(heads) >= MERGED_ROWS or size >= MERGED_BYTES:
            yield MessageBatch(heads, payloads)
            heads, payloads, size = [], [], 0
    if heads:
        yield MessageBatch(heads, payloads)


def _rows(fetch: RangeFetch, at: int) -> Iterator[tuple[int, int, bytes, bytes]]:
    for batch in fetch:
        assert isinstance(batch, MessageBatch), "a merge is of messages"
        for head, payload in zip(batch.heads, batch.payloads, strict=True):
            yield sequence(head), at, head, payload
