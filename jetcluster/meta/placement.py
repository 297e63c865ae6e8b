"""The choice of nodes for a new stream: online ones first, well ones first, those with the fewest replicas first, tags
respected.

Runs on the meta leader with what it sees now; the choice goes into the log, so it need not be deterministic across
nodes, only explainable. Error texts are nats-server's.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from jetcluster import errors
from jetcluster.errors import ApiError, by_code
from jetcluster.records import dataclass

NO_PEERS = "no suitable peers for placement"


@dataclass(slots=True, frozen=True)
class Candidate:
    """A node that could hold a replica."""

    peer: str
    tags: tuple[str, ...] = ()
    online: bool = True
    well: bool = True
    """It is heard, and says so. The link to a machine that is gone lasts for seconds."""
    jetstream: bool = True
    replicas: int = 0
    """Replicas of streams it holds already."""
    leaders: int = 0
    """Streams it is meant to lead."""
    full: bool = False
    """Holds as many replicated streams as `max_ha_assets` allows."""
    room: int = sys.maxsize
    """Bytes, of the stream's kind of storage, that no stream's `max_bytes` lays claim to."""


@dataclass(slots=True, frozen=True)
class PlacementRules:
    """The `jetstream` block's, of the server that leads the meta group."""

    unique_tag: str = ""
    """No two replicas of a stream on nodes that share the tag beginning with this, lower case; a node without such a
    tag gets none. Placements that name such a tag themselves are free of it."""
    max_ha_assets: int = 0
    """Streams with more than one replica per node; 0: any number. Consumers are part of their stream here."""
    max_memory: int = sys.maxsize
    max_storage: int = sys.maxsize
    """Bytes that the streams' `max_bytes` may lay claim to on each node, which are taken to be like this one."""


NO_RULES = PlacementRules()


@dataclass(slots=True, frozen=True)
class ChosenPeers:
    """The peers of a new stream, and the one of them that is to lead first."""

    peers: tuple[str, ...]
    leader: str
    """The online peer that should campaign first."""


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
    """Chooses `replicas` distinct peers for stream `name`; `beside` hold replicas of it already, and keep them. Each
    must have room for `claim` bytes.

    `wish` is the configuration's `placement` (`cluster`, `tags`; a tag with a leading `!` must be absent). Offline
    nodes are taken only to fill up, and only if a majority of the group is online: it could not elect a leader
    otherwise. Those that are not well are taken after the others. Raises ApiError 10005.
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
        ranked = _apart(ranked, unique, beside)
    chosen = ranked[:replicas]
    if len(chosen) < replicas or sum(c.online for c in chosen) < replicas // 2 + 1:
        raise _no_peers(*reasons, "server tag not unique")
    leader = min((c for c in chosen if c.online), key=lambda c: (not c.well, c.leaders, _spread(name, c.peer)))
    return ChosenPeers(tuple(c.peer for c in chosen), leader.peer)


def _apart(ranked: Sequence[Candidate], prefix: str, beside: Sequence[Candidate]) -> list[Candidate]:
    """The first of each tag that begins with `prefix`, and that is none of those `beside`."""
    taken = {_first_tag(candidate, prefix) for candidate in beside} | {""}
    found = []
    for candidate in ranked:
        tag = _first_tag(candidate, prefix)
        if tag not in taken:
            taken.add(tag)
            found.append(candidate)
    return found


def _first_tag(candidate: Candidate, prefix: str) -> str:
    return next((tag.lower() for tag in candidate.tags if tag.lower().startswith(prefix)), "")


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
