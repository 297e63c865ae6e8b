"""`--mode fence` and `--mode msgid`: the rows of an archive, published through the sink."""

from __future__ import annotations

import argparse
import zlib
from functools import partial
from typing import Any

from jetcluster.errors import ApiError
from jetcluster.pipeline.arguments import server_options_of, source_options
from jetcluster.pipeline.environment import progress
from jetcluster.pipeline.restore_plan import RestorePlan
from jetcluster.pipeline.result import UsageError


def publish(plan: RestorePlan, args: argparse.Namespace) -> dict[str, Any]:
    """Writes the batches of the archive through the sink, one after the other. Returns `added` (the growth of the
    stream in messages) and `batches` (the number written). Raises UsageError, and what the sink raises."""
    ensure_stream(plan, args)
    job = f"restore.{plan.stream}.{zlib.crc32(plan.created.encode()):08x}"
    begin = _place(plan, args, job) if args.mode == "fence" else 0
    before = _messages(plan, args)
    from jetcluster.pipeline import restore_plan

    for one in plan.manifests[begin:]:
        rows = plan.rows(one)
        if args.mode == "fence":
            rows = rows.coalesce(1).sortWithinPartitions("seq")
        else:
            rows = rows.repartition("subject").sortWithinPartitions("seq")
        convert = partial(restore_plan.rows_for_sink, stream=plan.stream, source_seq=args.source_seq)
        messages = rows.mapInArrow(convert, restore_plan.SINK_SCHEMA)
        options = source_options(args) | {
            "stream": plan.target,
            "idempotence": args.mode,
            "reservedHeaders": "drop",
            "jobId": job,
            "batchId": str(one.number),
        }
        if args.mode == "fence":
            messages = messages.drop("msg_id")
            if args.start_after is not None:
                options["startAfter"] = str(args.start_after)
        messages.write.format("jetstream").mode("append").options(**options).save()
        if not args.json:
            progress(f"batch {one.number}: {one.rows} rows are in {plan.target}")
    after = _messages(plan, args)
    return {"added": after - before, "batches": len(plan.manifests) - begin}


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


def _place(plan: RestorePlan, args: argparse.Namespace, job: str) -> int:
    """Returns the index of the first batch that may be incomplete, by the marker of the stream's last message."""
    from jetcluster.client.servers import ask
    from jetcluster.spark import fence
    from jetcluster.spark.fence import read_last

    last = ask(server_options_of(args), lambda connection: read_last(connection, plan.target))
    found = fence.parse(last.marker)
    if found is None or found.job != job:
        return 0  # the sink refuses a stream with messages of another writer
    return min(found.batch, len(plan.manifests) - 1)
