"""A stream's configuration: defaults filled in, what is refused at its creation, and what an update may not change."""

from __future__ import annotations

import re
from typing import Any

from tests.model.answers import ANY
from tests.model.errors import Refused
from tests.model.rules import Rules
from tests.model.subjects import overlap, valid

MILLISECOND = 10**6
SECOND = 10**9
WINDOW = 120 * SECOND
ALWAYS: dict[str, Any] = {
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "compression": "none",
    "allow_direct": False,
    "mirror_direct": False,
    "sealed": False,
    "deny_delete": False,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
    "consumer_limits": {},
    "allow_msg_ttl": False,
}
"""Shown whatever they are, with their defaults."""
SOMETIMES = (
    "description", "duplicate_window", "first_seq", "subject_transform", "republish", "discard_new_per_subject",
    "no_ack", "subject_delete_marker_ttl", "allow_msg_counter", "allow_atomic",
)  # fmt: skip
"""Shown when they are set."""
NAMELESS = "stream name is required and can not contain '.', '*', '>', '\\', '/'"
LIMITS = ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")


def filled(asked: dict[str, Any], rules: Rules) -> dict[str, Any]:
    """The configuration that is stored for a request, defaults filled in. Raises Refused."""
    config = {"name": asked["name"], "subjects": asked.get("subjects") or [asked["name"]]}
    config |= {key: asked.get(key, default) for key, default in ALWAYS.items()}
    config |= {key: asked[key] for key in SOMETIMES if asked.get(key)}
    for key in LIMITS:
        if config[key] <= 0:
            config[key] = -1
    if not config.get("duplicate_window"):
        config["duplicate_window"] = min(WINDOW, config["max_age"] or WINDOW)
    if config.get("subject_delete_marker_ttl"):
        config |= {"allow_msg_ttl": True, "allow_rollup_hdrs": True, "deny_purge": False}
    if rules.auto_allow_direct and config["max_msgs_per_subject"] > 0:
        config["allow_direct"] = True
    own = {key: value for key, value in (asked.get("metadata") or {}).items() if not key.startswith("_nats.")}
    config["metadata"] = own | {"_nats.ver": ANY, "_nats.level": ANY, "_nats.req.level": _level(config)}
    _check(config, asked)
    return config


def _level(config: dict[str, Any]) -> str:
    """The API level that the configuration needs."""
    if config.get("allow_msg_counter") or config.get("allow_atomic"):
        return "2"
    return "1" if config["allow_msg_ttl"] or config.get("subject_delete_marker_ttl") else "0"


def wrong(text: str) -> Refused:
    return Refused(10052, text=text)


def _check(config: dict[str, Any], asked: dict[str, Any]) -> None:
    if not re.fullmatch(r"[^\s.*>\\/]+", config["name"]):
        raise wrong(NAMELESS)
    if config["max_age"] < 0:
        raise wrong("max age can not be negative")
    if 0 < config["max_age"] < 100 * MILLISECOND:
        raise wrong("max age needs to be >= 100ms")
    window = config["duplicate_window"]
    if window < 0:
        raise wrong("duplicates window can not be negative")
    if config["max_age"] and window > config["max_age"]:
        raise wrong("duplicates window can not be larger then max age")
    if 0 < window < 100 * MILLISECOND:
        raise wrong("duplicates window needs to be >= 100ms")
    if config["deny_purge"] and config["allow_rollup_hdrs"]:
        raise wrong("roll-ups require the purge permission")
    _check_discard(config)
    _check_markers(config)
    _check_counters(config)
    _check_subjects(config)


def _check_discard(config: dict[str, Any]) -> None:
    if config.get("discard_new_per_subject"):
        if config["discard"] != "new":
            raise wrong("discard new per subject requires discard new policy to be set")
        if config["max_msgs_per_subject"] <= 0:
            raise wrong("discard new per subject requires max msgs per subject > 0")


def _check_markers(config: dict[str, Any]) -> None:
    ttl = config.get("subject_delete_marker_ttl", 0)
    if ttl and ttl < SECOND:
        raise wrong("subject delete marker TTL must be at least 1 second")


def _check_counters(config: dict[str, Any]) -> None:
    if not config.get("allow_msg_counter"):
        return
    if config["discard"] == "new":
        raise wrong("counter stream cannot use discard new")
    if config["allow_msg_ttl"]:
        raise wrong("counter stream cannot use message TTLs")
    if config["retention"] != "limits":
        raise wrong("counter stream can only use limits retention")


def _check_subjects(config: dict[str, Any]) -> None:
    known: list[str] = []
    for subject in config["subjects"]:
        if not valid(subject):
            raise wrong("invalid subject")
        if subject in known:
            raise wrong("duplicate subjects detected")
        for other in known:
            if overlap(subject, other):
                raise wrong(f'subject "{other}" overlaps with "{subject}"')
        known.append(subject)


def check_update(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raises Refused."""
    if old["storage"] != new["storage"]:
        raise wrong("stream configuration update can not change storage type")
    if old["retention"] != new["retention"] and "workqueue" in (old["retention"], new["retention"]):
        raise wrong("stream configuration update can not change retention policy to/from workqueue")
    if old["sealed"] and not new["sealed"]:
        raise wrong("stream configuration update can not unseal a sealed stream")
    if old["deny_delete"] and not new["deny_delete"]:
        raise wrong("stream configuration update can not cancel deny message deletes")
    if old["deny_purge"] and not new["deny_purge"]:
        raise wrong("stream configuration update can not cancel deny purge")
    if old["allow_msg_ttl"] and not new["allow_msg_ttl"]:
        raise wrong("message TTL status can not be disabled")
    if bool(old.get("allow_msg_counter")) != bool(new.get("allow_msg_counter")):
        raise wrong("stream configuration update can not change message counter setting")
    if new["sealed"]:
        new |= {"max_age": 0, "discard": "new", "deny_delete": True, "deny_purge": True, "allow_rollup_hdrs": False}
