"""`StreamRules`: the parts of a stream's configuration that `apply` needs, as plain values.

They come from the normalised configuration (the JSON object of STREAM.INFO), which `model` has validated. Limits that
are off (`-1`, `0` or absent) become 0; durations are nanoseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jetcluster.model import retention_guard
from jetcluster.model.transforms import SubjectTransform

RESTORING = "restoring"
"""Key of a configuration, true while the stream is being restored; clients never see it."""

_BASE62: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

LIMITS = "limits"
INTEREST = "interest"
WORKQUEUE = "workqueue"

DEFAULT = "default"
WEAK = "weak"
STRONG = "strong"
"""Values of `read_consistency`; `session` is another name of DEFAULT."""
"""Retention policies."""


class StreamRules:
    """The rules of one configuration, immutable by convention. `config` is the object they come from."""

    __slots__ = (
        "allow_atomic",
        "allow_batched",
        "allow_direct",
        "allow_msg_counter",
        "allow_msg_schedules",
        "allow_msg_ttl",
        "allow_rollup_hdrs",
        "config",
        "deny_delete",
        "deny_purge",
        "discard_new",
        "discard_new_per_subject",
        "duplicate_window",
        "evicts",
        "first_seq",
        "guard",
        "kept_per_subject",
        "kv_purge",
        "links",
        "max_age",
        "max_bytes",
        "max_consumers",
        "max_msg_size",
        "max_msgs",
        "max_msgs_per_subject",
        "memory",
        "mirror",
        "mirror_direct",
        "name",
        "no_ack",
        "num_replicas",
        "read_consistency",
        "refuses_when_full",
        "republish",
        "republish_headers_only",
        "restoring",
        "retention",
        "sealed",
        "subject_delete_marker_ttl",
        "subject_transform",
        "subjects",
    )

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config: dict[str, Any] = dict(config)
        self.restoring = bool(config.get(RESTORING))
        """The stream is being restored from an archive (`restoring`): nothing else may happen to it."""
        if self.restoring:
            config = {key: config[key] for key in ("name", "storage", "num_replicas")} | {"sealed": True}
        self.name: str = config.get("name") or ""
        self.subjects: tuple[bytes, ...] = tuple(s.encode() for s in config.get("subjects") or ())
        self.max_msgs = _limit(config, "max_msgs")
        self.max_bytes = _limit(config, "max_bytes")
        self.max_msgs_per_subject = _limit(config, "max_msgs_per_subject")
        self.max_msg_size = _limit(config, "max_msg_size")
        self.max_age = _limit(config, "max_age")
        self.max_consumers = _limit(config, "max_consumers")
        self.retention: str = config.get("retention") or LIMITS
        self.duplicate_window = _limit(config, "duplicate_window")
        self.first_seq = _limit(config, "first_seq")
        self.num_replicas: int = config.get("num_replicas") or 1
        self.memory: bool = config.get("storage") == "memory"
        self.discard_new: bool = config.get("discard") == "new"
        self.discard_new_per_subject = bool(config.get("discard_new_per_subject"))
        self.no_ack = bool(config.get("no_ack"))
        self.sealed = bool(config.get("sealed"))
        self.deny_delete = bool(config.get("deny_delete"))
        self.deny_purge = bool(config.get("deny_purge"))
        self.allow_rollup_hdrs = bool(config.get("allow_rollup_hdrs"))
        self.allow_atomic = bool(config.get("allow_atomic"))
        self.allow_batched = bool(config.get("allow_batched"))
        self.allow_direct = bool(config.get("allow_direct"))
        self.mirror_direct = bool(config.get("mirror_direct"))
        self.read_consistency: str = config.get("read_consistency") or DEFAULT
        """The least that a Direct Get gets: DEFAULT (all that its connection was told of), WEAK or STRONG."""
        self.allow_msg_ttl = bool(config.get("allow_msg_ttl"))
        self.subject_delete_marker_ttl = _limit(config, "subject_delete_marker_ttl")
        self.allow_msg_counter = bool(config.get("allow_msg_counter"))
        self.allow_msg_schedules = bool(config.get("allow_msg_schedules"))
        self.subject_transform = _transform(config.get("subject_transform"))
        """None when subjects are stored unchanged."""
        self.republish = _transform(config.get("republish"))
        self.republish_headers_only = bool((config.get("republish") or {}).get("headers_only"))
        may_roll_up = self.allow_rollup_hdrs and not self.deny_purge
        self.mirror: Mapping[str, Any] | None = config.get("mirror")
        self.links: tuple[bytes, ...] = (b"",) if self.mirror is not None else links_of(config.get("sources") or ())
        """Keys of the stream's links: b"" of a mirror, others of sources."""
        self.kv_purge = self.name.startswith("KV_") and may_roll_up
        """`KV-Operation: PURGE` rolls its subject up."""
        self.guard = retention_guard.rules_of(config)
        """Holds the limits back until a consumer has acknowledged; None without a guard."""
        self.refuses_when_full = self.discard_new or (self.guard is not None and self.guard.refuses)
        """The stream's size may be a reason to refuse a message."""
        old = not self.discard_new and (self.max_msgs or self.max_bytes)
        self.kept_per_subject = 0 if self.discard_new_per_subject else self.max_msgs_per_subject
        """Messages of a subject beyond which storing one evicts the oldest; 0: no limit."""
        self.evicts = bool(old or self.kept_per_subject)
        """Storing a message can evict an older one."""

    def restored(self) -> StreamRules:
        """The rules after the restore."""
        return StreamRules({key: value for key, value in self.config.items() if key != RESTORING})

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> StreamRules:
        """Builds the rules from the normalised configuration object (JSON names, JSON values)."""
        return cls(config)


def _transform(config: Mapping[str, Any] | None) -> SubjectTransform | None:
    if config is None or not config.get("dest"):
        return None
    return SubjectTransform(config.get("src", "").encode(), config.get("dest", "").encode())


def links_of(sources: Sequence[Mapping[str, Any]]) -> tuple[bytes, ...]:
    return tuple(link_key(source) for source in sources)


def link_key(source: Mapping[str, Any]) -> bytes:
    """Unique key of a source in a stream: name, api prefix, filters and destinations."""
    return b" ".join((link_index(source), *link_filters(source)))


def link_index(source: Mapping[str, Any]) -> bytes:
    """Name of the upstream in Nats-Stream-Source."""
    name = source["name"].encode()
    prefix = (source.get("external") or {}).get("api", "").encode()
    return b"%b:%b" % (name, short_hash(prefix)) if prefix else name


def link_filters(source: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Filter and destination as in Nats-Stream-Source."""
    transforms = source.get("subject_transforms") or ()
    if transforms:
        return (
            b"\f".join([(t.get("src") or ">").encode() for t in transforms]),
            b"\f".join([(t.get("dest") or ">").encode() for t in transforms]),
        )
    return (source.get("filter_subject") or ">").encode(), b">"


def short_hash(data: bytes) -> bytes:
    """A hash of eight base-62 characters."""
    return bytes(_BASE62[byte % 62] for byte in hashlib.sha256(data).digest()[:8])


def _limit(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return value if value is not None and value > 0 else 0
