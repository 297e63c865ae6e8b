"""`jetcluster pipeline lakehouse`: Delta Lake and Iceberg tables in step with a stream or a key-value bucket.

Batch after batch of sequences is read, and each becomes one commit per table, which says up to where the table goes.
There is no other place that knows it, so no crash can set the two apart:

    crash after            on restart
    some data files        no commit names them, so nobody sees them: the batch begins anew
    one table's commit     that table takes nothing of the batch, the others get it
    all commits            the next batch
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from typing import TYPE_CHECKING, Final

from jetcluster.pipeline import lakehouse_payloads
from jetcluster.pipeline.arguments import add_server, stream_state_of
from jetcluster.pipeline.result import EnvironmentProblem, Result, UsageError
from jetcluster.pipeline.stop import Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES: Final = ("deltalake", "pyiceberg")
INSTALL_EXTRA: Final = 'pip install "jetcluster[lakehouse]"'
CATALOG: Final = "jetcluster"
OWN_NAMES: Final = {"stream": ("_seq", "_subject", "_time"), "bucket": ("_key", "_revision", "_time")}
"""The columns that a table of parsed payloads has before those of the payloads."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--stream", help="the stream: one row per message, appended")
    what.add_argument("--bucket", help="the key-value bucket: one row per key, replaced and deleted as in the bucket")
    parser.add_argument("--delta", metavar="URL", help="the Delta Lake table: a path, or a URL of an object store")
    parser.add_argument("--iceberg", metavar="NAMESPACE.TABLE", help="the Iceberg table, in the catalog")
    parser.add_argument(
        "--catalog", action="append", default=[], metavar="KEY=VALUE", help="a property of the catalog; repeat it"
    )
    parser.add_argument("--catalog-name", default=CATALOG, help="its name in pyiceberg's configuration (%(default)s)")
    lakehouse_payloads.add_arguments(parser)
    parser.add_argument("--subjects", default=">", help="filters, by commas (default: all)")
    parser.add_argument("--follow", action="store_true", help="go on with what comes, until SIGINT or SIGTERM")
    parser.add_argument("--every", type=float, default=10.0, help="with --follow: seconds between rounds (%(default)s)")
    parser.add_argument("--max-per-batch", type=int, help="sequences in a batch")
    parser.add_argument(
        "--read-preference", default="any", help="any, leader, local, peer:SERVER or mirror:STREAM (%(default)s)"
    )
    parser.add_argument("--allow-loss", action="store_true", help="go on when messages were removed before they landed")


def check(args: argparse.Namespace) -> None:
    """Checks the arguments before Spark starts. Raises UsageError, EnvironmentProblem, and a connection's errors."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise EnvironmentProblem(f"jetcluster pipeline lakehouse needs {name}, not installed: {INSTALL_EXTRA}")
    if not (args.delta or args.iceberg):
        raise UsageError("name a table: --delta, --iceberg, or both")
    if args.max_per_batch is not None and args.max_per_batch < 1:
        raise UsageError("--max-per-batch must be 1 or more")
    if args.every <= 0:
        raise UsageError("--every must be more than 0")
    for word in args.catalog:
        if not all(word.partition("=")[:2]):
            raise UsageError(f"--catalog {word}: expected key=value")
    lakehouse_payloads.check(args, OWN_NAMES["bucket" if args.bucket else "stream"])
    stream_state_of(args, stream_of(args))


def stream_of(args: argparse.Namespace) -> str:
    return f"KV_{args.bucket}" if args.bucket else str(args.stream)


def run(session: SparkSession, args: argparse.Namespace) -> Result:
    """Lands what is stored, or follows the stream. The result counts the batches that this run added."""
    from jetcluster.pipeline.lakehouse_keys import KeyedJob
    from jetcluster.pipeline.lakehouse_rows import RowsJob

    started = time.monotonic()
    job = (KeyedJob if args.bucket else RowsJob)(session, args, stream_state_of(args, stream_of(args)))
    with Stop() as stop:
        while True:
            job.round(stop)
            if not args.follow or stop.within(args.every):
                break
    fields = job.fields() | {"seconds": round(time.monotonic() - started, 2)}
    return Result("lakehouse", fields)
