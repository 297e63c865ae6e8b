"""`jetcluster pipeline audit`: compares all replicas and mirrors of a stream, byte for byte.

Spark reads each copy separately and computes a count and a checksum per range of sequences; only ranges that differ are
compared message by message. The comparison ends at the sequence that the slowest copy has applied: the rest is reported
as lag. A difference counts if a second reading shows the same, so the stream may be in use. Exit code 1 means that
copies differ, or that one could not be read.

With `--against` two streams are compared, for example a restored one with its original.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jetcluster.pipeline import arguments
from jetcluster.pipeline.copies import Copy, applied, chosen, copies_of, fence, lags, mirrors_of
from jetcluster.pipeline.environment import progress
from jetcluster.pipeline.result import CHECK_FAILED, OK, Result, UsageError, explain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetcluster.client.servers import ServerOptions
    from jetcluster.client.stream_state import StreamState

Place = tuple[int, int]
"""(time in Unix nanoseconds, digest of subject, header block and payload)."""
Places = Mapping[int, Place]
"""Sequence -> the message with it."""


class Stored(NamedTuple):
    """One message as a copy holds it."""

    time_ns: int
    subject: str
    headers: bytes
    data: bytes


FIELDS: Final = Stored._fields


def differing(copies: Mapping[str, Places]) -> dict[int, dict[str, Place | None]]:
    """Returns the sequences that differ between copies, ascending, each with every copy's place (None: missing)."""
    every: set[int] = set()
    for places in copies.values():
        every |= places.keys()
    found = {}
    for seq in sorted(every):
        held = {name: places.get(seq) for name, places in copies.items()}
        if len(set(held.values())) > 1:
            found[seq] = held
    return found


def lasting(
    first: Mapping[int, dict[str, Place | None]], again: Mapping[int, dict[str, Place | None]]
) -> dict[int, dict[str, Place | None]]:
    """Returns the differences that a second reading of all copies confirms. A difference that came from reading a
    stream in use at two moments (a deletion applied on one replica only) is gone by then."""
    found = {}
    for seq, now in again.items():
        before = first.get(seq, {})
        if {name: before[name] for name in now if name in before} == now:  # a copy may be unreadable the second time
            found[seq] = now
    return found


def odd_ones(held: Mapping[str, object]) -> list[str]:
    """Returns the copies that differ from a majority; none when there is no majority."""
    (value, count), *_ = Counter(held.values()).most_common()
    return sorted(name for name, other in held.items() if other != value) if 2 * count > len(held) else []


def describe(held: Mapping[str, Stored | None]) -> dict[str, Any]:
    """Returns the fields in which copies of one message differ, and by copy its subject, size and those fields."""
    there = [stored for stored in held.values() if stored is not None]
    fields = [name for name in FIELDS if len({getattr(stored, name) for stored in there}) > 1]
    if len(there) < len(held):
        fields.append("missing")
    return {
        "differs": fields,
        "copies": {name: _shown(stored, fields) for name, stored in sorted(held.items())},
    }


def _shown(stored: Stored | None, fields: list[str]) -> dict[str, Any] | None:
    if stored is None:
        return None
    shown: dict[str, Any] = {"subject": stored.subject, "bytes": len(stored.data)}
    for name in fields:
        if name in FIELDS:
            value = getattr(stored, name)
            shown[name] = value[:80].decode(errors="backslashreplace") if isinstance(value, bytes) else value
    return shown


RANGE_SEQUENCES: Final = 10_000
RANGES_SHOWN: Final = 20
"""Ranges that are compared message by message, out of all that differ and are counted."""
SEQUENCES_SHOWN: Final = 20
SECOND_LOOK_SECONDS: Final = 2.0
"""Pause before the second reading."""
PLACES: Final = "seq,time_ns,digest"
MESSAGE: Final = "time_ns,subject,headers_raw,data"


@dataclass
class Comparison:
    """Copies that must hold the same messages from `low` to `high` (inclusive), and the result."""

    name: str
    copies: list[Copy]
    low: int
    high: int
    messages: int = 0
    ranges: int = 0
    differ: int = 0
    """Ranges whose checksums differ."""
    damage: list[dict[str, Any]] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_server(parser)
    parser.add_argument("--stream", required=True, help="the stream to audit")
    parser.add_argument("--peers", default="all", metavar="A[,B]", help="only the replicas on these servers")
    parser.add_argument("--mirrors", action="store_true", help="the replicas of streams that mirror it, too")
    parser.add_argument("--against", metavar="STREAM", help="compare with this stream instead of replica by replica")
    parser.add_argument("--against-server", metavar="URL[,URL]", help="where that stream is (default: --server)")
    other = parser.add_argument_group("--against-server", "who we are there, if not the same as for --server")
    arguments.add_login(other, arguments.AGAINST)
    parser.add_argument(
        "--by-source-seq",
        action="store_true",
        help="with --against: that one was published anew (restore --source-seq)",
    )
    parser.add_argument(
        "--range", type=int, default=RANGE_SEQUENCES, metavar="N", help="sequences per checksum (%(default)s)"
    )


def check(args: argparse.Namespace) -> None:
    """Checks the arguments before Spark starts. Raises UsageError."""
    if args.range < 1:
        raise UsageError("--range must be 1 or more")
    if args.against and (args.mirrors or args.peers != "all"):
        raise UsageError("--against compares two streams: without --peers and --mirrors")
    if args.against_server and not args.against:
        args.against = args.stream
    if args.by_source_seq and not args.against:
        raise UsageError("--by-source-seq is for --against")
    if args.against == args.stream and args.against_server in (None, args.server):
        raise UsageError("--against names the same stream")
    _chosen(arguments.stream_state_of(args, args.stream), args)


def _chosen(state: StreamState, args: argparse.Namespace) -> list[Copy]:
    """Raises UsageError."""
    try:
        return chosen(copies_of(state, arguments.source_options(args)), args.peers)
    except ValueError as error:
        raise UsageError(f"--peers: {error}") from None


def run(session: SparkSession, args: argparse.Namespace) -> Result:
    """Compares replicas, mirrors or two streams. Raises UsageError, and the errors of a connection."""
    started = time.monotonic()
    state = arguments.stream_state_of(args, args.stream)
    audit = Audit(session, args)
    if args.against:
        audit.against(state)
    else:
        audit.replicas(state)
    return audit.result(state, time.monotonic() - started)


class Audit:
    """One run of the job: its comparisons, and the copies that could not be compared."""

    def __init__(self, session: SparkSession, args: argparse.Namespace) -> None:
        self._session = session
        self._args = args
        self._options = arguments.source_options(args)
        self._server: ServerOptions = arguments.server_options_of(args)
        self.comparisons: list[Comparison] = []
        self.unreachable: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.lag: dict[str, int] = {}
        self.republished: dict[str, Any] | None = None

    # ---- the copies to compare

    def replicas(self, state: StreamState) -> None:
        """Compares the replicas with each other, and those of each mirror with the leader."""
        from jetcluster.client.stream_state import is_ours

        with self._server.connect() as connection:
            if not is_ours(connection):
                raise UsageError("only jetcluster lets each replica be asked; --against compares whole streams")
            mirrors, self.left_out = mirrors_of(connection, state.name) if self._args.mirrors else ([], {})
        self._compare(state.name, _chosen(state, self._args), state, state.first)
        for mirror in mirrors:
            theirs = copies_of(mirror, self._options, f"{mirror.name}@")
            leader = Copy(state.leader, state.name, state.leader, self._options)
            self._compare(mirror.name, [leader, *theirs], state, max(state.first, mirror.first))

    def against(self, state: StreamState) -> None:
        other_args = arguments.second_server(self._args)
        other = arguments.stream_state_of(other_args, self._args.against)
        ours = Copy(state.name, state.name, "", self._options)
        name = other.name if other.name != state.name else f"{other.name}@{other_args.server}"
        theirs = Copy(name, other.name, "", arguments.source_options(other_args))
        if self._args.by_source_seq:
            from jetcluster.pipeline.copies import compared

            self.republished = compared(self._session, ours, theirs, state.last, other.last)
            return
        # Both as a whole: a message before the first or after the last of the other stream is a difference, too.
        low, high = min(state.first, other.first), max(state.last, other.last)
        self._checksums(Comparison(name, [ours, theirs], max(low, 1), high))

    def _compare(self, name: str, copies: Sequence[Copy], state: StreamState, low: int) -> None:
        reached: dict[Copy, int] = {}
        for copy in copies:
            try:
                reached[copy] = applied(self._server, copy)
            except Exception as error:  # noqa: BLE001 - told as the answer about this copy
                self.unreachable[copy.name] = explain(error)[0]
        self.lag |= lags(reached, state.last)
        if reached:
            self._checksums(Comparison(name, list(reached), max(low, 1), fence(reached, state.last)))

    # ---- comparing

    def _checksums(self, job: Comparison) -> None:
        self.comparisons.append(job)
        if job.low > job.high:
            return
        read: list[DataFrame] = []
        for copy in list(job.copies):
            try:
                summary: Any = self._summary(copy, job).toArrow()  # a row per range, safe from workers that die
                read.append(self._session.createDataFrame(summary))
            except Exception as error:  # noqa: BLE001 - told as the answer about this copy
                job.unreadable[copy.name] = explain(error)[0]
                job.copies.remove(copy)
        if read:
            self._look_closer(job, _compared(read))

    def _summary(self, copy: Copy, job: Comparison) -> DataFrame:
        """Returns a row per range: count, first and last sequence, XOR of the hashes of messages and places."""
        from pyspark.sql import functions as F

        options = copy.reading(job.low, job.high, PLACES)
        rows = self._session.read.format("jetstream").options(**options).load()
        number = F.expr(f"(seq - {job.low}) div {self._args.range}").alias("range")
        if not self._args.json:
            progress(f"reading {copy.name}: {job.low} to {job.high}")
        return rows.groupBy(number).agg(
            F.count("*").alias("n"), F.min("seq").alias("first"), F.max("seq").alias("last"),
            F.bit_xor(F.xxhash64("seq", "time_ns", "digest")).alias("hash"),
        ).withColumn("copy", F.lit(copy.name))  # fmt: skip

    def _look_closer(self, job: Comparison, compared: DataFrame) -> None:
        totals = compared.selectExpr("count(*) AS ranges", "coalesce(sum(most), 0) AS messages").first()
        assert totals is not None
        job.ranges, job.messages = totals.ranges, totals.messages
        differ = compared.where(f"same > 1 OR copies < {len(job.copies)}").orderBy("range").persist()
        job.differ = differ.count()
        numbers = [row.range for row in differ.limit(RANGES_SHOWN).collect()]
        differ.unpersist()
        if not numbers:
            return
        bounds = [self._bounds(job, number) for number in numbers]
        first = [differing(self._read_places(job, low, high)) for low, high in bounds]
        time.sleep(SECOND_LOOK_SECONDS)
        for (low, high), before in zip(bounds, first, strict=True):
            again = lasting(before, differing(self._read_places(job, low, high)))
            kept_from = self._first_now()
            found = {seq: held for seq, held in again.items() if seq >= kept_from}
            if found:
                job.damage.append(self._finding(job, low, high, found))

    def _bounds(self, job: Comparison, number: int) -> tuple[int, int]:
        low = job.low + number * self._args.range
        return low, min(low + self._args.range - 1, job.high)

    def _first_now(self) -> int:
        """Returns the first sequence now, as limits may have removed messages, on one copy sooner than on another."""
        if self._args.against:
            return 0
        return int(arguments.stream_state_of(self._args, self._args.stream).first)

    def _read_places(self, job: Comparison, low: int, high: int) -> dict[str, dict[int, Place]]:
        """Returns the places of each copy by sequence. An unreadable copy is reported, and left out from here on."""
        found = {}
        for copy in list(job.copies):
            try:
                found[copy.name] = {seq: (when, digest) for seq, when, digest in rows_of(copy, low, high, PLACES)}
            except Exception as error:  # noqa: BLE001 - told as the answer about this copy
                job.unreadable[copy.name] = explain(error)[0]
                job.copies.remove(copy)
        return found

    def _finding(
        self, job: Comparison, low: int, high: int, found: Mapping[int, Mapping[str, Place | None]]
    ) -> dict[str, Any]:
        first = min(found)
        held: dict[str, Stored | None] = {}
        for copy in job.copies:
            try:
                rows = rows_of(copy, first, first, MESSAGE)
            except Exception as error:  # noqa: BLE001 - told as the answer about this copy
                job.unreadable[copy.name] = explain(error)[0]
                continue
            held[copy.name] = Stored(*rows[0]) if rows else None
        return {
            "range": [low, high], "first": first, "sequences": sorted(found)[:SEQUENCES_SHOWN], "count": len(found),
            "odd": odd_ones(found[first]), **describe(held),
        }  # fmt: skip

    # ---- the result

    def result(self, state: StreamState, seconds: float) -> Result:
        unread = dict(self.unreachable)
        damage: list[dict[str, Any]] = []
        for job in self.comparisons:
            unread |= job.unreadable
            damage += [{"compared": job.name, **one} for one in job.damage]
        fields: dict[str, Any] = {
            "stream": state.name,
            "compared": [
                {"with": job.name, "copies": [copy.name for copy in job.copies], "from": job.low, "to": job.high,
                 "messages": job.messages, "ranges": job.ranges, "differ": len(job.damage), "checksums": job.differ}
                for job in self.comparisons
            ],
            "damage": damage,
            "lag": self.lag,
            "unreachable": unread,
            "left_out": self.left_out,
            "seconds": round(seconds, 2),
        }  # fmt: skip
        if self.republished is not None:
            fields["republished"] = self.republished
            damage += self.republished["first"]
        return Result("audit", fields, CHECK_FAILED if damage or unread else OK)


def _compared(summaries: Sequence[DataFrame]) -> DataFrame:
    """Returns per range the number of copies that have it, of distinct checksums, and the most messages of any copy."""
    from functools import reduce

    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    rows = reduce(DataFrame.unionByName, summaries)
    return rows.groupBy("range").agg(
        F.count("*").alias("copies"), F.count_distinct(F.struct("n", "first", "last", "hash")).alias("same"),
        F.max("n").alias("most"),
    )  # fmt: skip


def rows_of(copy: Copy, low: int, high: int, columns: str) -> list[tuple[Any, ...]]:
    """Reads a range of a copy in this process. Raises what a task of the source raises."""
    from jetcluster.arrow.read_task import read_task
    from jetcluster.arrow.resolve import batch_extents, tasks_of
    from jetcluster.spark.options import source_options

    options = source_options(copy.reading(low, high, columns))
    found: list[tuple[Any, ...]] = []
    for task in tasks_of(batch_extents(options), options):
        for batch in read_task(task, options, columns.split(",")):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return found
