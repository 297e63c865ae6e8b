"""Bodies of the consumer API's requests: shape and types.

The checks of their values and the server's defaults are in `model.consumer_rules`, on the wire form.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field

from jetcluster.model.base import Duration, Int64, UInt64, WireModel
from jetcluster.model.times import go_time, parse_rfc3339


def _time(text: str) -> str:
    try:
        return go_time(text)
    except ValueError:
        layout = "2006-01-02T15:04:05Z07:00"
        raise ValueError(f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"') from None


Time = Annotated[str, AfterValidator(_time)]
"""RFC 3339 in Go's form; "" is absent."""


class DeadLetter(WireModel):
    """Where messages go that are given up. What is absent may be in the metadata; unknown keys are kept, for
    `model.dead_letters` to refuse them by name."""

    model_config = ConfigDict(extra="allow")

    subject: str | None = None
    on_max_deliver: bool | None = None
    on_term: bool | None = None


class ConsumerConfig(WireModel):
    """One consumer's configuration in a request, fields in wire order. Durations in nanoseconds."""

    empty_is_absent: ClassVar[frozenset[str]] = frozenset(
        {"deliver_policy", "ack_policy", "replay_policy", "priority_policy", "opt_start_time", "pause_until"}
    )
    words: ClassVar[frozenset[str]] = frozenset({"deliver_policy", "ack_policy", "replay_policy", "priority_policy"})

    durable_name: str = ""
    name: str = ""
    description: str = ""
    deliver_policy: Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"] = "all"
    opt_start_seq: UInt64 = 0
    opt_start_time: Time = ""
    ack_policy: Literal["none", "all", "explicit", "flow_control"] = "none"
    """`compat { ack_policy }` decides the value of an absent key."""
    ack_wait: Duration = 0
    max_deliver: Int64 = 0
    backoff: list[Duration] = Field(default_factory=list)
    filter_subject: str = ""
    filter_subjects: list[str] = Field(default_factory=list)
    replay_policy: Literal["instant", "original"] = "instant"
    rate_limit_bps: UInt64 = 0
    sample_freq: str = ""
    max_waiting: Int64 = 0
    max_ack_pending: Int64 = 0
    flow_control: bool = False
    headers_only: bool = False
    max_batch: Int64 = 0
    max_expires: Duration = 0
    max_bytes: Int64 = 0
    deliver_subject: str = ""
    deliver_group: str = ""
    idle_heartbeat: Duration = 0
    inactive_threshold: Duration = 0
    num_replicas: Int64 = 0
    mem_storage: bool = False
    direct: bool = False
    sourcing: bool = False
    metadata: dict[str, str] = Field(default_factory=dict)
    pause_until: Time = ""
    priority_groups: list[str] = Field(default_factory=list)
    priority_policy: Literal["none", "overflow", "pinned_client", "prioritized"] = "none"
    priority_timeout: Duration = 0
    max_ack_pending_per_subject: Int64 = 0
    """Not in nats-server; with `key`, see `model.order_per_key`."""
    key: str = ""
    dead_letter: DeadLetter | None = None
    """Not in nats-server, see `model.dead_letters`."""

    def settle_ack_policy(self, absent: str) -> None:
        """Sets the policy to `absent` if the request has none."""
        if "ack_policy" not in self.model_fields_set:
            self.ack_policy = "explicit" if absent == "explicit" else "none"

    def to_wire(self) -> dict[str, Any]:
        """Returns the given fields without zero values; times also as `<key>_ns`, Unix nanoseconds."""
        wire = {key: value for key, value in self.model_dump().items() if value}
        if "dead_letter" in wire:
            wire["dead_letter"] = {key: value for key, value in wire["dead_letter"].items() if value is not None}
        if self.priority_policy == "none":
            del wire["priority_policy"]
        for key in ("opt_start_time", "pause_until"):
            if key in wire:
                wire[key + "_ns"] = parse_rfc3339(wire[key])
        return wire


class ConsumerCreateRequest(WireModel):
    """CONSUMER.CREATE."""

    empty_is_absent: ClassVar[frozenset[str]] = frozenset({"action"})

    stream_name: str = ""
    config: ConsumerConfig = Field(default_factory=ConsumerConfig)
    action: Literal["", "create", "update"] = ""
    pedantic: bool = False


class ConsumerPauseRequest(WireModel):
    """CONSUMER.PAUSE."""

    empty_is_absent: ClassVar[frozenset[str]] = frozenset({"pause_until"})

    pause_until: Time = ""


class ConsumerResetRequest(WireModel):
    """CONSUMER.RESET."""

    seq: UInt64 = 0


class ConsumerUnpinRequest(WireModel):
    """CONSUMER.UNPIN."""

    group: str = ""
