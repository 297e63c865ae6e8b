"""`StreamStanding`: what a stream that is there already is to a restore."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from jetcluster.backup.account import AccountReader, StreamSeen
from jetcluster.backup.consumer_repair import behind
from jetcluster.backup.journal import JournalEntry
from jetcluster.backup.restore_options import RestoreOptions, loses, same_config
from jetcluster.backup.verify import StoredStream, compare

Fields = dict[str, Any]


class StreamStanding(Enum):
    """A stream that is there, and so whether it is made anew."""

    EQUAL = "is there already, as in the backup"
    RESTORED = "was restored before, and is left as it is now"
    KEPT = "is there: it is left as it is"
    OTHER = "is there, and not as in the backup"
    TORN = "was begun by an interrupted restore, and is made anew"
    """nats-server shows a stream while it is restored, and leaves it so when the restore ends early."""

    @property
    def is_left(self) -> bool:
        return self not in (StreamStanding.OTHER, StreamStanding.TORN)


@dataclass(frozen=True, slots=True)
class Found:
    """A stream that is there."""

    seen: StreamSeen
    standing: StreamStanding
    settled: bool = False
    """An interrupted restore made it and compared it: nothing of it is to be put right."""
    why: str = ""
    """The difference from the backup, in words."""


def standing_of(
    account: AccountReader,
    stored: StoredStream,
    seen: StreamSeen,
    options: RestoreOptions,
    entry: JournalEntry | None,
    config: Fields,
    consumers: dict[str, Fields],
) -> Found:
    """`entry`: what an interrupted restore noted of the stream; `config` and `consumers`: those that it should have.
    Raises DamagedBackupError."""
    made = entry is not None and entry.created == seen.created
    if made and entry is not None and entry.done:
        return Found(seen, StreamStanding.RESTORED, settled=True)
    if entry is None and options.missing:
        return Found(seen, StreamStanding.KEPT)
    one = stored.point
    difference = compare(account, seen, stored, renamed=options.renamed(one))
    if not difference and all(seen.state[key] == one.state[key] for key in ("messages", "last_seq")):
        if options.overwrite and entry is None and not _whole(account, seen, config, consumers):
            return Found(seen, StreamStanding.OTHER, why="its configuration or consumers")
        return Found(seen, StreamStanding.EQUAL)
    # Made, but the process died before it noted when: what was there before, or another one, is not mistaken for it.
    begun = entry is not None and not entry.created and seen.created != entry.replaces
    whole = seen.last >= int(one.state["last_seq"]) and not difference.other
    part = int(seen.state["messages"]) == len(stored.live) - len(difference.missing) and not difference.other
    if begun and not whole and part and same_config(seen.config, config, ("sealed", "max_age")):
        return Found(seen, StreamStanding.TORN)
    if whole and (made or (begun and (not difference.missing or loses(seen.config)))):
        return Found(seen, StreamStanding.RESTORED)
    why = str(difference) or f"{seen.state['messages']} messages up to {seen.last}, in the backup {one.messages}"
    return Found(seen, StreamStanding.KEPT if options.missing else StreamStanding.OTHER, why=why)


def _whole(account: AccountReader, seen: StreamSeen, config: Fields, consumers: dict[str, Fields]) -> bool:
    return same_config(seen.config, config) and not behind(account, seen.name, consumers)
