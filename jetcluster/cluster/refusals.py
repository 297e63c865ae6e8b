"""Why the meta leader refused streams, with the arithmetic: which servers were looked at, what is reserved and left.

The answer to the client has nats-server's text, which clients compare. The reason is in this server's log, with the
request's id, and among its findings (`monitor.findings`) for an hour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jetcluster.clock import Clock
from jetcluster.errors import ApiError
from jetcluster.logs import Log
from jetcluster.meta.placement import Candidate, PlacementRules, why_not
from jetcluster.meta.places import LimitUse
from jetcluster.records import NamedTuple

MAX_KEPT: Final = 32
KEPT_SECONDS: Final = 3600.0
AGAIN_SECONDS: Final = 60.0
"""The same refusal is logged again after that time."""


class Refusal(NamedTuple):
    """A stream that was refused; `at` in monotonic seconds, `why` one reason each."""

    at: float
    account: str
    stream: str
    error: ApiError
    why: tuple[str, ...]


class Refusals:
    """The last refusals of one node, the newest of each stream and code."""

    def __init__(self, clock: Clock, log: Log) -> None:
        self._clock, self._log = clock, log
        self._kept: dict[tuple[str, str, int], Refusal] = {}
        self._logged: dict[tuple[str, str, int], float] = {}

    def note(self, account: str, stream: str, request: str, error: ApiError, why: Sequence[str]) -> None:
        key, now = (account, stream, error.err_code), self._clock.monotonic()
        self._kept.pop(key, None)
        self._kept[key] = Refusal(now, account, stream, error, tuple(why))
        while len(self._kept) > MAX_KEPT:
            gone = next(iter(self._kept))
            del self._kept[gone]
            self._logged.pop(gone, None)
        if now - self._logged.get(key, -AGAIN_SECONDS) >= AGAIN_SECONDS:
            self._logged[key] = now
            self._log.warning(
                "a stream is refused", account=account, stream=stream, request=request, code=error.err_code,
                error=error.description, why="; ".join(why),
            )  # fmt: skip

    def recent(self) -> list[tuple[Refusal, float]]:
        """Returns the refusals of the last hour, and their age in seconds."""
        now = self._clock.monotonic()
        return [(one, now - one.at) for one in self._kept.values() if now - one.at < KEPT_SECONDS]


def reasons_of_placement(
    config: Mapping[str, Any],
    candidates: Sequence[Candidate],
    names: Mapping[str, str],
    draining: Sequence[str],
    rules: PlacementRules,
    cluster_name: str,
) -> list[str]:
    """Returns why no servers were found for a stream: a line for all, and one for each server. `names`: of peers;
    `draining`: names of servers that are being emptied."""
    wish, claim = config.get("placement") or {}, max(int(config.get("max_bytes", -1)), 0)
    replicas = int(config["num_replicas"])
    if wish.get("cluster") not in {None, "", cluster_name}:
        return [f"the placement names cluster {wish['cluster']}, and this one is {cluster_name}"]
    lines, fit = [], 0
    for candidate in candidates:
        why = why_not(candidate, wish, rules, claim, replicas > 1)
        fit += not why
        lines.append(f"{names.get(candidate.peer, candidate.peer)}: {', '.join(why) or 'fits'}")
    lines += [f"{name}: it is being emptied" for name in draining]
    asked = "1 replica is" if replicas == 1 else f"{replicas} replicas are"
    head = f"{fit} of {len(lines)} servers fit, {asked} asked for"
    if fit >= replicas:
        apart = f", or share a tag that begins with {rules.unique_tag}" if rules.unique_tag else ""
        head += f"; some of them are on one machine{apart}"
    return [head, *sorted(lines)]


def reasons_of_limit(use: LimitUse, config: Mapping[str, Any]) -> list[str]:
    """Returns the arithmetic of an account's or tier's limit on storage."""
    from jetcluster.doctor.words import size  # as in `meta.placement.why_not`

    left, asked = max(use.limit - use.taken, 0), int(config["max_bytes"])
    return [
        f"max_bytes {size(asked)} and {config['num_replicas']} replicas ask for {size(use.wanted)} of "
        f"{config['storage']} storage"
        if asked > 0
        else f"without max_bytes a stream needs room for a byte of {config['storage']} storage for each replica",
        f"the limit is {size(use.limit)}, streams have reserved {size(use.taken)}, {size(left)} are left",
    ]
