"""Restore points: what a backup says of an account at a moment, as JSON.

    {"format": 1, "name": "20261129T045548Z", "started": ns, "finished": ns, "account": {...}, "read_bytes": n,
     "streams": [{"name", "created", "config", "state", "live": {blob}, "consumers": {blob}, "anchor": [seq, hash],
                  "segments": [{"blob": {"sha256", "size"}, "first", "last", "messages", "bytes"}, ...]}, ...],
     "asked": [...], "verified": true, "sha256": "..."}

`sha256` is the checksum of the object without it, as compact JSON with sorted keys.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Final

from jetcluster.backup.sequences import DamagedBackupError

FORMAT: Final = 1
FOLDER: Final = "points"
NAME: Final = re.compile(r"\d{8}T\d{6}Z(?:-\d+)?")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Blob:
    """A file of a destination that is named by its contents."""

    sha256: str
    size: int

    @classmethod
    def of(cls, data: bytes) -> Blob:
        return cls(sha256(data).hexdigest(), len(data))

    @property
    def path(self) -> str:
        return f"blobs/{self.sha256[:2]}/{self.sha256}"

    @classmethod
    def read(cls, found: Fields) -> Blob:
        name, size = found["sha256"], found["size"]
        if not _SHA256.fullmatch(name) or type(size) is not int:
            raise ValueError(f"{found!r} names no blob")
        return cls(name, size)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of sequences, from `first` to `last`, and the blob with the messages that were stored there."""

    blob: Blob
    first: int
    last: int
    messages: int
    bytes: int
    """Encoded messages, before compression."""

    @classmethod
    def read(cls, found: Fields) -> Segment:
        numbers = [found[key] for key in ("first", "last", "messages", "bytes")]
        if any(type(one) is not int or one < 0 for one in numbers):
            raise ValueError(f"{found!r} is no segment")
        return cls(Blob.read(found["blob"]), *numbers)


@dataclass(frozen=True, slots=True)
class StreamPoint:
    """A stream at a restore point."""

    name: str
    created: str
    config: Fields
    state: Fields
    """The fields `messages`, `bytes`, `first_seq`, `first_ts`, `last_seq`, `last_ts` of its info."""
    live: Blob
    """The sequences that were stored (`Sequences.packed`)."""
    segments: tuple[Segment, ...]
    consumers: Blob | None = None
    """JSON in zlib: consumer -> its entry of an archive; None for no consumers."""
    anchor: tuple[int, str] = (0, "")
    """The last message: sequence and hash. If another one is there now, it is another stream."""

    @classmethod
    def read(cls, found: Fields) -> StreamPoint:
        consumers = found["consumers"]
        return cls(
            name=str(found["name"]), created=str(found["created"]), config=dict(found["config"]),
            state=dict(found["state"]), live=Blob.read(found["live"]),
            segments=tuple(Segment.read(one) for one in found["segments"]),
            consumers=None if consumers is None else Blob.read(consumers),
            anchor=(int(found["anchor"][0]), str(found["anchor"][1])),
        )  # fmt: skip

    @property
    def blobs(self) -> list[Blob]:
        found = [self.live, *(one.blob for one in self.segments)]
        return found if self.consumers is None else [*found, self.consumers]

    @property
    def messages(self) -> int:
        return int(self.state["messages"])


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """An account at a moment."""

    name: str
    started: int
    finished: int
    """Nanoseconds since 1970."""
    streams: tuple[StreamPoint, ...]
    account: Fields = field(default_factory=dict)
    """The answer to the account's info: limits and usage."""
    read_bytes: int = 0
    """Bytes that came from the servers for it."""
    written_bytes: int = 0
    asked: tuple[str, ...] = ()
    """The streams that were asked for; none: all that there were, a whole point."""
    verified: bool | None = None
    """All of it was read back before the point was written (True), in vain (False); None: nobody tried."""

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.name}.json"

    def stream(self, name: str) -> StreamPoint | None:
        return next((one for one in self.streams if one.name == name), None)

    @property
    def names(self) -> set[str]:
        return {one.name for one in self.streams}

    @property
    def blobs(self) -> set[Blob]:
        return {blob for one in self.streams for blob in one.blobs}

    def to_json(self) -> bytes:
        found = {"format": FORMAT, **asdict(self)}
        return json.dumps({**found, "sha256": _checksum(found)}, indent=1, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> RestorePoint:
        """Raises DamagedBackupError."""
        try:
            found = json.loads(data)
            if found.get("format") != FORMAT:
                raise DamagedBackupError(f"{where} is of format {found.get('format')}; this version reads {FORMAT}")
            told = found.pop("sha256")
            if _checksum(found) != told:
                raise DamagedBackupError(f"{where}: its checksum is wrong")
            if not NAME.fullmatch(found["name"]):
                raise DamagedBackupError(f"{where} is named {found['name']!r}")
            streams = tuple(StreamPoint.read(one) for one in found["streams"])
            return cls(
                found["name"], found["started"], found["finished"], streams, found["account"], found["read_bytes"],
                found["written_bytes"], tuple(map(str, found.get("asked", ()))), found.get("verified"),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise DamagedBackupError(f"{where} is no restore point: {error!r}") from None


def _checksum(found: Fields) -> str:
    return sha256(json.dumps(found, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
