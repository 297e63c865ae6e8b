"""The `feature_flags` of nats-server 2.15: what this server does of each, and what a configuration can switch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

ACK_V2: Final = "js_ack_fc_v2"

DEFAULTS: Final[Mapping[str, bool]] = {
    ACK_V2: False,  # subjects of acks and flow control have domain and account (`consumer.owner.ack_subject`)
    "js_api_reply_v2": False,  # and those on which answers to the server's own requests come
    "js_raft_delete_range": True,  # one entry for a gap that a mirror takes over (`stream.apply.sourced`)
    "js_snapshot_sources": True,  # a stream's state in a catch-up has the positions in its sources
}
"""True for each behaviour that this server has."""
SWITCHES: Final = frozenset((ACK_V2,))


def merged(configured: Mapping[str, bool]) -> dict[str, bool]:
    """Return what is in force, as `/varz` tells it."""
    return {**DEFAULTS, **{name: on for name, on in configured.items() if name in SWITCHES}}


def log_lines(configured: Mapping[str, bool]) -> Iterator[str]:
    """Return the lines of a start's log, which are nats-server's but for the flags that cannot be switched here."""
    if not configured:
        return
    names = sorted(configured)
    told = [f"{name} ({_word(name, on=configured[name])})" for name in names if name in SWITCHES]
    yield "  Feature flags:"
    yield f"    Configured:    {', '.join(told) or 'none'}"
    in_force = merged(configured)
    fixed = [f"{name} ({str(on).lower()})" for name, on in in_force.items() if configured.get(name, on) != on]
    if fixed:
        yield f"    Fixed:         {', '.join(fixed)}"
    unknown = [name for name in names if name not in DEFAULTS]
    if unknown:
        yield f"    Unsupported:   {', '.join(unknown)}"


def _word(name: str, *, on: bool) -> str:
    if DEFAULTS[name]:
        return "enabled" if on else "opt-out"
    return "opt-in" if on else "disabled"
