"""Which nodes hold a new stream: online ones first, those with the fewest replicas first, tags respected.

Runs on the meta leader with what it sees now; the choice goes into the log, so it need not be deterministic across
nodes, only explainable. Error texts: shared/reference/streams.md 5.9.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jetcluster import errors
from jetcluster.errors import ApiError, by_code

NO_PEERS = "no suitable peers for placement"


@dataclass(slots=True, frozen=True)
class Candidate:
    """A node that could hold a replica."""

    peer: str
    tags: tuple[str, ...] = ()
    online: bool = True
    jetstream: bool = True
    replicas: int = 0
    """Replicas of streams it holds already."""
    leaders: int = 0
    """Streams it is meant to lead."""


@dataclass(slots=True, frozen=True)
class Placement:
    peers: tuple[str, ...]
    leader: str
    """The online peer that should campaign first."""


def place(
    name: str,
    replicas: int,
    candidates: Sequence[Candidate],
    wish: Mapping[str, Any] | None = None,
    cluster_name: str = "",
) -> Placement:
    """Chooses `replicas` distinct peers for stream `name`.

    `wish` is the configuration's `placement` (`cluster`, `tags`; a tag with a leading `!` must be absent). Offline
    nodes are taken only to fill up, and only if a majority of the group is online: it could not elect a leader
    otherwise. Raises ApiError 10005.
    """
    assert replicas > 0
    wish = wish or {}
    if wish.get("cluster") not in {None, "", cluster_name}:
        raise _no_peers("jetstream not enabled in cluster")
    able = [c for c in candidates if c.jetstream and "!jetstream" not in c.tags]
    fitting, reasons = _by_tags(able, wish.get("tags", ()))
    online = sum(c.online for c in fitting)
    if len(fitting) < replicas or online < replicas // 2 + 1:
        if len(fitting) >= replicas:
            reasons.append("peer offline")
        raise _no_peers(*reasons)
    ranked = sorted(fitting, key=lambda c: (not c.online, c.replicas, c.leaders, _spread(name, c.peer)))
    chosen = ranked[:replicas]
    leader = min((c for c in chosen if c.online), key=lambda c: (c.leaders, _spread(name, c.peer)))
    return Placement(tuple(c.peer for c in chosen), leader.peer)


def fits(candidate: Candidate, wish: Mapping[str, Any] | None) -> bool:
    """Could the node, online or not, go on holding a stream whose `placement` is `wish`?"""
    able = candidate.jetstream and "!jetstream" not in candidate.tags
    return able and bool(_by_tags([candidate], (wish or {}).get("tags", ()))[0])


def _by_tags(able: Sequence[Candidate], wanted: Sequence[str]) -> tuple[list[Candidate], list[str]]:
    """Candidates with all the wanted tags and none of the unwanted; tags that ruled some out, as error texts."""
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
    """Breaks ties differently for every stream, so that equally loaded nodes take turns."""
    return zlib.crc32(f"{name}\0{peer}".encode())


def _no_peers(*reasons: str) -> ApiError:
    return by_code(errors.NO_SUITABLE_PEERS, err=", ".join((NO_PEERS, *reasons)))
