"""The record of what was rescued in a store, and at which cost: written by `jetcluster rescue` and told by the server.

The record is written before the journal is. So one whose group's journal knows nothing of it was begun and not carried
out: then nothing has changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jetcluster.errors import OperatorError
from jetcluster.files import Files, write_durably
from jetcluster.files import read as read_file
from jetcluster.model.times import rfc3339

if TYPE_CHECKING:
    from jetcluster.logs import Log

FILE: Final = "rescues.json"
"""In the JetStream folder."""
KEPT: Final = 256
"""Records; the oldest go."""
_FORMAT: Final = 1


class RecordError(OperatorError):
    """The file is not one of ours, or is damaged."""


@dataclass(slots=True, frozen=True)
class RescueRecord:
    account: str
    stream: str
    gid: int
    number: int
    """Number among the stream's rescues (`raft.membership.Config.rescue`)."""
    at_ns: int
    by: str
    """User and host that ran the tool."""
    server: str
    """Peer id of the node whose replica was kept."""
    before: tuple[str, ...]
    """The voters of the configuration that was given up, by name."""
    state: str
    """The replica's content, in words."""
    lost: tuple[str, ...]
    """The possible losses, in words."""
    told: bool = False
    """A server has said so in its log."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RescueRecord:
        """Raises KeyError, TypeError or ValueError."""
        return cls(
            str(data["account"]), str(data["stream"]), int(data["gid"]), int(data["number"]), int(data["at_ns"]),
            str(data["by"]), str(data["server"]), tuple(map(str, data["before"])), str(data["state"]),
            tuple(map(str, data["lost"])), bool(data["told"]),
        )  # fmt: skip


def read(directory: Path, files: Files = os) -> list[RescueRecord]:
    """The records in `directory`, oldest first; none without a file. Raises RecordError and OSError."""
    try:
        raw = read_file(directory / FILE, files)
    except FileNotFoundError:
        return []
    try:
        data = json.loads(raw)
        if data["format"] != _FORMAT:
            raise RecordError(f"{directory / FILE} is of format {data['format']}")
        return [RescueRecord.from_dict(item) for item in data["rescues"]]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{directory / FILE} is damaged: {error!r}") from error


def add(directory: Path, record: RescueRecord) -> None:
    """Takes the place of one of the same rescue, which was begun before. Durable once this returns. Raises RecordError
    and OSError."""
    others = [known for known in read(directory) if (known.gid, known.number) != (record.gid, record.number)]
    _write(directory, [*others, record], os)


def _write(directory: Path, records: Sequence[RescueRecord], files: Files) -> None:
    data = {"format": _FORMAT, "rescues": [asdict(record) for record in records[-KEPT:]]}
    write_durably(directory / FILE, json.dumps(data, indent=1), files)


def tell(directory: Path, rescues_of: Callable[[int], int], log: Log, files: Files = os) -> None:
    """At the start of a server, into its log, once. `rescues_of`: of a group, what its journal says (0: nothing)."""
    try:
        records = read(directory, files)
        for record in records:
            if not record.told:
                _tell(record, rescues_of(record.gid) >= record.number, log)
        if not all(record.told for record in records):
            _write(directory, [replace(record, told=True) for record in records], files)
    except (RecordError, OSError) as error:
        log.error("what was rescued here cannot be told", error=str(error))  # noqa: TRY400 - the server goes on


def _tell(record: RescueRecord, carried_out: bool, log: Log) -> None:
    said = {
        "stream": f"{record.account}/{record.stream}", "number": record.number, "at": rfc3339(record.at_ns),
        "by": record.by, "voters_before": list(record.before),
    }  # fmt: skip
    if carried_out:
        log.warning(
            "a stream was rescued from a lost majority: this server's replica is all of it",
            **said, kept=record.state, lost=list(record.lost),
        )  # fmt: skip
    else:
        log.warning("a rescue of a stream was begun and not carried out: nothing has changed", **said)
