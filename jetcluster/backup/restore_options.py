"""`RestoreOptions`: which streams a restore makes, and with what configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from jetcluster.backup import plan
from jetcluster.backup.point import RestorePoint, StreamPoint
from jetcluster.backup.verify import Renamed, StoredStream
from jetcluster.errors import CallerError
from jetcluster.model.times import parse_rfc3339

Fields = dict[str, Any]

_BUCKET: Final = "KV_"
_UNBOUND: Final = {"max_age": 0, "max_msgs": -1, "max_bytes": -1}


class RestoreRefusedError(CallerError):
    """The restore would change a stream that exists, or its options do not fit the point."""


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """The streams to be restored, and their differences from the backup."""

    streams: tuple[str, ...] = ()
    """None: all."""
    name: str = ""
    """Another name, for one stream."""
    subjects: tuple[str, ...] = ()
    replicas: int = 0
    no_limits: bool = False
    overwrite: bool = False
    verify: bool = True
    no_consumers: bool = False
    missing: bool = False
    """Streams that are there are left, whatever they hold."""
    skip: tuple[str, ...] = ()
    """Streams that are not restored."""
    no_placement: bool = False
    keep_age: bool = False
    """`max_age` grows by the age of the point, so that every message has as long to live as it had then."""
    anew: bool = False
    """Streams that an interrupted restore has made count as any others."""

    def check(self, point: RestorePoint) -> None:
        """Raises RestoreRefusedError."""
        names = {one.name for one in point.streams}
        if missing := sorted({*self.streams, *self.skip} - names):
            raise RestoreRefusedError(f"the point {point.name} has no stream {missing[0]}")
        if (self.name or self.subjects) and len(self.streams) != 1:
            raise RestoreRefusedError("another name, or other subjects, are for one stream: name it with --stream")
        if self.subjects and not self.name:
            raise RestoreRefusedError("other subjects are for a stream with another name: --as")
        if self.missing and self.overwrite:
            raise RestoreRefusedError("streams that are there are left by --missing, and deleted by --overwrite")
        if not self.wanted(point):
            raise RestoreRefusedError(f"no stream of the point {point.name} is wanted")

    def wanted(self, point: RestorePoint) -> list[StreamPoint]:
        """The streams, origins before their copies."""
        return [one for one in plan.at_point(point.streams, self.streams) if one.name not in self.skip]

    def renamed(self, one: StreamPoint) -> Renamed | None:
        """The change of the messages' subjects: a key-value bucket is found by them."""
        if not (self.name.startswith(_BUCKET) and one.name.startswith(_BUCKET)) or self.name == one.name:
            return None
        old, new = (f"$KV.{name.removeprefix(_BUCKET)}.".encode() for name in (one.name, self.name))
        return Renamed(old, new)

    def config(self, one: StreamPoint, older: int = 0) -> Fields:
        """The configuration of the new stream. `older`: nanoseconds since the point."""
        found = dict(one.config)
        if self.name:
            found["name"] = self.name
        if (renamed := self.renamed(one)) is not None:
            old, new = renamed.old.decode(), renamed.new.decode()
            found["subjects"] = [
                new + name.removeprefix(old) if name.startswith(old) else name for name in found.get("subjects") or []
            ]
        if self.subjects:
            found["subjects"] = list(self.subjects)
        if self.replicas:
            found["num_replicas"] = self.replicas
        if self.no_limits:
            found |= _UNBOUND
        if self.no_placement:
            found.pop("placement", None)
        if self.keep_age and found.get("max_age"):
            found["max_age"] = int(found["max_age"]) + max(older, 0)
        return found

    def consumers(self, stored: StoredStream) -> dict[str, Fields]:
        """The consumers of the new stream and their entries of an archive: with as many replicas as the stream, if it
        gets fewer than they had. Raises DamagedBackupError."""
        if self.no_consumers:
            return {}
        found = stored.consumers()
        for entry in found.values():
            config = entry["config"]
            if 0 < self.replicas < int(config.get("num_replicas") or 0):
                entry["config"] = {**config, "num_replicas": 0}
        return found


def trial(config: Fields) -> Fields:
    """The configuration of a stream that asks as much of the servers, under another name and subject."""
    name = f"restore-{sha256(config['name'].encode()).hexdigest()[:16]}"
    left_out = ("sealed", "republish", "subject_transform", "subjects")
    found = {key: value for key, value in config.items() if key not in left_out}
    return {**found, "name": name, **({"subjects": [name]} if config.get("subjects") else {})}


def same_config(one: Fields, other: Fields, ignored: Sequence[str] = ()) -> bool:
    """Compares configurations, without the metadata that servers add and the `ignored` keys."""

    def told(config: Fields) -> Fields:
        metadata = config.get("metadata") or {}
        own = {key: value for key, value in metadata.items() if not key.startswith("_nats.")}
        return {key: value for key, value in config.items() if key not in ignored} | {"metadata": own}

    return told(one) == told(other)


def loses_at_once(config: Fields) -> bool:
    """Returns whether a stream may lose messages at the moment it is restored, as they are too old, or wanted by
    nobody."""
    return bool(
        config.get("max_age") or config.get("allow_msg_ttl") or config.get("retention") in ("interest", "workqueue")
    )


def loses(config: Fields) -> bool:
    """Returns whether messages may have gone since the stream was restored."""
    limits: Sequence[str] = ("max_msgs", "max_bytes", "max_msgs_per_subject")
    return loses_at_once(config) or any(int(config.get(key) or -1) > 0 for key in limits) or bool(config.get("mirror"))


def expiring(one: StreamPoint, config: Fields, now: int) -> str:
    """Returns how much of a stream is older than its `max_age`; "" for nothing."""
    if not (one.messages and config.get("max_age")):
        return ""
    limit = now - int(config["max_age"])
    if limit <= parse_rfc3339(one.state["first_ts"]):
        return ""
    some = "all" if limit > parse_rfc3339(one.state["last_ts"]) else "some"
    return f"{some} of its {one.messages} messages are older than its max_age, and go at once (--keep-age keeps them)"
