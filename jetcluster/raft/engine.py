"""pysyncobj 0.3.17 with its dangerous parts closed off: the only file that knows the package's private names.

What stays pysyncobj's: the role and term machine, granting and counting votes, accepting a batch of entries
(truncate, append, commit index), match indexes, the commit rule, check-quorum, the no-op of a new leader, TimeoutNow.
What never reaches it, because 0.3.17 gets it wrong (docs/reference/pysyncobj.md): unverified or overlapping
batches (D1-D3, D18), its chunked big entries (D6), stale terms (D7, D8), repeated or foreign votes (D9, D21), its own
membership changes (D5, D13), pickle (D14), its apply loop and queue (D15, D19, D20), its snapshots (D16), its timers.

The base is fed dictionaries, as its own transport would; `group.py` does everything around it. It counts a leader's
own vote before anything is on disk (D12): `__getEntries(i, 1)` is the commit rule's look at entry `i`, and here it
sees nothing beyond `commit_gate`, the index that a majority *including this node's own disk* has stored.
"""

from __future__ import annotations

import hashlib
import sys
import types
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jetcluster.clock import Clock, SystemClock
from jetcluster.raft.api import Role
from jetcluster.raft.codec import NOOP, Entry
from jetcluster.raft.grouplog import GroupLog


def _without_encryptor() -> None:
    """pysyncobj.encryptor loads `cryptography` (25 ms of every start) for a transport that is not used here."""
    if "pysyncobj.encryptor" not in sys.modules:
        stub = types.ModuleType("pysyncobj.encryptor")
        stub.HAS_CRYPTO = False  # type: ignore[attr-defined]
        stub.getEncryptor = None  # type: ignore[attr-defined]
        sys.modules["pysyncobj.encryptor"] = stub


_without_encryptor()

from pysyncobj import syncobj  # noqa: E402
from pysyncobj.config import SyncObjConf  # noqa: E402
from pysyncobj.journal import Journal as BaseJournal  # noqa: E402
from pysyncobj.node import Node  # noqa: E402
from pysyncobj.transport import Transport as BaseTransport  # noqa: E402

REVIEWED_SHA256 = "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4"
"""Of pysyncobj/syncobj.py 0.3.17. Everything below leans on its private members: another text needs another review."""


def check_source(path: Path, expected: str = REVIEWED_SHA256) -> None:
    """Raises ImportError unless the file is the reviewed one."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != expected:
        raise ImportError(
            f"{path} is not the pysyncobj 0.3.17 that jetcluster.raft was reviewed against "
            f"(sha256 {digest}, expected {expected}): install pysyncobj==0.3.17"
        )


check_source(Path(syncobj.__file__))


class _BaseClock:
    """pysyncobj reads a module-global clock; every entry into the base points it at the group's own."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()

    def __call__(self) -> float:
        return self.clock.monotonic()


_base_clock = _BaseClock()
_base_create_journal = syncobj.createJournal
syncobj.monotonicTime = _base_clock
syncobj.createJournal = lambda file=None: file if isinstance(file, BaseJournal) else _base_create_journal(file)

NEVER = 1e18
"""An election deadline that does not come."""


class Peer(Node):  # type: ignore[misc]
    """A pysyncobj node with a hash that does not depend on PYTHONHASHSEED: the base iterates sets of nodes."""

    def __init__(self, peer: str) -> None:
        super().__init__(peer)
        self._hash = zlib.crc32(peer.encode())

    def __hash__(self) -> int:
        return self._hash


class Outbox:
    """The messages that the base wants to send, as calls. `Group` implements it."""

    def send_vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None:
        raise NotImplementedError

    def send_vote(self, peer: str, term: int) -> None:
        raise NotImplementedError

    def send_ack(self, peer: str, index: int) -> None:
        raise NotImplementedError


class _Wire(BaseTransport):  # type: ignore[misc]
    """Receives the base's outgoing dictionaries."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(None, None, [])
        self._outbox = outbox

    def send(self, node: Peer, message: dict[str, Any]) -> bool:
        kind = message["type"]
        if kind == "request_vote":
            self._outbox.send_vote_request(
                node.id, message["term"], message["last_log_index"], message["last_log_term"]
            )
        elif kind == "response_vote":
            self._outbox.send_vote(node.id, message["term"])
        else:
            raise AssertionError(f"the base sends {kind}: a path that should be closed")
        return True


class _LogAdapter(BaseJournal):  # type: ignore[misc]
    """A `GroupLog` as the base wants to see it: positions count from its snapshot point, `[0]`."""

    def __init__(self, log: GroupLog) -> None:
        self._log = log

    def __len__(self) -> int:
        return self._log.last_index - self._log.base_index + 1

    def __getitem__(self, position: int) -> Entry:
        log = self._log
        if position == -1:
            return b"", log.last_index, log.last_term, 0
        assert position == 0, "the base reads the ends of the log only"
        return b"", log.base_index, log.base_term, 0

    def add(self, command: bytes, index: int, term: int, kind: int = NOOP) -> None:
        """Three arguments: the base's own entry, which can only be the no-op of a new leader."""
        assert index == self._log.last_index + 1, f"entry {index} after {self._log.last_index}"
        self._log.append(kind, term, b"" if kind == NOOP else command)

    def deleteEntriesFrom(self, position: int) -> None:
        self._log.truncate(self._log.base_index + position)

    def setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        self._log.set_term(term, voted_for)

    def getCurrentTerm(self) -> int:
        return self._log.term

    def getVotedForNodeId(self) -> str | None:
        return self._log.voted_for

    def setRaftCommitIndex(self, index: int) -> None:
        pass  # recorded lazily, as a hint that is checked against the log at start (D4)

    def getRaftCommitIndex(self) -> int:
        return self._log.base_index

    def clear(self) -> None:
        raise AssertionError("the base never clears the log (D16)")

    def deleteEntriesTo(self, position: int) -> None:
        raise AssertionError("the base never compacts the log (D16)")

    def _destroy(self) -> None:
        pass


class _NoPoller:
    def poll(self, timeout: float) -> None:
        pass


class Engine(syncobj.SyncObj):  # type: ignore[misc]
    """One group's consensus core. `commit_gate` is set by the owner before `tick`."""

    def __init__(
        self, me: str, others: Iterable[str], log: GroupLog, clock: Clock, outbox: Outbox, quorum_timeout: float
    ) -> None:
        self._log = log
        self._outbox = outbox
        self._clock = clock
        self._peers: dict[str, Peer] = {}
        self._votes: set[str] = set()
        self.commit_gate = 0
        _base_clock.clock = clock
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,
            dynamicMembershipChange=False,
            commandsWaitLeader=False,
            commandsQueueSize=1,
            journalFile=_LogAdapter(log),
            leaderFallbackTimeout=quorum_timeout,
            appendEntriesPeriod=0.05,
            logCompactionMinEntries=sys.maxsize,
            logCompactionMinTime=sys.maxsize,
            useFork=False,
        )
        super().__init__(Peer(me), [self._peer(p) for p in others], conf, transport=_Wire(outbox))
        self._poller = _NoPoller()
        self._SyncObj__needLoadDumpFile = False
        self._SyncObj__onReadyCalled = True
        self._SyncObj__raftElectionDeadline = NEVER
        self._SyncObj__startTime = NEVER  # its one-second timer is for its own journal files
        # The base asks "am I connected to anyone?" before it campaigns; PreVote has answered that already.
        self._SyncObj__connectedNodes.add(Peer(me))

    def _peer(self, peer: str) -> Peer:
        node = self._peers.get(peer)
        if node is None:
            node = self._peers[peer] = Peer(peer)
        return node

    # -- state

    def role(self) -> Role:
        return Role(self._SyncObj__raftState)

    def leads(self) -> bool:
        return bool(self._SyncObj__raftState == Role.LEADER)

    def term(self) -> int:
        return int(self._SyncObj__raftCurrentTerm)

    def leader(self) -> str | None:
        node = self._SyncObj__raftLeader
        return None if node is None else str(node.id)

    def forget_leader(self) -> None:
        self._SyncObj__raftLeader = None

    def commit_index(self) -> int:
        return int(self._SyncObj__raftCommitIndex)

    def noop_index(self) -> int:
        """The index of the no-op of this node's newest leadership."""
        return self._SyncObj__noopIDx or 0

    def match_index(self, peer: str) -> int:
        """The leader's knowledge of what `peer` has durably."""
        return int(self._SyncObj__raftMatchIndex.get(self._peer(peer), 0))

    def transferring(self) -> bool:
        """This follower was told by its leader to campaign now."""
        return bool(self._SyncObj__transferInProgress)

    def restore(self, applied: int, commit: int) -> None:
        """At start, and after an installed snapshot: what is known to be committed and applied."""
        self._SyncObj__raftLastApplied = applied
        self._SyncObj__raftCommitIndex = max(applied, min(commit, self._log.last_index))

    def set_applied(self, index: int) -> None:
        self._SyncObj__raftLastApplied = index

    def set_voters(self, others: Iterable[str]) -> None:
        """The other voters of the configuration in force."""
        nodes = {self._peer(p) for p in others}
        current = self._SyncObj__otherNodes
        now = self._clock.monotonic()
        for node in nodes - current:
            current.add(node)
            self._SyncObj__raftMatchIndex.setdefault(node, 0)
            self._SyncObj__raftNextIndex[node] = self._log.last_index + 1
            self._SyncObj__lastResponseTime[node] = now
        for node in current - nodes:
            current.discard(node)
            self._votes.discard(node.id)

    # -- input

    def step_down(self, term: int) -> None:
        """A message of a higher term (D7, D8)."""
        assert term > self.term()
        _base_clock.clock = self._clock
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(Role.FOLLOWER)
        self._SyncObj__raftLeader = None

    def promise(self, term: int, candidate: str) -> None:
        """The vote of a term that nobody has asked for (`rescue.py`)."""
        assert term > self.term()
        _base_clock.clock = self._clock
        self._SyncObj__setCurrentTerm(term, candidate)
        self._SyncObj__setState(Role.FOLLOWER)
        self._SyncObj__raftLeader = None

    def abdicate(self) -> None:
        """Stops leading (or campaigning) without a reason from outside."""
        self._SyncObj__setState(Role.FOLLOWER)
        self._SyncObj__raftLeader = None

    def campaign(self) -> None:
        """Becomes candidate of the next term now (PreVote is the caller's)."""
        self._votes.clear()
        self._SyncObj__raftElectionDeadline = -1.0
        self.tick()
        self._SyncObj__raftElectionDeadline = NEVER

    def tick(self) -> None:
        """The base's turn: elections that are due, the commit rule, check-quorum."""
        _base_clock.clock = self._clock
        self._onTick(0.0)

    def heard(self, peer: str, when: float) -> None:
        """Check-quorum: `peer` was alive at `when`."""
        self._SyncObj__lastResponseTime[self._peer(peer)] = when

    def receive_vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None:
        self._feed(
            peer,
            {"type": "request_vote", "term": term, "last_log_index": last_index, "last_log_term": last_term},
        )

    def receive_vote(self, peer: str, term: int) -> None:
        """Each member's vote counts once (D9)."""
        if self._SyncObj__raftState != Role.CANDIDATE or term != self.term() or peer in self._votes:
            return
        if self._peer(peer) not in self._SyncObj__otherNodes:
            return
        self._votes.add(peer)
        self._feed(peer, {"type": "response_vote", "term": term})

    def receive_append(
        self, peer: str, term: int, commit: int, prev_index: int, prev_term: int, entries: list[Entry]
    ) -> None:
        """A batch that was checked by `append.plan`: `prev` matches and the first entry is new here."""
        self._adopt(peer, term)
        self._feed(
            peer,
            {
                "type": "append_entries",
                "term": term,
                "commit_index": commit,
                "prevLogIdx": prev_index,
                "prevLogTerm": prev_term,
                "entries": entries,
            },
        )

    def receive_leader(self, peer: str, term: int, commit: int) -> None:
        """`peer` leads `term`; `commit` is committed and verified to be in this log."""
        assert commit <= self._log.last_index
        self._adopt(peer, term)
        self._feed(peer, {"type": "append_entries", "term": term, "commit_index": commit, "entries": []})

    def _adopt(self, leader: str, term: int) -> None:
        """Following the leader of a new term is as good as having voted for it; said so on disk, a replica that was
        removed and added again can not vote a second time in a term of its earlier life."""
        if term > self.term():
            _base_clock.clock = self._clock
            self._SyncObj__setCurrentTerm(term, leader)

    def receive_match(self, peer: str, index: int) -> None:
        """`peer` has this term's log durably up to `index`."""
        node = self._peer(peer)
        if node in self._SyncObj__otherNodes and index <= self._log.last_index:
            self._feed(
                peer,
                {"type": "next_node_idx", "next_node_idx": index + 1, "reset": False, "success": True},
            )

    def forget_match(self, peer: str) -> None:
        """Forgets what `peer` acknowledged: it is no longer on its disk (see `rejoin.py`)."""
        self._SyncObj__raftMatchIndex[self._peer(peer)] = 0

    def receive_timeout_now(self, peer: str, term: int) -> None:
        self._feed(peer, {"type": "timeout_now", "term": term})
        self._SyncObj__raftElectionDeadline = NEVER

    def _feed(self, peer: str, message: dict[str, Any]) -> None:
        _base_clock.clock = self._clock
        self._SyncObj__onMessageReceived(self._peer(peer), message)

    # -- what the base calls

    def _SyncObj__generateRaftTimeout(self) -> float:
        return NEVER  # deadlines are `Group`'s: one heap per node

    def _SyncObj__getEntries(
        self, first: int | None, count: int | None = None, max_bytes: int | None = None
    ) -> list[tuple[bytes, int, int]]:
        log = self._log
        if first is None:
            return []
        if count == 1 and first > self.commit_gate:
            return []  # the commit rule: not on enough disks
        term = log.term_at(first)
        if term is None:
            return []
        if count is None and first < log.last_index:
            # Only "is there more?" is asked of the second one.
            return [(b"", first, term), (b"", first + 1, log.term_at(first + 1) or 0)]
        return [(b"", first, term)]

    def _SyncObj__getCurrentLogIndex(self) -> int:
        return self._log.last_index

    def _SyncObj__getCurrentLogTerm(self) -> int:
        return self._log.last_term

    def _SyncObj__onBecomeLeader(self) -> None:
        self._SyncObj__raftMatchIndex.clear()
        self._SyncObj__raftNextIndex.clear()
        super()._SyncObj__onBecomeLeader()

    def _SyncObj__sendNextNodeIdx(
        self, node: Peer, reset: bool = False, nextNodeIdx: int | None = None, success: bool = False
    ) -> None:
        assert success and nextNodeIdx is not None, "a batch was not verified before it reached the base"
        self._outbox.send_ack(node.id, nextNodeIdx - 1)

    def _SyncObj__sendAppendEntries(self) -> None:
        pass  # flow.py decides who gets what

    def _SyncObj__applyLogEntries(self) -> bool:
        return False  # group.py applies, in slices, and never twice (D15)

    def _checkCommandsToApply(self) -> None:
        pass  # `propose` appends; nothing is queued or forwarded (D19, D20)

    def _SyncObj__tryLogCompaction(self) -> None:
        pass  # the journal compacts, snapshots go around the log (D16)

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        raise AssertionError("the base applies nothing (D14, D15)")

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> None:
        return None  # configurations are whole values in the log (D5, D13, D14)

    def _applyCommand(self, command: bytes, callback: Any, commandType: Any = None) -> None:
        raise AssertionError("use Group.propose")
