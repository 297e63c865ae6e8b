"""`--mode fence` and `--mode msgid`: the rows of an archive, published through the sink."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from jetcluster.errors import ApiError
from jetcluster.pipeline import restore_rows
from jetcluster.pipeline.arguments import server_options_of, source_options
from jetcluster.pipeline.environment import progress
from jetcluster.pipeline.restore_plan import RestorePlan
from jetcluster.pipeline.result import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def publish(session: SparkSession, plan: RestorePlan, args: argparse.Namespace) -> dict[str, Any]:
    """Writes the archive through the sink. Returns `added`, the growth of the stream in messages. Raises UsageError,
    and what the sink raises."""
    ensure_stream(plan, args)
    if args.mode == "fence":
        from jetcluster.pipeline import restore_fence  # imports pyarrow

        return restore_fence.publish(session, plan, args)
    before = _messages(plan, args)
    for one in plan.manifests:
        rows = plan.rows(one).repartition("subject").sortWithinPartitions("seq")
        convert = partial(restore_rows.rows_for_sink, stream=plan.stream, source_seq=args.source_seq)
        messages = rows.mapInArrow(convert, restore_rows.SINK_SCHEMA)
        options = source_options(args) | {
            "stream": plan.target, "idempotence": "msgid", "reservedHeaders": "drop", "jobId": f"restore.{plan.stream}",
            "batchId": str(one.number),
        }  # fmt: skip
        messages.write.format("jetstream").mode("append").options(**options).save()
        if not args.json:
            progress(f"batch {one.number}: {one.rows} rows are in {plan.target}")
    return {"added": _messages(plan, args) - before}


def ensure_stream(plan: RestorePlan, args: argparse.Namespace) -> None:
    """Creates a missing stream if `--create` is given. Raises UsageError if the stream does not exist afterwards."""
    from jetcluster.client.servers import ask

    options = server_options_of(args)
    try:
        ask(options, lambda connection: connection.api(f"STREAM.INFO.{plan.target}"))
    except ApiError as error:
        if not error.is_stream_not_found:
            raise
        if not args.create:
            raise UsageError(f"there is no stream {plan.target}; --create makes it as it was archived") from None
        try:
            ask(options, lambda connection: connection.api(f"STREAM.CREATE.{plan.target}", plan.config))
        except ApiError as refused:
            if refused.retriable:
                raise
            raise UsageError(f"{plan.target} cannot be created: {refused}") from None


def _messages(plan: RestorePlan, args: argparse.Namespace) -> int:
    from jetcluster.client.servers import ask
    from jetcluster.client.stream_state import stream_state

    return ask(server_options_of(args), lambda connection: stream_state(connection, plan.target)).messages
