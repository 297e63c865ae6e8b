"""A consumer's configuration: its defaults (`with_defaults`), checks (`check_config`) and form in answers (`shown`).

The rules work on the wire forms of consumer (the JSON object of CONSUMER.INFO) and stream, without pydantic. Order,
codes and texts were compared with nats-server 2.15. Rules about a stream's other consumers are in
`consumer.state.table`. Checks that nats-server's defaults make unreachable are left out (10085, 10087, 10114, 10181,
10182).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from jetcluster import API_LEVEL, REPORTED_VERSION, errors
from jetcluster.errors import ApiError, by_code, invalid_config
from jetcluster.model import dead_letters, durations, order_per_key, subjects
from jetcluster.model.limits import UNLIMITED, AccountLimits
from jetcluster.model.stream_rules import MAX_DESCRIPTION_CHARS, MAX_METADATA_BYTES, MAX_NAME_CHARS
from jetcluster.model.subjects import MAX_SHAPES, one_within_another, too_various
from jetcluster.model.times import MILLISECOND, MINUTE, SECOND, parse_rfc3339, rfc3339

Config = Mapping[str, Any]

_OWN_METADATA: Final = "jetcluster."
"""Names in metadata that begin with this are the server's."""

DEFAULT_ACK_WAIT_NS: Final = 30 * SECOND
DEFAULT_MAX_ACK_PENDING: Final = 1000
DEFAULT_MAX_WAITING: Final = 512
DEFAULT_INACTIVE_THRESHOLD_NS: Final = 5 * SECOND
"""The default of consumers that are not durable."""
DEFAULT_PIN_TIMEOUT_NS: Final = 2 * MINUTE
FLOW_CONTROL_HEARTBEAT_NS: Final = SECOND
"""The heartbeat that ack policy flow_control requires."""
MAX_FILTERS: Final = 4096
"""A limit of this server only, since each batch of deliveries checks every literal filter."""
MAX_BACKOFF_WAITS: Final = 10_000
MAX_GROUPS: Final = 64

_ORDER: Final = (
    "durable_name", "name", "description", "deliver_policy", "opt_start_seq", "opt_start_time", "ack_policy",
    "ack_wait", "max_deliver", "backoff", "filter_subject", "filter_subjects", "replay_policy", "rate_limit_bps",
    "sample_freq", "max_waiting", "max_ack_pending", "flow_control", "headers_only", "max_batch", "max_expires",
    "max_bytes", "deliver_subject", "deliver_group", "idle_heartbeat", "inactive_threshold", "num_replicas",
    "mem_storage", "direct", "sourcing", "metadata", "pause_until", "priority_groups", "priority_policy",
    "priority_timeout", "max_ack_pending_per_subject", "key", "dead_letter", "opt_start_time_ns", "pause_until_ns",
)  # fmt: skip
_ALWAYS: Final = frozenset({"num_replicas"})
"""Keys that are shown even when zero."""
_NEVER_NEGATIVE: Final = (
    "max_waiting", "max_batch", "max_expires", "max_bytes", "idle_heartbeat", "inactive_threshold", "priority_timeout",
)  # fmt: skip
_NAME_BLANKS: Final = frozenset(" \t\r\n\f")
_GROUP: Final = re.compile(r"[A-Za-z0-9_/=-]{1,16}")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_POLICY_WORDS: Final = {
    "all": "all",
    "last": "last",
    "new": "new",
    "by_start_sequence": "by start sequence",
    "by_start_time": "by start time",
    "last_per_subject": "last per subject",
}


def check_name(name: str) -> None:
    """Raises ApiError 10127."""
    if "/" in name or "\\" in name:
        raise by_code(10127)


def with_defaults(
    given: Config, stream: Config, limits: AccountLimits = UNLIMITED, *, pedantic: bool = False
) -> dict[str, Any]:
    """Returns `given` (from `ConsumerConfig.to_wire`) with the server's defaults, keys in wire order. Idempotent. Of
    the server's own metadata, only `_nats.req.level` is included. A `pedantic` request must itself give the fields that
    its ack policy needs."""
    config = dict(given)
    for key in _NEVER_NEGATIVE:
        config[key] = max(0, config.get(key, 0))
    acks = config["ack_policy"]
    if acks == "flow_control" and not pedantic:
        config |= {"flow_control": True, "idle_heartbeat": FLOW_CONTROL_HEARTBEAT_NS}
    if config.get("max_deliver", 0) <= 0:
        config["max_deliver"] = -1
    if backoff := config.get("backoff"):
        config["ack_wait"] = backoff[0]
    elif not config.get("ack_wait") and acks in {"explicit", "all"}:
        config["ack_wait"] = DEFAULT_ACK_WAIT_NS
    if not config["max_waiting"] and not config.get("deliver_subject"):
        config["max_waiting"] = DEFAULT_MAX_WAITING
    config["max_ack_pending"] = _max_ack_pending(config, stream, limits)
    if not config["inactive_threshold"]:
        ephemeral = 0 if config.get("durable_name") else DEFAULT_INACTIVE_THRESHOLD_NS
        config["inactive_threshold"] = _stream_limit(stream, "inactive_threshold") or ephemeral
    if config.get("priority_policy") == "pinned_client" and not config["priority_timeout"]:
        config["priority_timeout"] = DEFAULT_PIN_TIMEOUT_NS
    own = {"_nats.level", "_nats.req.level", "_nats.ver"}
    metadata = {key: value for key, value in config.get("metadata", {}).items() if key not in own}
    config["metadata"] = dict(sorted({**metadata, "_nats.req.level": str(required_level(config))}.items()))
    return _ordered(config)


def _max_ack_pending(config: Config, stream: Config, limits: AccountLimits) -> int:
    wanted: int = max(-1, config.get("max_ack_pending", 0)) or _stream_limit(stream, "max_ack_pending")
    if wanted or config["ack_policy"] == "none":
        return wanted
    bounds = (limits.max_ack_pending, limits.server_max_ack_pending)
    return min([DEFAULT_MAX_ACK_PENDING, *(bound for bound in bounds if bound > 0)])


def _stream_limit(stream: Config, key: str) -> int:
    limit: int = stream.get("consumer_limits", {}).get(key, 0)
    return max(0, limit)


def is_beyond(config: Config, limits: Mapping[str, int]) -> bool:
    """Returns True when the consumer exceeds one of a stream's `consumer_limits` that are set."""
    return any(0 < limits.get(key, 0) < config.get(key, 0) for key in ("max_ack_pending", "inactive_threshold"))


def always_new(given: Config, stream: Config) -> bool:
    """Returns True when no existing consumer counts as equal. As in nats-server without a cluster, the default
    `inactive_threshold` of an ephemeral consumer counts as a difference."""
    durable = given.get("durable_name") or given.get("inactive_threshold")
    return not durable and not _stream_limit(stream, "inactive_threshold")


def _ordered(config: Config) -> dict[str, Any]:
    """Returns the fields in wire order without zero values, except the ones that nats-server shows."""
    return {key: config.get(key, 0) for key in _ORDER if config.get(key) or key in _ALWAYS}


def required_level(config: Config) -> int:
    """Returns the JetStream API level (ADR-44) that the configuration needs."""
    if config.get("ack_policy") == "flow_control":
        return 4
    return 1 if config.get("pause_until_ns", 0) > 0 or config.get("priority_groups") else 0


def shown(config: Config, *, versions: bool = True) -> dict[str, Any]:
    """Returns a stored configuration as clients see it: without internal keys (`..._ns`), with `pause_until` of the
    last PAUSE, and with nats-server's metadata (the versions are left out in LIST)."""
    visible = {key: value for key, value in config.items() if not key.endswith("_ns")}
    paused = config.get("pause_until_ns", 0)
    if not paused:
        visible.pop("pause_until", None)
    elif "pause_until" not in visible or parse_rfc3339(visible["pause_until"]) != paused:
        visible["pause_until"] = rfc3339(paused)
    added = {"_nats.req.level": str(required_level(config))}  # PAUSE may change it
    if versions:
        added |= {"_nats.level": str(API_LEVEL), "_nats.ver": REPORTED_VERSION}
    visible["metadata"] = dict(sorted({**visible.get("metadata", {}), **added}.items()))
    return _ordered(visible)


def replicas_within(asked: int, of_stream: int, retention: str) -> int:
    """Returns `num_replicas` of a stored consumer within its stream's, which may have been reduced since."""
    if not asked or (retention == "limits" and asked <= of_stream):
        return asked
    return of_stream


def check_pedantic(given: Config, stream: Config) -> None:
    """Refuses values that `with_defaults` would correct silently. Raises ApiError 10157."""
    for key in ("max_deliver", "max_ack_pending"):
        if given.get(key, 0) < -1:
            raise _pedantic(f"{key} must be set to -1")
    for key in _NEVER_NEGATIVE:
        if given.get(key, 0) < 0:
            raise _pedantic(f"{key} must not be negative")
    if given.get("backoff") and given.get("ack_wait", 0) != given["backoff"][0]:
        raise _pedantic("first backoff value has to equal batch AckWait")
    for key in ("max_ack_pending", "inactive_threshold"):
        if _stream_limit(stream, key) and not given.get(key):
            raise _pedantic(f"{key} must be set if it's configured in stream limits")


def _pedantic(text: str) -> ApiError:
    return by_code(errors.PEDANTIC, err=text)


def check_config(name: str, config: Config, stream: Config, limits: AccountLimits = UNLIMITED) -> None:
    """Checks a configuration with its defaults. Raises ApiError."""
    if not _NAME_BLANKS.isdisjoint(name) or any(c in name for c in ".*>"):
        raise invalid_config("consumer name can not contain '.', '*', '>', '\\', '/'")
    _check_replicas(config, stream)
    _check_acks(config)
    if len(config.get("description", "")) > MAX_DESCRIPTION_CHARS:
        raise by_code(10107, max=MAX_DESCRIPTION_CHARS)
    if config.get("deliver_subject"):
        _check_push(config, stream)
    else:
        _check_pull(config, stream, limits)
    _check_limits(config, stream, limits)
    _check_filters(config)
    _check_start(config)
    _check_sampling(config.get("sample_freq", ""))
    if config.get("flow_control") and not config.get("idle_heartbeat"):
        raise by_code(10108)
    if config.get("durable_name", name) != name:
        raise by_code(10132)
    size = sum(len(k.encode()) + len(v.encode()) for k, v in config.get("metadata", {}).items())
    if size > MAX_METADATA_BYTES:
        raise by_code(10135, limit=f"{MAX_METADATA_BYTES // 1024}KB")
    _check_groups(config)
    order_per_key.check(config)
    dead_letters.check(config, stream)
    if len(name) > MAX_NAME_CHARS:
        raise by_code(10102, max=MAX_NAME_CHARS)


def check_metadata(config: Config) -> None:
    """Checks a request's metadata for unknown names with `jetcluster.`: a misspelled one would be a consumer without
    the order or the letters that its client relies on. Stored and restored configurations are not checked. Raises
    ApiError."""
    known = {"archive", order_per_key.LIMIT, order_per_key.KEY}  # `archive` is what a pipeline's guard notes
    names = [name.removeprefix(_OWN_METADATA) for name in config.get("metadata", {}) if name.startswith(_OWN_METADATA)]
    unknown = sorted(name for name in names if name not in known and not name.startswith(f"{dead_letters.FIELD}."))
    if unknown:
        raise invalid_config(f"metadata of consumers has no {_OWN_METADATA}{unknown[0][:MAX_NAME_CHARS]}")


def _check_replicas(config: Config, stream: Config) -> None:
    replicas, of_stream = config["num_replicas"], stream["num_replicas"]
    if replicas > of_stream:
        raise by_code(10126)
    if replicas < 0:
        raise by_code(errors.NEGATIVE_REPLICAS)
    if stream["retention"] != "limits" and replicas not in {0, of_stream}:
        raise by_code(10134)


def _check_acks(config: Config) -> None:
    backoff = config.get("backoff", [])
    if any(wait < 0 for wait in backoff):
        raise by_code(10184)
    if len(backoff) > MAX_BACKOFF_WAITS:
        raise invalid_config(f"too many backoff values, maximum allowed is {MAX_BACKOFF_WAITS}")
    if config.get("ack_wait", 0) < 0:
        raise by_code(10183)
    if config["ack_policy"] == "flow_control":
        _check_flow_control_acks(config)
    if config["max_deliver"] != -1 and config["max_deliver"] < len(backoff):
        raise by_code(10116)


def _check_flow_control_acks(config: Config) -> None:
    if not config.get("deliver_subject"):
        raise by_code(10218)
    if not config.get("flow_control"):
        raise by_code(10219)
    if config.get("max_ack_pending", 0) <= 0:
        raise by_code(10220)
    if config.get("ack_wait"):
        raise by_code(10221)
    if config["max_deliver"] > 0:
        raise by_code(10222)
    if config.get("idle_heartbeat") != FLOW_CONTROL_HEARTBEAT_NS:
        raise invalid_config("flow control ack policy heartbeat needs to be 1s")


def _check_push(config: Config, stream: Config) -> None:
    target = config["deliver_subject"]
    if not subjects.is_literal(target):
        raise by_code(10079)
    if not subjects.is_valid(target):
        raise by_code(10112)
    if any(subjects.overlap(target, captured) for captured in stream.get("subjects", [])):
        raise by_code(10081)
    if config.get("max_waiting"):
        raise by_code(10080)
    if config["ack_policy"] == "none" and config.get("max_ack_pending", 0) > 0:
        raise by_code(10082)
    if 0 < config.get("idle_heartbeat", 0) < 100 * MILLISECOND:
        raise by_code(10083)


def _check_pull(config: Config, stream: Config, limits: AccountLimits) -> None:
    if stream["retention"] == "workqueue" and config["ack_policy"] == "none":
        raise by_code(10084)
    if config.get("rate_limit_bps"):
        raise by_code(10086)
    if config.get("idle_heartbeat"):
        raise by_code(10088)
    if config.get("flow_control"):
        raise by_code(10089)
    if 0 < config.get("max_expires", 0) < MILLISECOND:
        raise by_code(10115)
    if 0 < limits.max_request_batch < config.get("max_batch", 0):
        raise by_code(10125, limit=limits.max_request_batch)


def _check_limits(config: Config, stream: Config, limits: AccountLimits) -> None:
    pending = config.get("max_ack_pending", 0)
    bounds = (limits.server_max_ack_pending, limits.max_ack_pending, _stream_limit(stream, "max_ack_pending"))
    for bound in bounds:
        if 0 < bound < pending:
            raise by_code(10121, limit=bound)
    longest = _stream_limit(stream, "inactive_threshold")
    if 0 < longest < config.get("inactive_threshold", 0):
        raise by_code(10153, limit=durations.render(longest))
    if config.get("direct"):
        if not config.get("deliver_subject"):
            raise by_code(10090)
        if config.get("durable_name"):
            raise by_code(10091)


def _check_filters(config: Config) -> None:
    one, many = config.get("filter_subject", ""), config.get("filter_subjects", [])
    if one and many:
        raise by_code(10136)
    if one and not subjects.is_valid(one):
        raise invalid_config("invalid subject")
    if len(many) > MAX_FILTERS:
        raise invalid_config(f"too many filter subjects, maximum allowed is {MAX_FILTERS}")
    for subject in many:
        if not subject:
            raise by_code(10139)
        if not subjects.is_valid(subject):
            raise invalid_config("invalid subject")
    if too_various(many):
        raise invalid_config(f"wildcards of filter subjects at too many places, maximum allowed is {MAX_SHAPES}")
    if one_within_another(many):
        raise by_code(10138)


def _check_start(config: Config) -> None:
    policy = config["deliver_policy"]
    seq, time = config.get("opt_start_seq", 0), config.get("opt_start_time", "")
    match policy:
        case "by_start_sequence":
            if not seq:
                raise _bad_start(policy, "start sequence", given=False)
            if time:
                raise _bad_start(policy, "start time", given=True)
        case "by_start_time":
            if not time:
                raise _bad_start(policy, "start time", given=False)
            if seq:
                raise _bad_start(policy, "start start sequence", given=True)  # nats-server's text
        case _:
            if seq:
                raise _bad_start(policy, "start sequence", given=True)
            if time:
                raise _bad_start(policy, "start time", given=True)
            if policy == "last_per_subject" and not (config.get("filter_subject") or config.get("filter_subjects")):
                raise _bad_start(policy, "filter subject", given=False)


def _bad_start(policy: str, option: str, *, given: bool) -> ApiError:
    words = f"consumer delivery policy is deliver {_POLICY_WORDS[policy]}, but optional {option} is "
    return by_code(10094, err=words + ("also set" if given else "not set"))


def _check_sampling(frequency: str) -> None:
    if not frequency:
        return
    number = frequency.removesuffix("%")
    if not _INTEGER.fullmatch(number):
        raise by_code(10095, err=f'strconv.Atoi: parsing "{number}": invalid syntax')
    if int(number) < 0:
        raise by_code(10095, err="<nil>")


def _check_groups(config: Config) -> None:
    policy, groups = config.get("priority_policy", "none"), config.get("priority_groups", [])
    if policy == "none":
        if groups:
            raise by_code(10196)
        if config.get("priority_timeout"):
            raise by_code(10197)
        return
    if config.get("deliver_subject"):
        raise by_code(10178)
    if not groups:
        raise by_code(10159)
    if len(groups) > MAX_GROUPS:
        raise invalid_config(f"too many priority groups, maximum allowed is {MAX_GROUPS}")
    for group in groups:
        check_group(group)


def check_group(group: str) -> None:
    """Raises ApiError 10161 or 10162."""
    if not group:
        raise by_code(10161)
    if not _GROUP.fullmatch(group):
        raise by_code(10162)
