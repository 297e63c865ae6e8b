"""The checks of `"pedantic": true`: a configuration that the server would silently correct is refused.

Codes and texts are nats-server 2.15.2's, except for the last rule: only this server makes that correction.
"""

from __future__ import annotations

from jetcluster.errors import ApiError, by_code, invalid_config
from jetcluster.model.limits import UNLIMITED, AccountLimits
from jetcluster.model.stream import StreamConfig
from jetcluster.model.stream_rules import DEFAULT_DUPLICATE_WINDOW_NS, check_max_age, check_replicas

_PEDANTIC_CODE = 10157
_LIMITS = ("max_msgs_per_subject", "max_msgs", "max_bytes", "max_msg_size", "max_consumers")


def check_pedantic(given: StreamConfig, mended: StreamConfig, limits: AccountLimits = UNLIMITED) -> None:
    """Raises ApiError 10157 or 10052. `mended` is the result of `given.normalised(limits)`."""
    for key in _LIMITS:
        if getattr(given, key) < -1:
            raise _refusal(f"{key} must be set to -1")
    check_replicas(given.num_replicas)
    check_max_age(given.max_age)
    defaulted = mended.duplicate_window and not given.duplicate_window
    if defaulted and 0 < limits.duplicate_window_max < DEFAULT_DUPLICATE_WINDOW_NS:
        raise _refusal("duplicate window limits are higher than current limits")
    if defaulted and mended.duplicate_window < DEFAULT_DUPLICATE_WINDOW_NS:
        raise _refusal("duplicate window cannot be bigger than max age")
    if given.republish is not None and not given.republish.src:
        raise _refusal("republish source can not be empty")
    if given.subject_delete_marker_ttl > 0:
        if not given.allow_msg_ttl:
            raise invalid_config("subject delete marker cannot be set if message TTLs are disabled")
        if not given.allow_rollup_hdrs:
            raise invalid_config("subject delete marker cannot be set if roll-ups are disabled")
    if given.allow_msg_schedules and not given.allow_rollup_hdrs:
        raise invalid_config("message scheduling cannot be set if roll-ups are disabled")
    if given.allow_rollup_hdrs and given.deny_purge:
        raise invalid_config("roll-ups require the purge permission")
    if mended.allow_direct != given.allow_direct:
        raise _refusal("max msgs per subject requires allow direct")


def _refusal(text: str) -> ApiError:
    return by_code(_PEDANTIC_CODE, err=text)
