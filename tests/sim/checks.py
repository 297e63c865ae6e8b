"""Invariants that hold at every moment of a simulated run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetcluster.raft import codec
from jetcluster.raft.journal.log import GroupLog, JournalDamageError

if TYPE_CHECKING:
    from tests.sim.simulation import SimNode, Simulation


class Violation(Exception):
    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Checks:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.leaders: dict[tuple[int, int], str] = {}
        """(gid, term) -> leader."""
        self.votes: dict[tuple[int, int, str], str] = {}
        """(gid, term, voter) -> candidate."""
        self.committed: dict[int, dict[int, tuple[int, bytes]]] = {}
        """gid -> index -> (term, command), as first applied anywhere."""
        self.commit_term: dict[tuple[int, int], int] = {}
        """(gid, index) -> term of the leader that was first seen to commit it."""
        self.commit_seen: dict[tuple[int, str, int], int] = {}
        """(gid, leader, term) -> commit index checked so far."""
        self.last_applied: dict[tuple[str, int, int], int] = {}
        self.claimed: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """(node, gid) -> (index, term) that it claimed durable when it crashed."""

        self.taken_away: dict[tuple[str, int], int] = {}
        """(node, gid) -> log end that was durable when the replica was deleted."""

    # -- called on events

    def applied(self, node: SimNode, gid: int, index: int, term: int, command: bytes) -> None:
        group = self.committed.setdefault(gid, {})
        known = group.setdefault(index, (term, command))
        if known != (term, command):
            raise Violation(
                "state-machine-safety",
                f"{node.name} applies {gid}/{index} as {term} {command!r}, others {known[0]} {known[1]!r}",
            )
        key = (node.name, gid, node.life)
        previous = self.last_applied.get(key)
        if previous is not None and index <= previous:
            raise Violation("apply-order", f"{node.name} applies {gid}/{index} after {previous}")
        self.last_applied[key] = index

    def installed(self, node: SimNode, gid: int, index: int) -> None:
        self.last_applied[(node.name, gid, node.life)] = index

    def voted(self, gid: int, term: int, voter: str, candidate: str) -> None:
        known = self.votes.setdefault((gid, term, voter), candidate)
        if known != candidate:
            raise Violation("double-vote", f"{voter} votes for {known} and {candidate} in {gid}/{term}")

    def frame(self, source: SimNode, target: str, gid: int, frame: bytes) -> None:
        """Everything that is sent."""
        if gid and frame[1] == codec.VOTE_REPLY:
            message = codec.decode(frame)
            assert isinstance(message, codec.VoteReply)
            if message.granted:
                self.voted(gid, message.term, source.name, target)
                log = source.journal.groups[gid]
                if log.durable_gseq < log.term_gseq:
                    raise Violation("vote-on-credit", f"{source.name} votes in {gid}/{message.term} before its fsync")

    def after_event(self, node: SimNode) -> None:
        if node.dead:
            return
        for gid, group in node.raft.groups.items():
            if group.stopped:
                raise Violation("stopped", f"{node.name} {gid}: {group.stopped}")
            if not group.engine.leading:
                continue
            term = group.engine.term
            known = self.leaders.get((gid, term))
            if known is None:
                self.leaders[(gid, term)] = node.name
                self.sim.stats["elections"] += 1
                self.commit_seen[(gid, node.name, term)] = group.engine.commit
                self._completeness(node, gid, term)
            elif known != node.name:
                raise Violation("election-safety", f"{known} and {node.name} lead {gid}/{term}")
            self._commit_soundness(node, gid, term)
            commit = group.engine.commit
            log = node.journal.groups[gid]
            own = [i for i, _ in log.configs[1:] if i > commit and log.term_at(i) == term]
            if len(own) > 1:
                raise Violation("one-change", f"{node.name} has several changes of {gid} under way")
            if own and len(log.configs) > 1:
                (_, old), (_, new) = log.configs[-2:]
                if set(new.voters) != set(old.voters) and (new.outgoing != old.voters or old.outgoing):
                    raise Violation("joint-change", f"{node.name} changes the voters of {gid} from {old} to {new}")

    def _completeness(self, node: SimNode, gid: int, term: int) -> None:
        log = node.journal.groups[gid]
        for index, (entry_term, _) in self.committed.get(gid, {}).items():
            if self.commit_term.get((gid, index), term) >= term or index < log.base_index:
                continue
            if log.term_at(index) != entry_term:
                raise Violation(
                    "leader-completeness",
                    f"{node.name} leads {gid}/{term} without committed {index} (term {entry_term}, "
                    f"log {log.base_index}..{log.last_index})",
                )

    def _commit_soundness(self, node: SimNode, gid: int, term: int) -> None:
        group = node.raft.groups[gid]
        commit = group.engine.commit
        key = (gid, node.name, term)
        seen = self.commit_seen.get(key, 0)
        if commit <= seen:
            return
        self.commit_seen[key] = commit
        for index in range(seen + 1, commit + 1):
            self.commit_term.setdefault((gid, index), term)
        log = node.journal.groups[gid]
        entry_term = log.term_at(commit)
        if entry_term is None or commit <= log.base_index:
            return
        # The newest configuration decides, committed or not; one may have been appended in this very event.
        for _, config in log.configs[-2:]:
            voters = config.electorate
            holders = [p for p in voters if self._holds(self.sim.nodes[p], gid, commit, entry_term)]
            if all(2 * len({*part} & {*holders}) > len(part) for part in (config.voters, config.outgoing) if part):
                break
        else:
            raise Violation(
                "commit-soundness",
                f"{node.name} commits {gid}/{commit} (term {entry_term}); on disk at {holders} of {voters}",
            )

    def _holds(self, node: SimNode, gid: int, index: int, term: int) -> bool:
        log = node.journal.groups.get(gid)
        if log is None:
            # An ack may be heard after its sender was removed and its log deleted; it was true when it left.
            return index <= self.taken_away.get((node.name, gid), 0)
        if index <= log.base_index or log.damaged:
            return True  # a damaged disk held it when it was acknowledged; what matters is what is lost in the end
        return index <= log.written_index and log.term_at(index) == term

    def crashed(self, node: SimNode) -> None:
        """Remembers what the node vouched for."""
        for gid, log in node.journal.groups.items():
            last = log.written_index
            self.claimed[(node.name, gid)] = [
                (i, log.term_at(i) or 0) for i in range(max(log.base_index, last - 20, 1), last + 1)
            ]

    def restarted(self, node: SimNode) -> None:
        """Everything that was vouched for is still there, unless the journal says itself that it is damaged."""
        for gid, log in node.journal.groups.items():
            for index, term in self.claimed.get((node.name, gid), ()):
                if index <= log.base_index:
                    continue
                if log.term_at(index) != term and not log.damaged:
                    raise Violation("durability", f"{node.name} vouched for {gid}/{index} (term {term}) and lost it")

    # -- periodic

    def log_matching(self) -> None:
        gids = {gid for node in self.sim.nodes.values() for gid in node.journal.groups}
        for gid in gids:
            logs = [n.journal.groups[gid] for n in self.sim.nodes.values() if gid in n.journal.groups]
            for i, one in enumerate(logs):
                for other in logs[:i]:
                    _match(gid, one, other)

    # -- at the end

    def final(self) -> None:
        for gid, acked in self.sim.acks.items():
            committed = self.committed.get(gid, {})
            for index, command in acked.items():
                if committed.get(index, (0, b""))[1] != command:
                    raise Violation("acked-lost", f"{gid}/{index} {command!r} was acked")
            best = self.sim.best_machine(gid)
            if best is None:
                continue
            have = {index: command for index, _, command in best.entries}
            for index, command in acked.items():
                if index <= best.index and have.get(index) != command:
                    raise Violation("acked-lost", f"{gid}/{index} {command!r} is gone after healing")
                if index > best.index and self.sim.healed_leader(gid):
                    raise Violation("acked-lost", f"{gid}/{index}: nobody applied it after healing")


def _match(gid: int, one: GroupLog, other: GroupLog) -> None:
    low = max(one.base_index, other.base_index)
    high = min(one.last_index, other.last_index)
    same = False
    for index in range(high, low - 1, -1):
        if one.term_at(index) == other.term_at(index):
            if not same and index > low:
                try:
                    if one.command(index) != other.command(index):
                        raise Violation("log-matching", f"{gid}/{index} has two commands")
                except JournalDamageError:
                    pass
            same = True
        elif same:
            raise Violation("log-matching", f"{gid}: equal above {index}, different there")
