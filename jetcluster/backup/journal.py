"""`RestoreJournal`: what an interrupted restore has made, so that the next one goes on where it was.

It is a file of the destination for each account that is restored to, and is there from the first stream until the last
one that was wanted is verified:

    {"format": 1, "point": "20261129T045548Z",
     "streams": {stream: {"replaces": "created", "created": "created", "done": true}, ...}}

`replaces` is the time of creation of the stream that was there, if one was; `created` that of the new one, "" until it
is there. Streams that were restored take messages at once, so they need not be equal to the point when it goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, Final

from jetcluster.backup.lock import LOCK_END, RESTORES
from jetcluster.backup.storage import BackupStorage, BackupStorageError

FORMAT: Final = 1


def path_of(account: dict[str, Any]) -> str:
    """The path of an account's journal without its end; `account` is what `AccountReader.info` tells."""
    told = f"{account.get('cluster') or ''}/{account.get('account') or ''}"
    return f"{RESTORES}/{sha256(told.encode()).hexdigest()[:16]}"


def lock_of(account: dict[str, Any]) -> str:
    """The path of the lock of restores into this account."""
    return path_of(account) + LOCK_END


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A stream that a restore has begun to make."""

    replaces: str = ""
    created: str = ""
    done: bool = False
    """It was compared with the point."""


class RestoreJournal:
    """The journal of the restores of one point into one account."""

    def __init__(self, storage: BackupStorage, path: str, point: str, say: Callable[[str], None]) -> None:
        """`path`: "" for a journal that is not kept."""
        self._storage = storage
        self._path = f"{path}.json" if path else ""
        self._point = point
        self._say = say
        self._wanted: dict[str, JournalEntry | None] = {}
        """None for a stream that is not begun."""

    def load(self) -> None:
        """Reads what an interrupted restore of the same point noted; of another one nothing counts."""
        data = self._storage.read(self._path) if self._path else None
        try:
            found = json.loads(data or b"")
            if found["format"] == FORMAT and found["point"] == self._point:
                self._wanted = {
                    str(name): None if one is None
                    else JournalEntry(str(one["replaces"]), str(one["created"]), one["done"] is True)
                    for name, one in found["streams"].items()
                }  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError):
            self._wanted = {}

    def entry(self, stream: str) -> JournalEntry | None:
        """None for a stream that no interrupted restore began to make."""
        return self._wanted.get(stream)

    def want(self, streams: Iterable[str]) -> None:
        """Notes what is to be made, before anything is."""
        self._wanted = {**dict.fromkeys(streams), **self._wanted}
        self._write()

    def begin(self, stream: str, replaces: str) -> None:
        self._note(stream, JournalEntry(replaces))

    def made(self, stream: str, created: str) -> None:
        self._note(stream, replace(self._wanted.get(stream) or JournalEntry(), created=created))

    def done(self, stream: str, created: str) -> None:
        self._note(stream, replace(self._wanted.get(stream) or JournalEntry(), created=created, done=True))

    def end(self) -> None:
        """Forgets all, if every wanted stream is done: also those of an interrupted restore of more streams."""
        if self._path and all(one is not None and one.done for one in self._wanted.values()):
            self._storage.delete(self._path)

    def _note(self, stream: str, entry: JournalEntry) -> None:
        if self._wanted.get(stream) != entry:
            self._wanted[stream] = entry
            self._write()

    def _write(self) -> None:
        if not self._path:
            return
        streams = {name: None if one is None else asdict(one) for name, one in self._wanted.items()}
        found = {"format": FORMAT, "point": self._point, "streams": streams}
        try:
            self._storage.write(self._path, json.dumps(found, sort_keys=True).encode())
        except BackupStorageError as error:
            self._path = ""
            self._say(f"no journal is kept ({error}): if this is interrupted, go on with --missing")
