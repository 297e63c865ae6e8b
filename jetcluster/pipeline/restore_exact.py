"""`--mode exact`: a new stream from an archive, made by STREAM.RESTORE, read back and compared.

One connection sends the archive, as a stream has one order. What costs, which is to read, check and encode its rows, is
done by tasks, as many at a time as there are cores; the driver hands on what they made. An interrupted restore starts
over (docs/pipeline.md).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from jetcluster.client.restore_transfer import RestoreTransfer
from jetcluster.client.servers import ask
from jetcluster.client.stream_state import StreamError, StreamState, stream_state
from jetcluster.errors import ApiError, JetclusterError, PassingError
from jetcluster.pipeline import restore_parts, restore_rows
from jetcluster.pipeline.archive_tasks import FilePart
from jetcluster.pipeline.arguments import server_options_of, source_options
from jetcluster.pipeline.environment import progress
from jetcluster.pipeline.naming import named
from jetcluster.pipeline.restore_plan import RestorePlan
from jetcluster.pipeline.restore_rows import RowTotals
from jetcluster.pipeline.result import DataLoss, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_ATTEMPTS: Final = 5
NAME_TAKEN: Final = 10130
MAX_AHEAD: Final = 8
"""Parts of the archive that the driver holds until they are sent, at most."""
GONE_SECONDS: Final = 25.0
"""The longest wait until the server has removed the incomplete stream of an interrupted restore."""


class NotTheArchiveError(JetclusterError):
    """The archived rows differ from the manifests."""


def restore_exact(session: SparkSession, plan: RestorePlan, args: argparse.Namespace) -> dict[str, Any]:
    """Restores the archive and compares the stream with it. Raises UsageError if a different stream exists already,
    DataLoss if the archive is damaged or the new stream differs from it."""
    attempts = 0
    there = _existing(plan, args)
    while there is None:
        attempts += 1
        try:
            _transfer(session, plan, args, attempts)
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


def _transfer(session: SparkSession, plan: RestorePlan, args: argparse.Namespace, attempt: int) -> None:
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
        rows = _Rows(session, plan, quiet=args.json)
        transfer.send(rows.blobs(), check=rows.check)


class _Rows:
    """The archived rows on their way to the server, counted."""

    def __init__(self, session: SparkSession, plan: RestorePlan, *, quiet: bool) -> None:
        self._session = session
        self._plan = plan
        self._quiet = quiet
        self._totals = RowTotals()

    def blobs(self) -> Iterator[bytes]:
        """Yields the middle of the archive. Tasks make the next parts of it meanwhile, one for each core."""
        context: Any = getattr(self._session, "sparkContext", None)  # Spark Connect has none, and tells no cores
        width = min(context.defaultParallelism, MAX_AHEAD) if context is not None else MAX_AHEAD
        for part, made in restore_parts.ahead(
            restore_parts.cut(self._plan.manifests, self._plan.end), self._made, width
        ):
            found = RowTotals()
            for batch in made.to_batches():
                for row in batch.to_pylist():
                    found = found.plus(RowTotals(row["rows"], row["bytes"], row["digest"], row["places"]))
                    yield row["blob"]
            self._totals = self._totals.plus(found)
            if not self._quiet:
                progress(f"sequences {part.low} to {part.high - 1}: {found.rows} rows sent")

    def _made(self, part: FilePart) -> tuple[FilePart, Any]:
        """Returns a part's blobs, made by one task."""
        url = self._plan.url

        def make(batches: Iterable[Any]) -> Iterator[Any]:
            for _ in batches:
                yield from restore_rows.blobs(restore_parts.in_order(url, part, restore_rows.COLUMNS))

        with named(self._session, f"{self._plan.stream} restored: sequences {part.low} to {part.high - 1}"):
            return part, self._session.range(0, 1, 1, 1).mapInArrow(make, restore_rows.BLOB_SCHEMA).toArrow()

    def check(self) -> None:
        """Raises NotTheArchiveError."""
        if wrong := _difference(self._totals, self._plan.totals):
            raise NotTheArchiveError(wrong)


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
        "bytes": sum(one.size for one in plan.manifests),
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
