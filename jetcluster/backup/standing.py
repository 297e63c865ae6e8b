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
    RESTORED = "was restored before, and goes on since: it is left as it is"
    KEPT = "is there: it is left as it is"
    OTHER = "is there, and not as in the backup"


@dataclass(frozen=True, slots=True)
class Found:
    """A stream that is there."""

    seen: StreamSeen
    standing: StreamStanding
    settled: bool = False
    """An interrupted restore made it and compared it: nothing of it is to be put right."""


def standing_of(
    account: AccountReader,
    stored: StoredStream,
    seen: StreamSeen,
    options: RestoreOptions,
    entry: JournalEntry | None,
    consumers: dict[str, Fields],
) -> Found:
    """`entry`: what an interrupted restore noted of the stream; `consumers`: those that it should have. Raises
    DamagedBackupError."""
    made = entry is not None and entry.created == seen.created
    if made and entry is not None and entry.done:
        return Found(seen, StreamStanding.RESTORED, settled=True)
    if entry is None and options.missing:
        return Found(seen, StreamStanding.KEPT)
    one = stored.point
    difference = compare(account, seen, stored, renamed=options.renamed(one))
    if not difference and all(seen.state[key] == one.state[key] for key in ("messages", "last_seq")):
        if options.overwrite and entry is None and not _whole(account, seen, options.config(one), consumers):
            return Found(seen, StreamStanding.OTHER)
        return Found(seen, StreamStanding.EQUAL)
    # Made, but the process died before it noted when: what was there before, or another one, is not mistaken for it.
    begun = entry is not None and not entry.created and seen.created != entry.replaces
    whole = seen.last >= int(one.state["last_seq"]) and not difference.other
    if whole and (made or (begun and (not difference.missing or loses(seen.config)))):
        return Found(seen, StreamStanding.RESTORED)
    return Found(seen, StreamStanding.KEPT if options.missing else StreamStanding.OTHER)


def _whole(account: AccountReader, seen: StreamSeen, config: Fields, consumers: dict[str, Fields]) -> bool:
    return same_config(seen.config, config) and not behind(account, seen.name, consumers)
