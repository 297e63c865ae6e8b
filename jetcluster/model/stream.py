"""The stream configuration in requests: shape, types, server defaults, and its wire form.

The values are checked in `model.stream_rules`, on the wire form, because the meta state machine needs those rules too
and must not import pydantic. Fields and their order are nats-server's.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from jetcluster.model import retention_guard
from jetcluster.model.base import Duration, Int32, Int64, UInt64, WireModel
from jetcluster.model.consumer import Time
from jetcluster.model.limits import UNLIMITED, AccountLimits
from jetcluster.model.stream_rules import DEFAULT_DUPLICATE_WINDOW_NS, required_level


class Placement(WireModel):
    """Where a stream's replicas, or a leader, are placed."""

    cluster: str = ""
    tags: list[str] = Field(default_factory=list)
    preferred: str = ""


class ExternalStream(WireModel):
    """Prefixes of an upstream in another account or domain."""

    api: str = ""
    deliver: str = ""


class SubjectTransformConfig(WireModel):
    """Source and destination of a `SubjectTransform`."""

    src: str = ""
    dest: str = ""


class SourceConsumer(WireModel):
    """A durable consumer of the user's own, for a mirror or source (ADR-60)."""

    name: str = ""
    deliver_subject: str = ""


class StreamSource(WireModel):
    """A mirror's upstream, or one of a stream's sources."""

    empty_is_absent: ClassVar[frozenset[str]] = frozenset({"opt_start_time"})

    name: str = ""
    opt_start_seq: UInt64 = 0
    opt_start_time: Time = ""
    filter_subject: str = ""
    subject_transforms: list[SubjectTransformConfig] = Field(default_factory=list)
    external: ExternalStream | None = None
    consumer: SourceConsumer | None = None
    """None: the stream makes a consumer."""


class Republish(WireModel):
    """Subjects on which stored messages are published again."""

    src: str = ""
    dest: str = ""
    headers_only: bool = False


class ConsumerLimits(WireModel):
    """Limits, and defaults, of a stream's consumers."""

    inactive_threshold: Duration = 0
    max_ack_pending: Int64 = 0


class GuardConfig(WireModel):
    """The retention guard of a stream: `retention_guard.GuardRules`."""

    empty_is_absent: ClassVar[frozenset[str]] = frozenset({"discard"})

    consumer: str = ""
    max_bytes: Int64 = 0
    max_age: Duration = 0
    discard: Literal["new", "old"] = "new"


class StreamConfig(WireModel):
    """One stream's configuration; `normalised` fills in the defaults. Durations in nanoseconds, sizes in bytes."""

    empty_is_absent: ClassVar[frozenset[str]] = frozenset(
        {"retention", "discard", "storage", "compression", "persist_mode", "read_consistency"}
    )

    name: str = ""
    description: str = ""
    subjects: list[str] = Field(default_factory=list)
    retention: Literal["limits", "interest", "workqueue"] = "limits"
    max_consumers: Int64 = 0
    max_msgs: Int64 = 0
    max_bytes: Int64 = 0
    max_age: Duration = 0
    max_msgs_per_subject: Int64 = 0
    max_msg_size: Int32 = 0
    discard: Literal["old", "new"] = "old"
    storage: Literal["file", "memory"] = "file"
    num_replicas: Int64 = 0
    no_ack: bool = False
    duplicate_window: Duration = 0
    placement: Placement | None = None
    mirror: StreamSource | None = None
    sources: list[StreamSource] = Field(default_factory=list)
    compression: Literal["none", "s2"] = "none"
    first_seq: UInt64 = 0
    subject_transform: SubjectTransformConfig | None = None
    republish: Republish | None = None
    allow_direct: bool = False
    mirror_direct: bool = False
    discard_new_per_subject: bool = False
    sealed: bool = False
    deny_delete: bool = False
    deny_purge: bool = False
    allow_rollup_hdrs: bool = False
    consumer_limits: ConsumerLimits = Field(default_factory=ConsumerLimits)
    allow_msg_ttl: bool = False
    subject_delete_marker_ttl: Duration = 0
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_batched: bool = False
    allow_msg_schedules: bool = False
    persist_mode: Literal["default", "async"] = "default"
    read_consistency: Literal["default", "weak", "session", "strong"] = "default"
    """The least that a Direct Get gets (the upstream proposal's names, and `session` for the default)."""
    retention_guard: GuardConfig | None = None
    metadata: dict[str, str] = Field(default_factory=dict)

    def normalised(self, limits: AccountLimits = UNLIMITED, *, auto_allow_direct: bool = True) -> StreamConfig:
        """Returns a copy with the server's defaults. Idempotent; does not check the values."""
        filled: dict[str, Any] = {
            key: -1
            for key in ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")
            if getattr(self, key) == 0 or getattr(self, key) < -1
        }
        plain = self.mirror is None and not self.sources
        if plain and not self.subjects:
            filled["subjects"] = [self.name]
        if self.num_replicas == 0:
            filled["num_replicas"] = 1
        if plain and self.duplicate_window == 0:
            filled["duplicate_window"] = self._default_window(limits)
        # The specification's rule (ADR-31). Clients' object stores set allow_direct without a limit per subject, so
        # the value of the request stands there.
        if auto_allow_direct and self.max_msgs_per_subject > 0:
            filled["allow_direct"] = True
        if self.subject_delete_marker_ttl > 0:
            filled["allow_msg_ttl"] = True
        if (self.subject_delete_marker_ttl > 0 or self.allow_msg_schedules) and not self.allow_rollup_hdrs:
            filled |= {"allow_rollup_hdrs": True, "deny_purge": False}
        if self.republish is not None:
            filled["republish"] = self._filled_republish(self.republish)
        given = self.retention_guard.model_dump() if self.retention_guard is not None else None
        guard, metadata = retention_guard.normalised(given, self.metadata)
        if guard is not None:
            filled |= {"retention_guard": GuardConfig(**guard), "metadata": metadata}
        return self.model_copy(update=filled)

    def _filled_republish(self, republish: Republish) -> Republish:
        """Fills in the source. `>` to `>` would be a cycle; if all subjects are transformed, it means the results."""
        source = republish.src or ">"
        mapping = self.subject_transform
        if source == republish.dest == ">" and mapping is not None and self.subjects == [mapping.src]:
            return republish.model_copy(update={"src": mapping.dest, "dest": mapping.dest})
        return republish.model_copy(update={"src": source})

    def _default_window(self, limits: AccountLimits) -> int:
        window = DEFAULT_DUPLICATE_WINDOW_NS
        if 0 < limits.duplicate_window_max < window:
            window = limits.duplicate_window_max
        return self.max_age if 0 < self.max_age < window else window

    def to_wire(self) -> dict[str, Any]:
        """Returns the JSON object of STREAM.INFO, keys in wire order, without the zero values that nats-server omits.
        Equal configurations have equal wire forms. Of `_nats.*`, `metadata` has only `_nats.req.level`."""
        dumped = self.model_dump(include=set(StreamConfig.model_fields), exclude_none=True)
        wire = {key: value for key, value in dumped.items() if _shown(key, value)}
        for key in ("placement", "mirror"):
            if key in wire:
                wire[key] = _pruned(wire[key])
        if not wire.get("placement", True):
            del wire["placement"]
        if self.sources:
            wire["sources"] = [_pruned(source) for source in wire["sources"]]
        if self.republish is not None and not self.republish.headers_only:
            del wire["republish"]["headers_only"]
        wire["consumer_limits"] = _pruned(wire["consumer_limits"])
        metadata = {key: value for key, value in self.metadata.items() if not key.startswith("_nats.")}
        metadata["_nats.req.level"] = str(required_level(wire))
        wire["metadata"] = dict(sorted(metadata.items()))
        return wire


_OMITTED_WHEN_ZERO = frozenset(
    {
        "description",
        "subjects",
        "no_ack",
        "duplicate_window",
        "sources",
        "first_seq",
        "discard_new_per_subject",
        "subject_delete_marker_ttl",
        "allow_msg_counter",
        "allow_atomic",
        "allow_batched",
        "allow_msg_schedules",
    }
)


def _shown(key: str, value: Any) -> bool:
    if key in ("persist_mode", "read_consistency"):
        return bool(value != "default")
    return bool(value) or key not in _OMITTED_WHEN_ZERO


def _pruned(value: dict[str, Any]) -> dict[str, Any]:
    """Removes zero values; `external` always keeps both of its keys."""
    return {key: item for key, item in value.items() if item not in ("", 0, [], None)}
