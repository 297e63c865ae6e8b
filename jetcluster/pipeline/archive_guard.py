"""`ArchiveGuard`: the retention guard of an archived stream (docs/retention-guard.md), from the side of the job.

The guard is a durable consumer that delivers nothing. Once a batch's manifest is durable the job resets it to the end
of the batch, by a request that is answered when a majority of the stream's replicas has it. A job that dies in between
has archived more than the guard says: the next one resets it first. So the guard is never ahead of the manifests.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from jetcluster.client.connection import Connection
from jetcluster.client.stream_state import StreamState
from jetcluster.errors import CONSUMER_NOT_FOUND, ApiError
from jetcluster.model import retention_guard
from jetcluster.pipeline.arguments import server_options_of
from jetcluster.pipeline.result import DataLoss, UsageError

ARCHIVE: Final = "jetcluster.archive"
"""Key of the consumer's metadata, with the archive's place, for people who look at it."""


class ArchiveGuard:
    """The guard that `--guard` names; without it nothing is asked."""

    def __init__(self, args: argparse.Namespace, url: str) -> None:
        self._args = args
        self._url = url
        self.floor = 0
        """Sequence up to which the guard lets limits remove messages."""

    def begin(self, state: StreamState) -> None:
        """Finds the guard, or makes it. Raises UsageError for a stream that does not name it, and for a consumer that
        may go on without the job."""
        name = self._args.guard
        if not name:
            return
        rules = retention_guard.rules_of(state.config)
        if rules is None or rules.consumer != name:
            has = f"has the guard {rules.consumer}" if rules is not None else "has none"
            raise UsageError(
                f"--guard {name}: {state.name} {has}; set jetcluster.retention_guard.consumer={name} and max_bytes or "
                "max_age in its metadata first (docs/retention-guard.md)"
            )
        found = self._ask(self._found_or_made)
        if wrong := _unfit(found["config"]):
            raise UsageError(
                f"--guard {name}: the consumer has {wrong}, so that limits would remove what is not archived; it needs "
                "deliver_policy all, ack_policy explicit and no filter. Let the stream name another: the job makes it"
            )
        self.floor = int(found["ack_floor"]["stream_seq"])

    def advance(self, end: int, last: int) -> None:
        """Lets limits remove what is below `end`, which must be archived. `last`: the stream's last sequence. Raises
        DataLoss for an archive of more than the stream ever had."""
        if not self._args.guard or end - 1 <= self.floor:
            return
        if end > last + 1:
            raise DataLoss(
                f"{self._url} ends at sequence {end - 1}, and {self._args.stream} at {last}: the stream was set back, "
                "and its next messages would count as archived; archive it to another folder"
            )
        self._ask(lambda connection: self._request(connection, "RESET", {"seq": end}))
        self.floor = end - 1

    def _found_or_made(self, connection: Connection) -> dict[str, Any]:
        try:
            return self._request(connection, "INFO", {})
        except ApiError as error:
            if error.err_code != CONSUMER_NOT_FOUND:
                raise
        config = {
            "durable_name": self._args.guard,
            "description": "guards what is not archived yet",
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "metadata": {ARCHIVE: self._url},
        }
        return self._request(connection, "CREATE", {"stream_name": self._args.stream, "config": config})

    def _request(self, connection: Connection, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        return connection.api(f"CONSUMER.{verb}.{self._args.stream}.{self._args.guard}", body)

    def _ask(self, question: Callable[[Connection], dict[str, Any]]) -> dict[str, Any]:
        from jetcluster.client.servers import ask

        server = server_options_of(self._args)
        return ask(server, question, reach=server.reach_timeout)


def _unfit(config: dict[str, Any]) -> str:
    """The part of a consumer's configuration that lets it pass messages that the job has not archived; "" for none."""
    for key, wanted in (("deliver_policy", "all"), ("ack_policy", "explicit")):
        if config.get(key) != wanted:
            return f"{key} {config.get(key)}"
    return next((key for key in ("filter_subject", "filter_subjects") if config.get(key)), "")
