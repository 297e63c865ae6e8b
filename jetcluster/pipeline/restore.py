"""`jetcluster pipeline restore`: restores an archive to a stream.

--mode exact    a new stream with the sequences, times, header blocks and gaps of the archive, made by the server's own
                restore: all or nothing, read back and compared at the end
--mode fence    messages are published to a stream in order, each once, without a time limit; an interrupted run
                resumes. Atomic batches leave their own headers on the messages, and gaps are closed
--mode msgid    messages are published in parallel, in order per subject, each once within the duplicate window
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any, Final

from jetcluster.archive import manifest
from jetcluster.archive.storage import open_archive
from jetcluster.pipeline.arguments import add_server, server_options_of
from jetcluster.pipeline.restore_plan import RestorePlan
from jetcluster.pipeline.result import Result, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODES: Final = ("exact", "fence", "msgid")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument(
        "--from", dest="source", required=True, metavar="URL", help="the archive: a folder, or s3://, gs://, az://"
    )
    parser.add_argument("--stream", help="stream to restore into (default: the archived stream's name)")
    parser.add_argument(
        "--mode", choices=MODES, default="exact", help="exact makes a new stream; fence and msgid publish"
    )
    parser.add_argument("--upto-seq", type=int, metavar="N", help="leave out what had a sequence above N")
    parser.add_argument(
        "--create", action="store_true", help="fence, msgid: create the stream as it was, if it is missing"
    )
    parser.add_argument("--replicas", type=int, metavar="N", help="of the stream that is made (default: as archived)")
    parser.add_argument("--subjects", metavar="S[,S]", help="of the stream that is made (default: as archived)")
    parser.add_argument(
        "--no-limits",
        action="store_true",
        help="of the stream that is made: none may remove old messages",
    )
    parser.add_argument(
        "--source-seq", action="store_true", help="fence, msgid: header Jc-Source-Seq holds the archived sequence"
    )
    parser.add_argument("--start-after", type=int, metavar="SEQ", help="fence: the last sequence of a stream in use")
    parser.add_argument("--no-verify", action="store_true", help="exact: do not read the new stream back")


def check(args: argparse.Namespace) -> None:
    """Checks the arguments before Spark starts. Raises UsageError, and what `manifest.load` raises."""
    if args.upto_seq is not None and args.upto_seq < 1:
        raise UsageError("--upto-seq must be 1 or more")
    if args.mode == "exact" and (args.source_seq or args.start_after is not None):
        raise UsageError("--source-seq and --start-after are for --mode fence and msgid")
    if not manifest.load(open_archive(args.source)):
        raise UsageError(f"--from {args.source}: no archive there")
    with server_options_of(args).connect():
        pass


def run(session: SparkSession, args: argparse.Namespace) -> Result:
    started = time.monotonic()
    plan = RestorePlan(session, args)
    fields: dict[str, Any] = {
        "stream": plan.target,
        "from": plan.url,
        "mode": args.mode,
        "rows": plan.totals.rows,
        "start": plan.start,
        "end": plan.end,
        "deleted": plan.deleted,
    }
    if args.mode == "exact":
        from jetcluster.pipeline.restore_exact import restore_exact

        fields |= restore_exact(session, plan, args)
    else:
        from jetcluster.pipeline.restore_publish import publish

        fields |= publish(session, plan, args)
    fields["seconds"] = round(time.monotonic() - started, 2)
    return Result("restore", fields)
