"""Raft's own rules, held against every frame that one server writes to another, at that moment. A rule that is broken
here may do no harm in a run, where it takes a second accident to lose something: what `vows.py` and the judges see is
the harm.

What servers say is overheard; what they say it of is read in the memory of the one who speaks.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from jetcluster.raft.api import Role
from jetcluster.raft.codec import ACK, APPEND, LEASE_REQUEST, REJECT, VOTE, VOTE_REPLY
from testkit.sim import leases
from testkit.sim.rafts import quorum, raft_of

if TYPE_CHECKING:
    from testkit.sim.deployment import Deployment

_KIND = 1
_VOTE_REPLY = struct.Struct("<BBQB")
_ACK = struct.Struct("<BBQQIBI")
_APPEND = struct.Struct("<BBQQQQII")
_TERMS = 4
"""Newest terms of a group of which acknowledgements are known."""
KNOWN = 1_000
"""Newest commits of a group whose times are known."""
CLOCKS = 1.5
"""Factor by which a server may think that time passes faster than true time, slow processors counted in."""
NEAR = 3
"""Times `promote_seconds` for which a learner counts as caught up: within one it had what its leader had (`caught_up`),
and it may be promoted within two more (`is_near`), as others of a move may have to catch up first."""
Key = tuple[str, int]
"""(cluster, group)"""
SPOKEN = frozenset((APPEND, ACK, REJECT, VOTE, VOTE_REPLY, LEASE_REQUEST))


class Protocol:
    """`heard` gets each Raft frame; what is against a rule goes to `broken(machine, group, what)`."""

    def __init__(self, deployment: Deployment, broken: Callable[[Key, str], None]) -> None:
        self.frames = 0
        """Counts those that were looked at."""
        self._deployment = deployment
        self._broken = broken
        self._votes: dict[tuple[str, int, int], dict[str, set[str]]] = {}
        """(cluster, group, term) -> candidate -> who voted for it."""
        self._acks: dict[Key, dict[int, dict[str, int]]] = {}
        """Term -> voter -> the most that it has acknowledged."""
        self._committed: dict[Key, int] = {}
        """The highest index that some leader sent and might."""
        self._history: dict[Key, deque[tuple[float, int]]] = {}
        """When it was sent first, ascending; the newest ones."""
        self._heads: dict[Key, int] = {}
        """The newest term whose leader was looked at."""
        self._lasts: dict[Key, deque[tuple[float, int]]] = {}
        """The ends of leaders' logs, each with its time."""
        self._promoted: dict[Key, int] = {}
        """The index of the newest promotion that was looked at."""

    def heard(self, name: str, target: str, gid: int, frame: memoryview) -> None:
        """Looks at a frame from server `name` to server `target`."""
        kind = frame[_KIND]
        if kind not in SPOKEN:
            return
        machine = self._deployment.machines[name]
        raft = raft_of(machine)
        if raft is None:
            return
        group = raft.groups.get(gid)
        key = (self._deployment.servers[name].cluster or name), gid
        if group is None or group.stopped:
            if kind == ACK:
                self._count(key, raft.me, frame)  # said before its group went, as of a stream that is deleted
            return
        self.frames += 1
        if kind == APPEND:
            self._append(key, name, group, frame)
        elif kind == ACK:
            self._ack(key, name, group, frame)
        elif kind == VOTE_REPLY:
            self._vote(key, name, target, group, frame)
        elif kind == VOTE:
            self._asks(key, name, group)
        if kind in (VOTE, VOTE_REPLY, LEASE_REQUEST):
            self._leases(key, name, frame)
        if kind in (ACK, REJECT):
            self._keeps(key, name, group)
            commit, last = group.engine.commit, group.log.last_index
            self._rule(name, key, commit <= last, f"takes {commit} for committed, and has {last} entries")

    def committed(self, key: Key, at: float) -> int:
        """The index that a leader had told by then as committed; 0 where nothing is known of that time."""
        history = self._history.get(key, ())
        place = bisect_left(history, (at, 0))
        return history[place - 1][1] if place else 0

    # ---- votes

    def _vote(self, key: Key, name: str, target: str, group: Any, frame: memoryview) -> None:
        _, _, term, granted = _VOTE_REPLY.unpack_from(frame)
        raft = raft_of(self._deployment.machines[target])
        log = group.log
        if not granted or raft is None or log.term != term:
            return
        asking = raft.groups.get(key[1])
        knows = not log.damaged or (asking is not None and _has_all(asking))
        self._rule(name, key, knows, f"votes in term {term}, and its journal is damaged")
        stored = log.term_gseq <= log.durable_gseq
        self._rule(name, key, stored, f"votes in term {term} before its disk knows of it")
        self._votes.setdefault((*key, term), {}).setdefault(raft.me, set()).add(group.me)

    def _asks(self, key: Key, name: str, group: Any) -> None:
        """A candidate counts votes of its term only. One of before, which counts once more, makes a leader of somebody
        whom too few want; and where it is not counted twice, the same server's new vote does not count at all."""
        engine = group.engine
        if engine.role is Role.CANDIDATE and engine.term > self._heads.get(key, -1):
            given = self._votes.get((*key, engine.term), {}).get(group.me, set())
            counted = sorted(attrgetter("_votes")(engine) - given)
            self._rule(name, key, not counted, f"counts the votes of {counted} in term {engine.term}, of before")

    def _leases(self, key: Key, name: str, frame: memoryview) -> None:
        """By which a leader reads, whenever it asks for another one, and whenever votes are asked for or given."""
        found = leases.members(self._deployment, *key)
        for what in leases.unkept(found):
            self._broken((name, key[1]), what)
        if frame[_KIND] == VOTE_REPLY:
            _, _, term, granted = _VOTE_REPLY.unpack_from(frame)
            voter = next((member for member in found.values() if member.name == name), None)
            if granted and voter is not None:
                kept = not leases.broken(voter, term)
                self._rule(name, key, kept, f"votes in term {term}, and has promised to elect nobody else")

    def _elected(self, key: Key, name: str, group: Any, term: int) -> None:
        """Once for each term: its leader has the votes of a majority, its own among them."""
        if self._heads.get(key, -1) >= term:
            return
        self._heads[key] = term
        self._lasts.pop(key, None)
        votes = self._votes.get((*key, term), {}).get(group.me, set()) | {group.me}
        for old in [one for one in self._votes if one[:2] == key and one[2] <= term]:
            del self._votes[old]
        enough = any(quorum(config, votes) for config in _configs(group))
        self._rule(name, key, enough, f"leads term {term} with the votes of {len(votes)} of {_configs(group)[0]}")
        heard = min(group.receiver.committed, group.log.last_index)
        what = f"leads term {term} and takes {group.told_index} for told, having heard that {heard} is committed"
        self._rule(name, key, group.told_index >= heard, what)

    # ---- entries

    def _ack(self, key: Key, name: str, group: Any, frame: memoryview) -> None:
        _, _, term, match, _, recovering, _ = _ACK.unpack_from(frame)
        log = group.log
        if term == log.term and match == log.last_index and not (log.damaged or recovering):
            stored = log.entry_gseq <= log.durable_gseq
            self._rule(name, key, stored, f"acknowledges {match} in term {term} before all of it is on its disk")
        self._count(key, group.me, frame)

    def _count(self, key: Key, peer: str, frame: memoryview) -> None:
        _, _, term, match, _, recovering, _ = _ACK.unpack_from(frame)
        if recovering:
            return
        terms = self._acks.setdefault(key, {})
        if term not in terms:
            terms[term] = {}
            for old in sorted(terms)[:-_TERMS]:
                del terms[old]
        acks = terms.get(term)
        if acks is not None:
            acks[peer] = max(acks.get(peer, 0), match)

    def _keeps(self, key: Key, name: str, group: Any) -> None:
        """A follower has what it has acknowledged to a leader until there is another one."""
        log = group.log
        if log.durable and not (log.relaxed or log.damaged):
            told = self._acks.get(key, {}).get(log.term, {}).get(group.me, 0)
            if log.last_index < told and self._deployment.vows.may_lack_its_end(self._deployment.machines[name]):
                return
            what = f"has {log.last_index} entries in term {log.term}, and acknowledged {told}"
            self._rule(name, key, log.last_index >= told, what)

    def _append(self, key: Key, name: str, group: Any, frame: memoryview) -> None:
        _, _, term, _, _, commit, _, _ = _APPEND.unpack_from(frame)
        if group.engine.role is not Role.LEADER or group.engine.term != term:
            return  # it has stepped down since
        first = self._heads.get(key, -1) < term
        self._elected(key, name, group, term)
        if first and group.log.last_index < self._committed.get(key, 0):
            self._history.pop(key, None)  # it had the only copy, and has lost some of it
        if commit > self._committed.get(key, 0):
            if not first:
                self._commits(key, name, group, term, commit)
            self._committed[key] = commit
            self._history.setdefault(key, deque(maxlen=KNOWN)).append((self._deployment.scheduler.now, commit))
        self._counts(key, name, group, term)
        self._stood(key, group)
        self._changes(key, name, group, term)

    def _counts(self, key: Key, name: str, group: Any, term: int) -> None:
        """A leader takes for stored what voters have acknowledged to it, in its own term. What it counts beyond that
        may do harm only once it is cut off, or another one leads."""
        acks = self._said(key, term)
        if acks is None:
            return
        for peer, match in group.engine.matches.items():
            told = acks.get(peer, 0)
            self._rule(name, key, match <= told, f"counts {match} for {peer} in term {term}, which acknowledged {told}")

    def _commits(self, key: Key, name: str, group: Any, term: int, commit: int) -> None:
        log = group.log
        of = log.term_at(commit)
        self._rule(name, key, of is None or of == term, f"commits {commit}, of term {of}, by itself in term {term}")
        acks = self._said(key, term)
        if acks is None:
            return
        stored = {peer for peer, match in acks.items() if match >= commit}
        if log.written_index >= commit:
            stored.add(group.me)
        enough = any(quorum(config, stored) for config in _configs(group))
        self._rule(name, key, enough, f"commits {commit} in term {term}, which {len(stored)} voters have")

    def _changes(self, key: Key, name: str, group: Any, term: int) -> None:
        """Changes of members: one at a time, by a leader that has committed something of its own, of voters that have
        what the group has."""
        log, commit = group.log, group.engine.commit
        index, config = log.configs[-1]
        if index <= commit or len(log.configs) < 2:
            return
        before, old = log.configs[-2]
        if log.term_at(index) != term:
            return  # by a leader of before, who may have known of more that is committed
        self._rule(name, key, before <= commit, f"changes members at {before} and {index}, and {commit} is committed")
        ready = log.term_at(commit) == term
        self._rule(name, key, ready, f"changes members at {index} before anything of its term {term} is committed")
        joint = config.outgoing == old.voters or set(config.voters) == set(old.voters)
        left = not old.outgoing or (config.voters == old.voters and not config.outgoing)
        self._rule(name, key, joint and left, f"changes members at {index} from {old} to {config}")
        if self._promoted.get(key, 0) >= index:
            return
        self._promoted[key] = index
        said = self._said(key, term)
        if said is None:
            return
        for peer in sorted(set(config.voters) - set(old.voters)):
            what = f"makes {peer} a voter at {index}, which has not acknowledged anything that counts in term {term}"
            self._rule(name, key, peer in said, what)
            match = said.get(peer, 0)
            near = match >= min(index - 1 - group.config.promote_lag, self._lasts[key][0][1])
            self._rule(name, key, near, f"makes {peer} a voter at {index}, which has {match}")

    def _said(self, key: Key, term: int) -> dict[str, int] | None:
        """The acks of voters in a term; None where that is forgotten, as of a leader that stood still while
        others were elected."""
        terms = self._acks.get(key, {})
        return None if len(terms) == _TERMS and term < min(terms) else terms.get(term, {})

    def _stood(self, key: Key, group: Any) -> None:
        """The log's end a little more than NEAR `promote_seconds` ago is the first one of `_lasts`, or newer."""
        now, last = self._deployment.scheduler.now, group.log.last_index
        lasts = self._lasts.setdefault(key, deque())
        if not lasts or lasts[-1][1] != last:
            lasts.append((now, last))
        while len(lasts) > 1 and lasts[1][0] < now - CLOCKS * NEAR * group.config.promote_seconds:
            lasts.popleft()

    def _rule(self, name: str, key: Key, kept: bool, what: str) -> None:
        if not kept:
            self._broken((name, key[1]), what)


def _configs(group: Any) -> list[Any]:
    """The newest two: by which of them something was decided shows only there."""
    return [config for _, config in group.log.configs[:-3:-1]]


def _has_all(group: Any) -> bool:
    """Nothing can have been decided without this member, by any configuration that is in force by its log."""
    log, commit = group.log, group.engine.commit
    last = max((at for at, _ in log.configs if at <= commit), default=0)
    in_force = [config for at, config in log.configs if at >= last]
    others = [set(config.voters) - {group.me} for config in in_force]
    return not log.damaged and not any(2 * len(o) > len(c.voters) for o, c in zip(others, in_force, strict=True))
