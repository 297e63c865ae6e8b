"""Placement: chooses the nodes of a new stream by tags, then prefers online, healthy and less loaded ones.

No two replicas of a stream are on one machine (`model.machines`), because its workers fail together.

Runs on the meta leader with its present view. The choice goes into the log, so it need not be deterministic across
nodes, only explainable. Error texts are nats-server's.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jetcluster import errors
from jetcluster.errors import ApiError, by_code
from jetcluster.model.machines import machine_of
from jetcluster.records import dataclass

NO_PEERS = "no suitable peers for placement"


@dataclass(slots=True, frozen=True)
class Candidate:
    """A node that could hold a replica."""

    peer: str
    tags: tuple[str, ...] = ()
    online: bool = True
    well: bool = True
    """The node answers heartbeats and reports itself healthy. A link to a machine that is gone stays up for seconds."""
    jetstream: bool = True
    replicas: int = 0
    """Number of stream replicas on the node."""
    leaders: int = 0
    """Number of streams that it should lead."""
    full: bool = False
    """True when it holds as many replicated streams as `max_ha_assets` allows."""
    room: int = sys.maxsize
    """Bytes of the stream's storage type that no stream's `max_bytes` reserves."""


@dataclass(slots=True, frozen=True)
class PlacementRules:
    """Rules from the `jetstream` block of the server that leads the meta group."""

    unique_tag: str = ""
    """Prefix, lower case: a stream's nodes must have different tags beginning with it, and nodes without one get no
    replica. A placement that names such a tag itself is exempt."""
    max_ha_assets: int = 0
    """Maximum number of replicated streams per node, 0 for none. Consumers are part of their stream here."""
    max_memory: int = sys.maxsize
    max_storage: int = sys.maxsize
    """Bytes that the streams' `max_bytes` may reserve on each node; all nodes are assumed to be like this one."""


NO_RULES = PlacementRules()


@dataclass(slots=True, frozen=True)
class ChosenPeers:
    """The peers of a new stream, and the online one of them that should campaign first."""

    peers: tuple[str, ...]
    leader: str


def place(
    name: str,
    replicas: int,
    candidates: Sequence[Candidate],
    wish: Mapping[str, Any] | None = None,
    cluster_name: str = "",
    *,
    rules: PlacementRules = NO_RULES,
    beside: Sequence[Candidate] = (),
    claim: int = 0,
) -> ChosenPeers:
    """Choose `replicas` distinct peers for stream `name`, each with room for `claim` bytes; the nodes `beside` hold
    replicas already and keep them.

    `wish` is the configuration's `placement` (`cluster`, `tags`; a tag with a leading `!` must be absent). Unhealthy
    and then offline nodes are taken only when no others are left, and a majority must be online: the group could not
    elect a leader otherwise. Raises ApiError 10005.
    """
    assert replicas > 0
    wish = wish or {}
    if wish.get("cluster") not in {None, "", cluster_name}:
        raise _no_peers("jetstream not enabled in cluster")
    able = [c for c in candidates if c.jetstream and "!jetstream" not in c.tags]
    fitting, reasons = _by_tags(able, wish.get("tags", ()))
    if replicas + len(beside) > 1 and any(c.full for c in fitting):
        fitting = [c for c in fitting if not c.full]
        reasons.append("maximum number of HA assets reached")
    if any(c.room < claim for c in fitting):
        fitting = [c for c in fitting if c.room >= claim]
        reasons.append("insufficient storage")
    online = sum(c.online for c in fitting)
    if len(fitting) < replicas or online < replicas // 2 + 1:
        if len(fitting) >= replicas:
            reasons.append("peer offline")
        raise _no_peers(*reasons)
    ranked = sorted(fitting, key=lambda c: (not c.online, not c.well, c.replicas, c.leaders, _spread(name, c.peer)))
    unique = rules.unique_tag
    if unique and not any(tag.lower().removeprefix("!").startswith(unique) for tag in wish.get("tags", ())):
        ranked = _apart(ranked, lambda candidate: _first_tag(candidate, unique), beside)
    if replicas + len(beside) > 1:
        ranked = _apart(ranked, _machine, beside)
    chosen = ranked[:replicas]
    if len(chosen) < replicas or sum(c.online for c in chosen) < replicas // 2 + 1:  # after `_apart`
        raise _no_peers(*reasons, "server tag not unique")
    leader = min((c for c in chosen if c.online), key=lambda c: (not c.well, c.leaders, _spread(name, c.peer)))
    return ChosenPeers(tuple(c.peer for c in chosen), leader.peer)


def _apart(
    ranked: Sequence[Candidate], tag_of: Callable[[Candidate], str], beside: Sequence[Candidate]
) -> list[Candidate]:
    """Return the first candidate of each `tag_of` that no node `beside` has; "" counts for none."""
    taken = {tag_of(candidate) for candidate in beside} | {""}
    found = []
    for candidate in ranked:
        tag = tag_of(candidate)
        if tag not in taken:
            taken.add(tag)
            found.append(candidate)
    return found


def _first_tag(candidate: Candidate, prefix: str) -> str:
    return next((tag.lower() for tag in candidate.tags if tag.lower().startswith(prefix)), "")


def _machine(candidate: Candidate) -> str:
    return machine_of(candidate.tags, candidate.peer)


def fits(candidate: Candidate, wish: Mapping[str, Any] | None) -> bool:
    """Return True when the node, online or not, may keep a replica of a stream whose `placement` is `wish`."""
    able = candidate.jetstream and "!jetstream" not in candidate.tags
    return able and bool(_by_tags([candidate], (wish or {}).get("tags", ()))[0])


def why_not(
    candidate: Candidate, wish: Mapping[str, Any], rules: PlacementRules, claim: int, several: bool
) -> list[str]:
    """Return why `place` does not take the node for a new stream; [] when it fits by itself. `several`: the stream has
    more than one replica. For the log and `doctor`: the answer has nats-server's texts."""
    from jetcluster.doctor.words import size  # a refusal is rare, and a start should not import it

    found = []
    if not candidate.jetstream or "!jetstream" in candidate.tags:
        found.append("it has no JetStream")
    found += _by_tags([candidate], wish.get("tags", ()))[1]
    if several and candidate.full:
        found.append(f"it holds {rules.max_ha_assets} replicated streams, which max_ha_assets allows")
    if candidate.room < claim:
        left = max(candidate.room, 0)
        found.append(f"{size(claim)} are asked for, and of what it may store {size(left)} are not reserved yet")
    if not candidate.online:
        found.append("it is offline")
    return found


def _by_tags(able: Sequence[Candidate], wanted: Sequence[str]) -> tuple[list[Candidate], list[str]]:
    """Return the candidates with all required and no forbidden tags, and error texts for the others."""
    if not wanted:
        return list(able), []
    required = [tag.lower() for tag in wanted if not tag.startswith("!")]
    forbidden = [tag[1:].lower() for tag in wanted if tag.startswith("!")]
    fitting = []
    unmatched: dict[str, None] = {}
    excluded: dict[str, None] = {}
    for candidate in able:
        tags = {tag.lower() for tag in candidate.tags}
        missing = [tag for tag in required if tag not in tags]
        hits = [tag for tag in forbidden if tag in tags]
        unmatched.update(dict.fromkeys(missing))
        excluded.update(dict.fromkeys(hits))
        if not missing and not hits:
            fitting.append(candidate)
    reasons = []
    if unmatched:
        reasons.append(f"tags not matched {list(unmatched)}")
    if excluded:
        reasons.append(f"tags excluded {list(excluded)}")
    return fitting, reasons


def _spread(name: str, peer: str) -> int:
    """Return a number that breaks ties differently for each stream, so that equally loaded nodes take turns."""
    return zlib.crc32(f"{name}\0{peer}".encode())


def _no_peers(*reasons: str) -> ApiError:
    return by_code(errors.NO_SUITABLE_PEERS, err=", ".join((NO_PEERS, *reasons)))
