"""`CompatOptions`: the points in which the specification and nats-server differ, and which of the two this server
follows in each.

The defaults are what stock clients rely on, and the specification's letter where none of them minds. Every choice is
made where a request is received or an answer is rendered, never in apply: replicas compute alike, however each of them
is configured (docs/compatibility.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(slots=True)
class CompatOptions:
    """The `compat` block."""

    ack_policy: str = "none"
    """The ack policy of a consumer that is created without one: "none" or "explicit"."""
    batch_msg_id: str = "deduplicate"
    """Nats-Msg-Id in an atomic batch: "deduplicate" (a duplicate refuses the batch with 10201) or "refuse" (10177)."""
    auto_allow_direct: bool = True
    """max_msgs_per_subject above 0 turns allow_direct on."""
    up_to_time: str = "inclusive"
    """The end of a multi-get's `up_to_time`: a message of that very instant is part of it ("inclusive") or not
    ("exclusive")."""
    seed_error_codes: bool = False
    """API errors are numbered as the specification numbers them."""
    empty_policy: str = "absent"
    """A consumer's policy that is "" or `null`: "absent" (as if it were not there) or "refuse" (10025)."""
    duplicate_window_max: bool = False
    """`limits` of `$JS.API.INFO` has that field."""


PRESETS: Final = {
    "seeds": CompatOptions(
        ack_policy="explicit",
        batch_msg_id="refuse",
        auto_allow_direct=True,
        up_to_time="inclusive",
        seed_error_codes=True,
        empty_policy="absent",
        duplicate_window_max=True,
    ),
    "nats-server": CompatOptions(auto_allow_direct=False, up_to_time="exclusive", empty_policy="refuse"),
}
"""All of them at once: the specification, and nats-server 2.15.2 in these points."""
