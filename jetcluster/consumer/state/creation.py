"""The checks of CONSUMER_CREATE in apply, against the stream at that place of the log, so that all replicas agree.
`model` validates the configuration itself at the edge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from jetcluster import errors
from jetcluster.consumer.state.rules import EXPLICIT, FLOW_CONTROL, ConsumerRules
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.errors import ApiError
from jetcluster.model import consumer_rules
from jetcluster.model.subjects import Patterns
from jetcluster.records import NamedTuple
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.log.bodies import load_object
from jetcluster.stream.log.commands import CommandError, UnknownCommandError
from jetcluster.stream.rules import LIMITS, WORKQUEUE, StreamRules

Config = Mapping[str, Any]

_DEFAULTS: Final = {"deliver_policy": "all", "ack_policy": "explicit", "replay_policy": "instant"}

_FIXED: Final = (
    ("deliver_policy", "deliver policy"),
    ("mem_storage", "storage type"),
    ("direct", "direct"),
    ("sourcing", "sourcing"),
    ("opt_start_seq", "start sequence"),
    ("opt_start_time_ns", "start time"),
    ("ack_policy", "ack policy"),
    ("replay_policy", "replay policy"),
    ("idle_heartbeat", "heart beats"),
    ("flow_control", "flow control"),
)
"""Fields that an update must not change, with their names in the error, in the order of the checks."""

_PAUSE: Final = frozenset(("pause_until", "pause_until_ns"))


class Create(NamedTuple):
    """The body of a CONSUMER_CREATE."""

    name: str
    config: dict[str, Any]
    action: str
    """`create`, `update`, or "" for either."""
    created: int
    """Unix nanoseconds."""
    owner: str
    request: str
    """Random id; a repeated one is a retry."""
    max_consumers: int = 0
    """Limit of the account, 0 for none; the stream's own limit applies too."""
    restored: dict[str, Any] | None = None
    """The consumer's progress from an archive, as `archived.decode` returns it."""


_FIELDS: Final = frozenset(Create._fields)


def decode(body: bytes) -> Create:
    """Raises CommandError."""
    try:
        fields = load_object(body)
        if not fields.keys() <= _FIELDS:
            raise UnknownCommandError(f"consumer create: {', '.join(sorted(fields.keys() - _FIELDS))}")
        wish = Create(**fields)
    except (ValueError, TypeError) as error:
        raise CommandError(f"consumer create: {error}") from error
    strings = (wish.name, wish.action, wish.owner, wish.request)
    if not all(isinstance(text, str) for text in strings) or not isinstance(wish.config, dict):
        raise CommandError("consumer create: not the types")
    if not isinstance(wish.restored, dict | None):
        raise CommandError("consumer create: restored is no object")
    if not isinstance(wish.max_consumers, int):
        raise CommandError("consumer create: max_consumers is no number")
    if not isinstance(wish.created, int) or not 0 <= wish.created < 1 << 63:
        raise CommandError(f"consumer create: created {wish.created}")
    return wish


def check_replicas(config: Config, stream: StreamRules) -> ApiError | None:
    replicas = config.get("num_replicas") or 0
    if replicas > stream.num_replicas:
        return errors.by_code(10126)
    if stream.retention != LIMITS and replicas not in (0, stream.num_replicas):
        return errors.by_code(10134)
    return None


def following(config: Config, stream: StreamRules) -> Config:
    """Return `config` as shown and archived: with a `num_replicas` that the stream permits now."""
    asked = int(config.get("num_replicas") or 0)
    permitted = consumer_rules.replicas_within(asked, stream.num_replicas, stream.retention)
    return config if permitted == asked else {**config, "num_replicas": permitted}


def check_new(
    rules: ConsumerRules, stream: StreamRules, max_consumers: int, public: int, others: Iterable[ConsumerState]
) -> ApiError | None:
    """Return the error of a new consumer beside the existing `others`, None when it can be created. `public`: the
    number of those that are not of mirrors and sources. Only a work queue looks at each."""
    bounds = [bound for bound in (stream.max_consumers, max_consumers) if bound > 0]
    if bounds and public >= min(bounds) and not rules.direct:
        return errors.by_code(errors.MAX_CONSUMERS)
    if stream.retention != WORKQUEUE or rules.direct:
        return None
    if rules.ack_policy not in (EXPLICIT, FLOW_CONTROL):
        return errors.by_code(10098)
    if rules.deliver_policy != "all":
        return errors.by_code(10101)
    if public and not rules.filtered:
        return errors.by_code(10099)
    if not _unique(rules, others):
        return errors.by_code(10100)
    return None


def check_update(
    state: ConsumerState, rules: ConsumerRules, stream: StreamRules, all_states: Iterable[ConsumerState]
) -> ApiError | None:
    """Return the error of an update of `state` to `rules`, None when it is possible. The edge checks for interest in
    the old deliver_subject (10013), on which replicas need not agree."""
    old, new = state.rules.config, rules.config
    for key, what in _FIXED:
        if _value(old, key) != _value(new, key):
            return _refused(f"{what} can not be updated")
    if state.rules.push != rules.push:
        kinds = ("push", "pull") if state.rules.push else ("pull", "push")
        return _refused("can not update {} consumer to {} based".format(*kinds))
    if state.rules.max_waiting != rules.max_waiting:
        return _refused("max waiting can not be updated")
    if rules.max_deliver and len(rules.backoff) > rules.max_deliver:
        return errors.by_code(10116)
    if stream.retention == WORKQUEUE and not rules.direct:
        if state.letters and rules.letters is not None and set(rules.filters) != set(state.rules.filters):
            return _refused("filters can not be updated while dead letters wait")  # others would get their messages
        others = (other for other in all_states if other is not state)
        return None if _unique(rules, others) else errors.by_code(10100)
    return None


def same(a: Config, b: Config) -> bool:
    """Return True for equal configurations; the server's own metadata and the pause do not count."""
    return _comparable(a) == _comparable(b)


def with_pause(config: Config, of: Config) -> dict[str, Any]:
    """Return `config` with the pause from `of`: an update keeps it."""
    kept = {key: value for key, value in config.items() if key not in _PAUSE}
    return kept | {key: value for key, value in of.items() if key in _PAUSE}


def start(rules: ConsumerRules, stream: StreamRules, store: BlockStore) -> tuple[int, int]:
    """Return (first sequence that may be delivered, `ConsumerState.last_per_subject_upto`)."""
    first, last = store.first_seq, store.last_seq
    policy = rules.deliver_policy
    upto = 0
    if policy == "by_start_sequence":
        return max(rules.opt_start_seq, first), 0
    if policy == "by_start_time":
        seq = store.seq_at_time(rules.opt_start_time)
    elif policy == "new":
        seq = last + 1
    elif policy == "last":
        seq = store.queries.last_of_any(rules.filters) or first
    elif policy == "last_per_subject" and (upto := last_per_subject_upto(stream, store)):
        seq = min(store.last_seqs_any(rules.filters), default=last)
    else:
        seq = first
    return max(min(seq, last + 1), first), upto


def last_per_subject_upto(stream: StreamRules, store: BlockStore) -> int:
    """Return the last sequence; 0 where each message is the last of its subject."""
    return 0 if stream.max_msgs_per_subject == 1 else store.last_seq


def check_reset(rules: ConsumerRules, seq: int, store: BlockStore) -> ApiError | None:
    """Return the error of a reset to `seq`, which must be a sequence at which deliveries could have begun. A reset to
    the ack floor is always allowed and not checked."""
    policy = rules.deliver_policy
    if policy == "by_start_sequence":
        if seq >= rules.opt_start_seq:
            return None
        return errors.by_code(errors.INVALID_RESET, err="below start seq")
    if policy == "by_start_time":
        if seq >= store.seq_at_time(rules.opt_start_time):
            return None
        return errors.by_code(errors.INVALID_RESET, err="below start time")
    return None if policy == "all" else errors.by_code(errors.INVALID_RESET, err="not allowed")


def _unique(rules: ConsumerRules, others: Iterable[ConsumerState]) -> bool:
    """Return True when no filter overlaps with one of another consumer; those of mirrors and sources do not count."""
    patterns = Patterns(filter.decode("latin-1") for filter in rules.filters)
    public = (other for other in others if not other.rules.direct)
    return not any(patterns.overlap(theirs.decode("latin-1")) for other in public for theirs in other.rules.filters)


def _refused(text: str) -> ApiError:
    return errors.by_code(errors.CONSUMER_CREATE_FAILED, err=text)


def _value(config: Config, key: str) -> object:
    return config.get(key) or _DEFAULTS.get(key)


def _comparable(config: Config) -> dict[str, Any]:
    kept = {key: value for key, value in config.items() if key not in _PAUSE and key != "metadata"}
    metadata = {k: v for k, v in (config.get("metadata") or {}).items() if not k.startswith("_nats.")}
    return {**kept, "metadata": metadata}
