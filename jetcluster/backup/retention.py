"""`PointCatalog`: the restore points of a destination, and their removal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Final

from jetcluster.backup import plan
from jetcluster.backup.plan import StreamProgress
from jetcluster.backup.point import FOLDER, NAME, Blob, RestorePoint, Segment
from jetcluster.backup.sequences import DamagedBackupError
from jetcluster.backup.storage import BackupStorage
from jetcluster.errors import CallerError

PARTIAL: Final = "partial"
BLOBS: Final = "blobs"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
MAX_NAMED: Final = 10
"""Points that are told if none is the wanted one, the newest ones."""


class NoSuchPointError(CallerError):
    """The text that was given names no restore point."""


class PointCatalog:
    """The points and the progress of interrupted runs in one destination."""

    def __init__(self, storage: BackupStorage) -> None:
        self._storage = storage

    def names(self) -> list[str]:
        """Names of the points, the oldest first."""
        found = (file.path.removeprefix(f"{FOLDER}/").removesuffix(".json") for file in self._storage.list(FOLDER))
        return sorted(name for name in found if NAME.fullmatch(name))

    def point(self, name: str) -> RestorePoint:
        """Raises DamagedBackupError."""
        path = f"{FOLDER}/{name}.json"
        where = f"{self._storage.url}/{path}"
        data = self._storage.read(path)
        if data is None:
            raise DamagedBackupError(f"{where} is missing")
        found = RestorePoint.from_json(data, where)
        if found.name != name:
            raise DamagedBackupError(f"{where} is the point {found.name}")
        return found

    def points(self) -> list[RestorePoint]:
        return [self.point(name) for name in self.names()]

    def readable(self, say: Callable[[str], None]) -> list[RestorePoint]:
        """The points that can be read, the oldest first; `say` is told the others."""
        found = []
        for name in self.names():
            try:
                found.append(self.point(name))
            except DamagedBackupError as error:
                say(str(error))
        return found

    def newest(self) -> str | None:
        """Name of the newest point of all streams that is not known to be damaged; without any, of the newest one
        that is of some. None if there is none."""
        return max(self._good(), default=None) or max(self.names(), default=None)

    def _good(self) -> list[str]:
        """The points that may be restored without being named; none of them is of some streams if another is not."""
        points = self.readable(lambda _: None)
        whole = [one.name for one in points if not one.asked and one.verified is not False]
        return whole or [one.name for one in points]

    def named(self, wanted: str) -> str:
        """The point with this name, or the newest good one that is not later than a time. Raises NoSuchPointError."""
        names = self.names()
        if wanted in names:
            return wanted
        time = plan.moment(wanted)
        found = None if time is None else plan.not_after(self._good(), time)
        if found is None:
            why = (
                "is no point, not `latest`, and no time such as 2026-11-28T02:00"
                if time is None
                else "is earlier than the points"
            )
            raise NoSuchPointError(f"{wanted} {why}; there are: {', '.join(names[-MAX_NAMED:]) or 'none'}")
        return found

    def progress(self, stream: str) -> StreamProgress | None:
        """The segments that an interrupted run has written; None also for a file that is not readable: the run begins
        again then."""
        return self._progress_at(_partial(stream))

    def _progress_at(self, path: str) -> StreamProgress | None:
        data = self._storage.read(path)
        try:
            found = json.loads(data or b"")
            segments = tuple(Segment.read(one) for one in found["segments"])
            return StreamProgress(str(found["created"]), segments, (int(found["anchor"][0]), str(found["anchor"][1])))
        except (ValueError, KeyError, TypeError, IndexError):
            return None

    def note(self, stream: str, progress: StreamProgress) -> None:
        found = {
            "created": progress.created, "segments": [asdict(one) for one in progress.segments],
            "anchor": progress.anchor,
        }  # fmt: skip
        self._storage.write(_partial(stream), json.dumps(found).encode())

    def forget_progress(self, streams: Sequence[str] = ()) -> None:
        """Forgets the progress of these streams, or of all, also of those that are gone."""
        wanted = {_partial(stream) for stream in streams}
        for file in list(self._storage.list(PARTIAL)):
            if not wanted or file.path in wanted:
                self._storage.delete(file.path)

    def blobs(self) -> dict[str, int]:
        """Path -> bytes of all blobs that are there."""
        return {file.path: file.size for file in self._storage.list(BLOBS)}

    def prune(
        self, keep: int, check: Callable[[], None], *, verified: bool = False, gone: bool = False
    ) -> tuple[int, int]:
        """Removes the points that `plan.expired` names, then the blobs that nothing needs; returns (points, blobs).
        `check` is called before each removal. Raises DamagedBackupError, with which no blob is removed: a point that
        cannot be read counts for nothing, and what it needs is not known."""
        damaged: list[str] = []
        points = self.readable(damaged.append)
        old = plan.expired(points, keep, verified=verified, gone=gone)
        for name in old:
            check()
            self._storage.delete(f"{FOLDER}/{name}.json")
        if damaged:
            raise DamagedBackupError("; ".join(damaged) + ": while it is there no blob is removed")
        points = [one for one in points if one.name not in old]
        partial = [self._progress_at(one.path) for one in self._storage.list(PARTIAL)]
        begun: list[Blob] = [segment.blob for one in partial if one is not None for segment in one.segments]
        unused = plan.unused(self.blobs(), points, begun)
        for path in unused:
            check()
            self._storage.delete(path)
        return len(old), len(unused)


def _partial(stream: str) -> str:
    """A stream's name may be longer than a file's, and what a server tells may be no name at all."""
    name = stream if _PLAIN.fullmatch(stream) else f"~{sha256(stream.encode('utf-8', 'surrogateescape')).hexdigest()}"
    return f"{PARTIAL}/{name}.json"
