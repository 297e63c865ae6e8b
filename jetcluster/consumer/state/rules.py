"""`ConsumerRules`: a consumer's configuration as the state machine and the delivery use it.

Built from the normalised configuration (the JSON object of CONSUMER.INFO), which `model` validates at the edge and
`table` in apply. Durations are nanoseconds; limits that are off are 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jetcluster.model import dead_letters
from jetcluster.model.dead_letters import LetterWish
from jetcluster.model.order_per_key import KeyWish, in_force

NONE: Final = "none"
ALL: Final = "all"
EXPLICIT: Final = "explicit"
FLOW_CONTROL: Final = "flow_control"
"""Ack policies."""
CUMULATIVE: Final = frozenset((ALL, FLOW_CONTROL))
"""Those whose acks include all lower sequences."""

PINNED: Final = "pinned_client"
OVERFLOW: Final = "overflow"
PRIORITIZED: Final = "prioritized"
"""Priority policies (ADR-42)."""


class ConsumerRules:
    """The parsed rules, immutable by convention: an update makes a new object. `config` is the source."""

    __slots__ = (
        "ack_policy",
        "ack_wait",
        "acks",
        "backoff",
        "config",
        "deliver_group",
        "deliver_policy",
        "deliver_subject",
        "direct",
        "durable",
        "filtered",
        "filters",
        "flow_control",
        "headers_only",
        "idle_heartbeat",
        "inactive_threshold",
        "keys",
        "letters",
        "max_ack_pending",
        "max_batch",
        "max_bytes",
        "max_deliver",
        "max_expires",
        "max_waiting",
        "name",
        "opt_start_seq",
        "opt_start_time",
        "pause_until",
        "priority_groups",
        "priority_policy",
        "priority_timeout",
        "push",
        "rate_limit",
        "replay_original",
        "sample",
    )

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self.config: dict[str, Any] = dict(config)
        self.name = name
        self.durable = bool(config.get("durable_name"))
        self.deliver_subject: bytes = (config.get("deliver_subject") or "").encode()
        self.deliver_group: bytes = (config.get("deliver_group") or "").encode()
        self.push = bool(self.deliver_subject)
        self.deliver_policy: str = config.get("deliver_policy") or ALL
        self.opt_start_seq = int(config.get("opt_start_seq") or 0)
        self.opt_start_time = int(config.get("opt_start_time_ns") or 0)
        """Unix nanoseconds: `model` adds keys in `_ns` to the log's configuration, and hides them from clients."""
        self.pause_until = int(config.get("pause_until_ns") or 0)
        self.ack_policy: str = config.get("ack_policy") or EXPLICIT
        self.acks = self.ack_policy != NONE
        """True when a message stays pending until it is acked."""
        self.ack_wait = int(config.get("ack_wait") or 0)
        self.backoff: tuple[int, ...] = tuple(map(int, config.get("backoff") or ()))
        self.max_deliver = max(0, int(config.get("max_deliver") or 0))
        self.max_ack_pending = max(0, int(config.get("max_ack_pending") or 0))
        self.max_waiting = max(0, int(config.get("max_waiting") or 0))
        self.max_batch = max(0, int(config.get("max_batch") or 0))
        self.max_bytes = max(0, int(config.get("max_bytes") or 0))
        self.max_expires = max(0, int(config.get("max_expires") or 0))
        subjects = config.get("filter_subjects") or ([config["filter_subject"]] if config.get("filter_subject") else [])
        self.filters: tuple[bytes, ...] = tuple(s.encode() for s in subjects) or (b">",)
        """Never empty; filters may overlap, but none contains another. `>` alone for an unfiltered consumer."""
        self.filtered = bool(subjects)
        self.replay_original = config.get("replay_policy") == "original"
        self.rate_limit = max(0, int(config.get("rate_limit_bps") or 0))
        self.sample = int((config.get("sample_freq") or "0").rstrip("%") or 0)
        self.flow_control = bool(config.get("flow_control"))
        self.headers_only = bool(config.get("headers_only"))
        self.idle_heartbeat = int(config.get("idle_heartbeat") or 0)
        self.inactive_threshold = int(config.get("inactive_threshold") or 0)
        self.direct = bool(config.get("direct") or config.get("sourcing"))
        self.priority_policy: str = config.get("priority_policy") or NONE
        self.priority_groups: tuple[bytes, ...] = tuple(g.encode() for g in config.get("priority_groups") or ())
        self.priority_timeout = int(config.get("priority_timeout") or 0)
        self.keys: KeyWish | None = in_force(config)
        """Order per key; None without it."""
        self.letters: LetterWish | None = dead_letters.in_force(config)
        """Dead letters; None without them."""

    def wait_after(self, deliveries: int) -> int:
        """Return the wait for an ack after so many deliveries. Backoff replaces ack_wait; its last value repeats."""
        if self.backoff:
            return self.backoff[min(deliveries, len(self.backoff)) - 1]
        return self.ack_wait
