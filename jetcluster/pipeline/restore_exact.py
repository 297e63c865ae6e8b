"""`--mode exact`: a new stream from an archive, made by STREAM.RESTORE, read back and compared.

`RestoreTransfer` is the client's side of STREAM.RESTORE: it sends an archive in pieces to a server, which makes a
stream with the sequences, times, header blocks and gaps of the archive. The stream accepts no publish until it is
complete; if the client goes away, the server removes it, so an interrupted restore starts over (docs/pipeline.md).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jetcluster.client.connection import Connection
from jetcluster.client.reply import NoRespondersError, Reply
from jetcluster.client.servers import ask
from jetcluster.client.stream_state import StreamError, StreamState, stream_state
from jetcluster.errors import ApiError, JetclusterError, PassingError
from jetcluster.pipeline import restore_plan
from jetcluster.pipeline.arguments import server_options_of, source_options
from jetcluster.pipeline.environment import progress
from jetcluster.pipeline.restore_plan import PADDING, RestorePlan, RowTotals
from jetcluster.pipeline.result import DataLoss, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

PIECE_BYTES: Final = 128 * 1024
WINDOW_PIECES: Final = 8
"""Pieces in flight without an answer."""
INTEREST_SECONDS: Final = 3.0
SILENCE_SECONDS: Final = 1.0
"""Pause after which padding is sent; the server gives up after five seconds without a piece."""
ANSWER_SECONDS: Final = 60.0
"""Timeout of an answer; the last one arrives when the stream is complete."""


class NotTheArchiveError(JetclusterError):
    """The archived rows differ from the manifests."""


class RestoreTransfer:
    """One restore over one connection."""

    def __init__(self, connection: Connection, config: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Starts the restore on the server. Raises ApiError (10130: the name is taken), and as `Connection.api`."""
        self._connection = connection
        self._state = state
        name = config["name"]
        answer = connection.api(f"STREAM.RESTORE.{name}", {"config": config, "state": state})
        self._subject = str(answer["deliver_subject"])
        self.totals = RowTotals()

    def send(self, blobs: Iterable[tuple[bytes, RowTotals]], expected: Callable[[RowTotals], str]) -> dict[str, Any]:
        """Sends the archive and returns the answer that describes the stream. If `expected` returns a fault of the
        totals (not ""), the archive is left incomplete, and the server discards it. Raises ApiError,
        NotTheArchiveError, ConnectionLostError, RequestTimeoutError, and what `blobs` raises."""
        self._begin(restore_plan.head(json.dumps(self._state).encode(), time.time_ns()))
        for found in with_pauses(blobs, SILENCE_SECONDS):
            if found is None:
                self._put(PADDING)
                self._answered(0)
                continue
            blob, totals = found
            self.totals = self.totals.plus(totals)
            for at in range(0, len(blob), PIECE_BYTES):
                self._put(blob[at : at + PIECE_BYTES])
        if wrong := expected(self.totals):
            raise NotTheArchiveError(wrong)
        self._put(restore_plan.tail())
        self._answered(0)
        return _checked(self._connection.request(self._subject, b"", timeout=ANSWER_SECONDS))

    def _begin(self, piece: bytes) -> None:
        """Sends the first piece until it is answered, as the connected server may learn of the subject late."""
        deadline = time.monotonic() + INTEREST_SECONDS
        while True:
            try:
                _checked(self._connection.request(self._subject, piece, timeout=ANSWER_SECONDS))
            except NoRespondersError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def _put(self, piece: bytes) -> None:
        self._connection.publish_acked(self._subject, piece)
        if self._connection.outstanding >= WINDOW_PIECES:
            self._answered(WINDOW_PIECES // 2)

    def _answered(self, down_to: int) -> None:
        for _, reply in self._connection.acks(down_to, ANSWER_SECONDS):
            _checked(reply)


def _checked(reply: Reply) -> dict[str, Any]:
    """Returns an answer. Raises ApiError if it is an error."""
    if reply.status:
        raise ApiError(reply.status, 0, reply.description or "the restore is not known to the server any more")
    found: dict[str, Any] = reply.json() if reply.data.startswith(b"{") else {}
    if error := found.get("error"):
        raise ApiError.from_dict(error)
    return found


def with_pauses(items: Iterable[T], seconds: float) -> Iterator[T | None]:
    """Yields the items, read ahead in a thread; None whenever the next one takes longer than `seconds`."""
    ready: queue.Queue[tuple[T | None, BaseException | None, bool]] = queue.Queue(maxsize=8)
    stopped = threading.Event()

    def put(entry: tuple[T | None, BaseException | None, bool]) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(entry, timeout=0.1)
                return

    def read() -> None:
        try:
            for item in items:
                put((item, None, False))
                if stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the items are taken
            put((None, error, True))
        else:
            put((None, None, True))

    thread = threading.Thread(target=read, name="restore-read", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item, error, ended = ready.get(timeout=seconds)
            except queue.Empty:
                yield None
                continue
            if error is not None:
                raise error
            if ended:
                return
            yield item
    finally:
        stopped.set()
        thread.join(10)


MAX_ATTEMPTS: Final = 5
NAME_TAKEN: Final = 10130
GONE_SECONDS: Final = 25.0
"""The longest wait until the server has removed the incomplete stream of an interrupted restore."""


def restore_exact(session: SparkSession, plan: RestorePlan, args: argparse.Namespace) -> dict[str, Any]:
    """Restores the archive and compares the stream with it. Raises UsageError if a different stream exists already,
    DataLoss if the archive is damaged or the new stream differs from it."""
    attempts = 0
    there = _existing(plan, args)
    while there is None:
        attempts += 1
        try:
            _transfer(plan, args, attempts)
        except NotTheArchiveError as error:
            raise DataLoss(str(error)) from None
        except (PassingError, ApiError) as error:
            if attempts >= MAX_ATTEMPTS or not _may_pass(error):
                raise
            progress(f"the restore was interrupted ({error}); trying again")
        there = _existing(plan, args)
    fields: dict[str, Any] = {"attempts": attempts, "was_there": attempts == 0}
    if not args.no_verify or attempts == 0:
        if wrong := _compare(session, plan, args):
            if attempts == 0:
                raise UsageError(f"stream {plan.target} exists already, and differs from the archive: {wrong}")
            raise DataLoss(f"stream {plan.target} differs from the archive: {wrong}")
        fields["verified"] = True
    return fields


def _may_pass(error: JetclusterError) -> bool:
    """Returns whether a new attempt may succeed, as after the loss of a server or leader. An ApiError without an error
    code is a status in place of an answer: the server that took the restore is gone."""
    return error.retriable or (isinstance(error, ApiError) and error.err_code == 0)


def _transfer(plan: RestorePlan, args: argparse.Namespace, attempt: int) -> None:
    options = server_options_of(args)
    deadline = time.monotonic() + GONE_SECONDS
    with options.connect(attempt - 1) as connection:
        while True:
            try:
                transfer = RestoreTransfer(connection, plan.config, _state(plan))
                break
            except ApiError as error:
                if error.err_code != NAME_TAKEN or time.monotonic() > deadline:
                    raise
                time.sleep(1.0)  # the server will remove the stream of an interrupted restore
        transfer.send(_blobs(plan, quiet=args.json), lambda totals: _difference(totals, plan.totals))


def _blobs(plan: RestorePlan, *, quiet: bool) -> Iterator[tuple[bytes, RowTotals]]:
    for one in plan.manifests:
        made = plan.sorted_rows(one).mapInArrow(restore_plan.blobs, restore_plan.BLOB_SCHEMA)
        for row in made.toLocalIterator(prefetchPartitions=True):
            yield bytes(row.blob), RowTotals(row.rows, row.bytes, row.digest, row.places)
        if not quiet:
            progress(f"batch {one.number}: {one.rows} rows sent")


def _difference(found: RowTotals, wanted: RowTotals) -> str:
    if found.rows != wanted.rows:
        return f"{found.rows} rows were read, the manifests have {wanted.rows}"
    if (found.digest, found.places) != (wanted.digest, wanted.places):
        return f"{found.rows} rows were read, and their checksums are not those of the manifests"
    return ""


def _state(plan: RestorePlan) -> dict[str, Any]:
    """Returns the archived stream's state in the fields of STREAM.RESTORE."""
    from jetcluster.model.times import rfc3339

    return {
        "messages": plan.totals.rows,
        "bytes": sum(sum(one.files.values()) for one in plan.manifests),
        "first_seq": plan.first_seq or plan.end,
        "first_ts": rfc3339(plan.first_time or 0),
        "last_seq": plan.end - 1,
        "last_ts": rfc3339(plan.last_time or 0),
        "consumer_count": 0,
    }


def _existing(plan: RestorePlan, args: argparse.Namespace) -> StreamState | None:
    """Returns the stream's state, None if there is none. Waits for the removal of an interrupted restore's stream."""
    deadline = time.monotonic() + GONE_SECONDS
    told = args.json
    while True:
        try:
            found = ask(server_options_of(args), lambda connection: stream_state(connection, plan.target))
        except StreamError:
            return None
        may_be_half = found.messages <= plan.totals.rows and found.last <= plan.end - 1
        complete = (found.messages, found.last) == (plan.totals.rows, plan.end - 1)
        if complete or not may_be_half or time.monotonic() > deadline:
            return found
        if not told:
            progress(f"{plan.target} is there, but not whole: waiting, in case an interrupted restore is being removed")
            told = True
        time.sleep(0.5)


def _compare(session: SparkSession, plan: RestorePlan, args: argparse.Namespace) -> str:
    """Describes the difference between the stream and the archive; "" for none."""
    from pyspark.sql import functions as F

    state = ask(server_options_of(args), lambda connection: stream_state(connection, plan.target))
    if (state.messages, state.last) != (plan.totals.rows, plan.end - 1):
        return f"{state.messages} messages up to {state.last}, the archive has {plan.totals.rows} up to {plan.end - 1}"
    if not state.messages:
        return ""
    options = source_options(args) | {"stream": plan.target, "columns": "seq,time_ns,digest"}
    rows = session.read.format("jetstream").options(**options).load()
    place = F.xxhash64("seq", "time_ns", "digest")
    found = rows.agg(F.count("*"), F.bit_xor("digest"), F.bit_xor(place)).first()
    assert found is not None
    return _difference(RowTotals(found[0], 0, found[1] or 0, found[2] or 0), plan.totals)
