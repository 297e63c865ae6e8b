"""The record of rescues in a store and their cost, written by `jetcluster rescue` and logged by the server.

The record is written before the journal. A rescue that the journal does not know was not carried out.
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
from jetcluster.mesh.identity import RESCUES_NAME
from jetcluster.model.times import rfc3339

if TYPE_CHECKING:
    from jetcluster.logs import Log

MAX_RECORDS: Final = 256
"""Records kept; the oldest are dropped."""
_FORMAT: Final = 1


class RecordError(OperatorError):
    """The file is not a record of rescues, or is damaged."""


@dataclass(slots=True, frozen=True)
class RescueRecord:
    """One rescue of one stream."""

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
    """True when a server has logged the record."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RescueRecord:
        """Raises KeyError, TypeError or ValueError."""
        return cls(
            str(data["account"]), str(data["stream"]), int(data["gid"]), int(data["number"]), int(data["at_ns"]),
            str(data["by"]), str(data["server"]), tuple(map(str, data["before"])), str(data["state"]),
            tuple(map(str, data["lost"])), bool(data["told"]),
        )  # fmt: skip


def read(directory: Path, files: Files = os) -> list[RescueRecord]:
    """Returns the records in `directory`, oldest first; [] without a file. Raises RecordError and OSError."""
    try:
        raw = read_file(directory / RESCUES_NAME, files)
    except FileNotFoundError:
        return []
    try:
        data = json.loads(raw)
        if data["format"] != _FORMAT:
            raise RecordError(f"{directory / RESCUES_NAME} is of format {data['format']}")
        return [RescueRecord.from_dict(item) for item in data["rescues"]]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{directory / RESCUES_NAME} is damaged: {error!r}") from error


def add(directory: Path, record: RescueRecord, files: Files = os) -> None:
    """Adds or replaces the record of a rescue. Durable on return. Raises RecordError and OSError."""
    others = [known for known in read(directory, files) if (known.gid, known.number) != (record.gid, record.number)]
    _write(directory, [*others, record], files)


def _write(directory: Path, records: Sequence[RescueRecord], files: Files) -> None:
    data = {"format": _FORMAT, "rescues": [asdict(record) for record in records[-MAX_RECORDS:]]}
    write_durably(directory / RESCUES_NAME, json.dumps(data, indent=1), files)


def tell(directory: Path, rescues_of: Callable[[int], int], log: Log, files: Files = os) -> None:
    """Logs each new record once, at a server's start. `rescues_of` returns a group's rescues by its journal."""
    try:
        records = read(directory, files)
        for record in records:
            if not record.told:
                _tell(record, rescues_of(record.gid) >= record.number, log)
        if not all(record.told for record in records):
            _write(directory, [replace(record, told=True) for record in records], files)
    except (RecordError, OSError) as error:
        log.error("what was rescued here cannot be told", error=str(error))  # noqa: TRY400 - the server continues


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
