"""`--mode exact`: a new stream from an archive, made by STREAM.RESTORE, read back and compared.

An interrupted restore starts over (docs/pipeline.md).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from jetcluster.client.restore_transfer import RestoreTransfer
from jetcluster.client.servers import ask
from jetcluster.client.stream_state import StreamError, StreamState, stream_state
from jetcluster.errors import ApiError, JetclusterError, PassingError
from jetcluster.pipeline import restore_plan
from jetcluster.pipeline.arguments import server_options_of, source_options
from jetcluster.pipeline.environment import progress
from jetcluster.pipeline.restore_plan import RestorePlan, RowTotals
from jetcluster.pipeline.result import DataLoss, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_ATTEMPTS: Final = 5
NAME_TAKEN: Final = 10130
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
        rows = _Rows(plan, quiet=args.json)
        transfer.send(rows.blobs(), check=rows.check)


class _Rows:
    """The archived rows on their way to the server, counted."""

    def __init__(self, plan: RestorePlan, *, quiet: bool) -> None:
        self._plan = plan
        self._quiet = quiet
        self._totals = RowTotals()

    def blobs(self) -> Iterator[bytes]:
        for one in self._plan.manifests:
            made = self._plan.sorted_rows(one).mapInArrow(restore_plan.blobs, restore_plan.BLOB_SCHEMA)
            for row in made.toLocalIterator(prefetchPartitions=True):
                self._totals = self._totals.plus(RowTotals(row.rows, row.bytes, row.digest, row.places))
                yield bytes(row.blob)
            if not self._quiet:
                progress(f"batch {one.number}: {one.rows} rows sent")

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
