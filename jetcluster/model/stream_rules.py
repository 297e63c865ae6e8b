"""The rules of a stream's configuration by itself (`check_config`) and as an update of another (`merge_update`).

They work on the normalised wire form (the JSON object of STREAM.INFO) without pydantic, since the meta state machine
applies `merge_update` in log order. Codes and texts were compared with nats-server 2.15.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jetcluster import errors
from jetcluster.errors import by_code, invalid_config
from jetcluster.model import durations, retention_guard, subjects
from jetcluster.model.limits import FARTHEST_SEQ, UNLIMITED, AccountLimits
from jetcluster.model.source_rules import check_links
from jetcluster.model.subjects import MAX_SHAPES, first_overlap, too_various
from jetcluster.model.times import MILLISECOND, MINUTE, SECOND

Config = Mapping[str, Any]

MAX_NAME_CHARS = 255
MAX_DESCRIPTION_CHARS = 4096
MAX_METADATA_BYTES = 128 * 1024
MAX_REPLICAS = 5
MAX_SUBJECTS = 10_000
"""A limit of this server only: each node of the cluster keeps all subjects in memory."""
DEFAULT_DUPLICATE_WINDOW_NS = 2 * MINUTE
_MIN_DURATION_NS = 100 * MILLISECOND
_NAME_BLANKS = frozenset(" \t\r\n\f")


def check_create(config: Config) -> None:
    """Refuses values that a stream may have, but not at its creation. Raises ApiError."""
    if config["sealed"]:
        raise invalid_config("stream configuration for create can not be sealed")
    if config["mirror_direct"] and "mirror" not in config:
        raise invalid_config("stream has no mirror but does have mirror direct")


def check_name(name: str) -> None:
    """Raises ApiError 10128 or 10052."""
    if "/" in name or "\\" in name:
        raise by_code(errors.PATH_SEPARATORS)
    if not name or not _NAME_BLANKS.isdisjoint(name) or any(c in name for c in ".*>"):
        raise invalid_config("stream name is required and can not contain '.', '*', '>', '\\', '/'")
    if len(name) > MAX_NAME_CHARS:
        raise invalid_config(f"stream name is too long, maximum allowed is {MAX_NAME_CHARS}")


def check_config(config: Config, limits: AccountLimits = UNLIMITED) -> None:
    """Checks all rules that need no other stream. Raises ApiError (mostly 10052)."""
    check_name(config["name"])
    _check_sizes(config)
    check_replicas(config["num_replicas"])
    _check_durations(config, limits)
    _check_policies(config)
    retention_guard.check(config, limits)
    if config.get("placement", {}).get("preferred"):
        raise invalid_config("preferred server not permitted in placement")
    if config.get("first_seq", 0) > FARTHEST_SEQ:
        raise invalid_config(f"first sequence can not be above {FARTHEST_SEQ}")
    _check_size_of_subjects(config.get("subjects", []))
    check_links(config)
    _check_subjects(config)
    _check_limits(config, limits)


def _check_sizes(config: Config) -> None:
    if len(config.get("description", "")) > MAX_DESCRIPTION_CHARS:
        raise invalid_config(f"stream description is too long, maximum allowed is {MAX_DESCRIPTION_CHARS}")
    size = sum(len(k.encode()) + len(v.encode()) for k, v in config["metadata"].items())
    if size > MAX_METADATA_BYTES:
        raise invalid_config(f"stream metadata exceeds maximum size of {MAX_METADATA_BYTES} bytes")


def check_replicas(replicas: int) -> None:
    """Raises ApiError 10133 or 10052."""
    if replicas > MAX_REPLICAS:
        raise invalid_config(f"maximum replicas is {MAX_REPLICAS}")
    if replicas < 0:
        raise by_code(errors.NEGATIVE_REPLICAS)


def check_max_age(max_age: int) -> None:
    """Raises ApiError 10052."""
    if max_age < 0:
        raise invalid_config("max age can not be negative")
    if 0 < max_age < _MIN_DURATION_NS:
        raise invalid_config("max age needs to be >= 100ms")


def _check_durations(config: Config, limits: AccountLimits) -> None:
    max_age, window = config["max_age"], config.get("duplicate_window", 0)
    check_max_age(max_age)
    if window < 0:
        raise invalid_config("duplicates window can not be negative")
    if 0 < max_age < window:
        raise invalid_config("duplicates window can not be larger then max age")
    if 0 < limits.duplicate_window_max < window:
        shown = durations.render(limits.duplicate_window_max)
        raise invalid_config(f"duplicates window can not be larger then server limit of {shown}")
    if 0 < window < _MIN_DURATION_NS:
        raise invalid_config("duplicates window needs to be >= 100ms")


def _check_policies(config: Config) -> None:
    discard_new = config["discard"] == "new"
    if config["deny_purge"] and config["allow_rollup_hdrs"]:
        raise invalid_config("roll-ups require the purge permission")
    if config.get("allow_msg_counter"):
        if discard_new:
            raise invalid_config("counter stream cannot use discard new")
        if config["allow_msg_ttl"]:
            raise invalid_config("counter stream cannot use message TTLs")
        if config.get("allow_msg_schedules"):
            raise invalid_config("counter stream cannot use message schedules")
        if config["retention"] != "limits":
            raise invalid_config("counter stream can only use limits retention")
    if config.get("discard_new_per_subject"):
        if not discard_new:
            raise invalid_config("discard new per subject requires discard new policy to be set")
        if config["max_msgs_per_subject"] <= 0:
            raise invalid_config("discard new per subject requires max msgs per subject > 0")
    marker = config.get("subject_delete_marker_ttl", 0)
    if marker < 0:
        raise invalid_config("subject delete marker TTL must not be negative")
    if 0 < marker < SECOND:
        raise invalid_config("subject delete marker TTL must be at least 1 second")
    if config.get("allow_msg_schedules") and discard_new:
        raise invalid_config("message scheduling cannot use discard new")
    if config.get("persist_mode") == "async":
        if config["storage"] == "memory":
            raise invalid_config("async persist mode is only supported on file storage")
        if config["num_replicas"] > 1:
            raise invalid_config("async persist mode is not supported on replicated streams")
        if config.get("allow_atomic"):
            raise invalid_config("async persist mode is not supported with atomic batch publish")


def _check_size_of_subjects(listed: Sequence[str]) -> None:
    """Bounds the subjects before all other checks, whose cost depends on their number."""
    if len(listed) > MAX_SUBJECTS:
        raise invalid_config(f"too many subjects, maximum allowed is {MAX_SUBJECTS}")
    if too_various(listed):
        raise invalid_config(f"wildcards of subjects at too many places, maximum allowed is {MAX_SHAPES}")


def _check_subjects(config: Config) -> None:
    listed: list[str] = config.get("subjects", [])
    for subject in listed:
        _check_subject(subject, config)
    pair = first_overlap(listed)
    if pair is not None:
        raise invalid_config(f'subject "{pair[0]}" overlaps with "{pair[1]}"')


def _check_subject(subject: str, config: Config) -> None:
    if not subjects.is_valid(subject):
        raise invalid_config("invalid subject")
    no_ack = config.get("no_ack", False)
    if subject == ">":
        if not no_ack:
            raise invalid_config("capturing all subjects requires no-ack to be true")
        if config["num_replicas"] > 1:
            raise invalid_config("capturing all subjects requires replicas of 1")
    elif not no_ack and subject[0] in "$*":
        # A stream that acks the replies of its own API would store its acks for ever.
        api = any(subjects.overlap(subject, own) for own in ("$JS.>", "$JSC.>", "$NRG.>"))
        if api and not subjects.is_subset(subject, "$JS.EVENT.>"):
            raise invalid_config("subjects that overlap with jetstream api require no-ack to be true")
        if subjects.overlap(subject, "$SYS.>") and not subjects.is_subset(subject, "$SYS.ACCOUNT.>"):
            raise invalid_config("subjects that overlap with system api require no-ack to be true")


def _check_limits(config: Config, limits: AccountLimits) -> None:
    memory = config["storage"] == "memory"
    per_stream = limits.memory_max_stream_bytes if memory else limits.storage_max_stream_bytes
    if config["max_bytes"] <= 0 and limits.max_bytes_required:
        raise by_code(10113)
    if 0 < per_stream < config["max_bytes"]:
        raise by_code(10122)
    if 0 < limits.max_consumers < config["max_consumers"]:
        raise by_code(10026)


def merge_update(old: Config, new: Config) -> dict[str, Any]:
    """Returns the configuration after an update of `old` to `new` (normalised). Deterministic. Raises ApiError."""
    _check_fixed(old, new)
    merged = dict(new)
    if "first_seq" in old or "first_seq" in new:
        # It decided the first message's sequence. A later value would be wrong, and a replica that is rebuilt from the
        # configuration would start at it.
        merged = {key: new[key] for key in new if key != "first_seq"}
        if "first_seq" in old:
            merged["first_seq"] = old["first_seq"]
    if new["sealed"]:
        merged |= {"max_age": 0, "discard": "new", "deny_delete": True, "deny_purge": True}
        merged["allow_rollup_hdrs"] = False
    return merged


def _check_fixed(old: Config, new: Config) -> None:
    update = "stream configuration update can not"
    if new["name"] != old["name"]:
        raise invalid_config("stream configuration name must match original")
    if new["storage"] != old["storage"]:
        raise invalid_config(f"{update} change storage type")
    if new["retention"] != old["retention"] and "workqueue" in {new["retention"], old["retention"]}:
        raise invalid_config(f"{update} change retention policy to/from workqueue")
    if old["sealed"] and not new["sealed"]:
        raise invalid_config(f"{update} unseal a sealed stream")
    if old["deny_delete"] and not new["deny_delete"]:
        raise invalid_config(f"{update} cancel deny message deletes")
    if old["deny_purge"] and not new["deny_purge"]:
        raise invalid_config(f"{update} cancel deny purge")
    if "mirror" in new and new["mirror"] != old.get("mirror"):
        raise by_code(errors.MIRROR_NOT_UPDATABLE)
    if old["allow_msg_ttl"] and not new["allow_msg_ttl"]:
        raise invalid_config("message TTL status can not be disabled")
    if old.get("allow_msg_counter", False) != new.get("allow_msg_counter", False):
        raise invalid_config(f"{update} change message counter setting")
    if old.get("allow_msg_schedules") and not new.get("allow_msg_schedules"):
        raise invalid_config("message schedules can not be disabled")
    if old.get("persist_mode") != new.get("persist_mode"):
        raise invalid_config(f"{update} change persist mode")
    if new.get("placement") != old.get("placement") and new["num_replicas"] != old["num_replicas"]:
        raise by_code(10123)


def same_config(a: Config, b: Config) -> bool:
    """Returns True when a STREAM.CREATE is a repetition. The server's metadata is ignored, the order counts."""
    return _comparable(a) == _comparable(b)


def _comparable(config: Config) -> dict[str, Any]:
    metadata = {k: v for k, v in config["metadata"].items() if not k.startswith("_nats.")}
    return {**config, "metadata": metadata}


def required_level(config: Config) -> int:
    """Returns the JetStream API level (ADR-44) that the configuration needs, shown as `_nats.req.level`."""
    if config.get("allow_batched"):
        return 4
    level_2 = ("allow_msg_counter", "allow_atomic", "allow_msg_schedules")
    if any(config.get(key) for key in level_2) or config.get("persist_mode") == "async":
        return 2
    return 1 if config.get("allow_msg_ttl") or config.get("subject_delete_marker_ttl") else 0
