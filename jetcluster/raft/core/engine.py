"""pysyncobj 0.3.17 ("the base") with its dangerous parts closed off: the only file that knows its private names.

The base keeps: roles and terms, granting votes, following a new leader, replacing entries that conflict, the no-op of a
new leader, TimeoutNow. It counts members one by one and knows no joint configuration, so it is told of votes and of
live voters only when they are a quorum (`membership.py`). It is bypassed where nothing needs a decision: entries of the
current leader at the end of the log (`receive_append`), and an index that a majority has stored (`commit_to`).
These never reach it, because 0.3.17 gets them wrong (docs/reference/pysyncobj.md): unverified or overlapping batches
(D1-D3, D18), its chunked big entries (D6), stale terms (D7, D8), repeated or foreign votes (D9, D21), its own
membership changes (D5, D13), pickle (D14), its apply loop and queue (D15, D19, D20), its snapshots (D16), its timers.

The base receives dictionaries, as from its own transport; `group.py` does everything around it. Its commit rule would
count the leader's own copy before it is on disk, so `__getEntries(i, 1)`, by which it reads entry `i`, returns nothing.
"""

from __future__ import annotations

import hashlib
import os
import sys
import types
import zlib
from pathlib import Path
from typing import Any

from jetcluster.clock import Clock, SystemClock
from jetcluster.raft.api import Role
from jetcluster.raft.codec import NOOP, Entry
from jetcluster.raft.journal.log import GroupLog
from jetcluster.raft.membership import Config


def _without(name: str, **names: object) -> None:
    """Replace a module of pysyncobj that imports much for a part that is not used here."""
    if name not in sys.modules:
        stub = types.ModuleType(name)
        vars(stub).update(names)
        sys.modules[name] = stub


_without("pysyncobj.encryptor", HAS_CRYPTO=False, getEncryptor=None)  # `cryptography`, 25 ms of every start
_without("pysyncobj.atomic_replace", atomicReplace=os.replace)  # these two: ctypes, 5 ms
_without("pysyncobj.win_inet_pton")

from pysyncobj import syncobj  # noqa: E402
from pysyncobj.config import SyncObjConf  # noqa: E402
from pysyncobj.journal import Journal as BaseJournal  # noqa: E402
from pysyncobj.node import Node  # noqa: E402
from pysyncobj.transport import Transport as BaseTransport  # noqa: E402

REVIEWED_SHA256 = "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4"
"""SHA-256 of pysyncobj/syncobj.py 0.3.17. This file relies on its private members: another text needs a new review."""


def check_source(path: Path, expected: str = REVIEWED_SHA256) -> None:
    """Raise ImportError unless the file is the reviewed one."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != expected:
        raise ImportError(
            f"{path} is not the pysyncobj 0.3.17 that jetcluster.raft was reviewed against "
            f"(sha256 {digest}, expected {expected}): install pysyncobj==0.3.17"
        )


check_source(Path(syncobj.__file__))


class _BaseClock:
    """The base's module-global clock; every call into the base points it at the group's own."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()

    def __call__(self) -> float:
        return self.clock.monotonic()


_base_clock = _BaseClock()
_base_create_journal = syncobj.createJournal
syncobj.monotonicTime = _base_clock
syncobj.createJournal = lambda file=None: file if isinstance(file, BaseJournal) else _base_create_journal(file)

NEVER = 1e18
"""An election deadline that never comes."""


class Peer(Node):  # type: ignore[misc]
    """A pysyncobj node with a hash that does not depend on PYTHONHASHSEED, because the base iterates sets of nodes. The
    sets are filled in order: nodes whose hashes collide are iterated in the order of insertion."""

    def __init__(self, peer: str) -> None:
        super().__init__(peer)
        self._hash = zlib.crc32(peer.encode())

    def __hash__(self) -> int:
        return self._hash


class Outbox:
    """The base's outgoing messages, as calls. `Group` implements it."""

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

    def _keep_no_callback(self, *_: object) -> None:
        """`Engine` calls the base itself: ten callbacks per group would only take memory."""

    setOnMessageReceivedCallback = setOnNodeConnectedCallback = setOnNodeDisconnectedCallback = _keep_no_callback
    setOnReadonlyNodeConnectedCallback = setOnReadonlyNodeDisconnectedCallback = _keep_no_callback
    setOnUtilityMessageCallback = _keep_no_callback


class _LogAdapter(BaseJournal):  # type: ignore[misc]
    """A `GroupLog` as the journal that the base expects: position 0 is the log's base."""

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
        """Append an entry. The base's own call has three arguments and can only be the no-op of a new leader."""
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
    """A poller without sockets."""

    def poll(self, timeout: float) -> None:
        pass


class Engine(syncobj.SyncObj):  # type: ignore[misc]
    """One group's consensus core. It alone sets `role`, `term`, `leader`, `leading` and `commit`."""

    _SyncObj__raftCommitIndex: int

    def __init__(
        self, me: str, config: Config, log: GroupLog, clock: Clock, outbox: Outbox, quorum_timeout: float
    ) -> None:
        self._me = me
        self._config = config
        self._log = log
        self._outbox = outbox
        self._clock = clock
        self._peers: dict[str, Peer] = {}
        self._votes: set[str] = set()
        self._heard: dict[str, float] = {}
        """On a leader: when each other voter was last alive."""
        self._quorum_timeout = quorum_timeout
        self._voters = frozenset(config.electorate).difference((me,))
        """The voters other than this node."""
        self.matches: dict[str, int] = {}
        """On a leader: index up to which each other voter has this term's log durably, once it has acked."""
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
        super().__init__(Peer(me), [self._peer(p) for p in sorted(self._voters)], conf, transport=_Wire(outbox))
        self._poller = _NoPoller()
        self._SyncObj__properies: set[str] = set()  # for its snapshots: the names of all attributes, once per group
        self._SyncObj__needLoadDumpFile = False
        self._SyncObj__onReadyCalled = True
        self._SyncObj__raftElectionDeadline = NEVER
        self._SyncObj__startTime = NEVER  # its one-second timer is for its own journal files
        # The base asks "am I connected to anyone?" before it campaigns; PreVote has answered that already.
        self._SyncObj__connectedNodes.add(Peer(me))
        self.role = Role(self._SyncObj__raftState)
        self.leading = False
        self.term = int(self._SyncObj__raftCurrentTerm)
        self.leader: str | None = None
        self.commit = int(self._SyncObj__raftCommitIndex)

    def __dir__(self) -> tuple[str, ...]:
        """The base searches all names of an object for replicated methods, twice per group; there are none here."""
        return ()

    def _peer(self, peer: str) -> Peer:
        node = self._peers.get(peer)
        if node is None:
            node = self._peers[peer] = Peer(peer)
        return node

    # -- state

    def _look(self) -> None:
        """Read the leader and the commit index after a call into the base."""
        node = self._SyncObj__raftLeader
        self.leader = None if node is None else str(node.id)
        self.commit = int(self._SyncObj__raftCommitIndex)

    def forget_leader(self) -> None:
        self._SyncObj__raftLeader = self.leader = None

    def noop_index(self) -> int:
        """Return the index of the no-op of this node's newest leadership."""
        return self._SyncObj__noopIDx or 0

    def transferring(self) -> bool:
        """True after the leader's TimeoutNow."""
        return bool(self._SyncObj__transferInProgress)

    def restore(self, applied: int, commit: int) -> None:
        """Set the applied and the commit index, at start and after an installed snapshot."""
        self._SyncObj__raftLastApplied = applied
        self.commit = max(applied, min(commit, self._log.last_index))
        self._SyncObj__raftCommitIndex = self.commit

    def follow(self, config: Config) -> None:
        """Adopt a new configuration."""
        self._config = config
        self._voters = frozenset(config.electorate).difference((self._me,))
        for peer in self.matches.keys() - self._voters:
            del self.matches[peer]
        nodes = {self._peer(p) for p in sorted(self._voters)}
        current = self._SyncObj__otherNodes
        now = self._clock.monotonic()
        for node in nodes - current:
            current.add(node)
            self._SyncObj__raftMatchIndex.setdefault(node, 0)
            self._SyncObj__raftNextIndex[node] = self._log.last_index + 1
            self._SyncObj__lastResponseTime[node] = now
            self._heard[node.id] = now
        for node in current - nodes:
            current.discard(node)
            self._votes.discard(node.id)

    # -- input

    def step_down(self, term: int) -> None:
        """Become a follower in the higher `term` of a message (D7, D8)."""
        assert term > self.term
        _base_clock.clock = self._clock
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(Role.FOLLOWER)
        self.forget_leader()

    def promise(self, term: int, candidate: str) -> None:
        """Vote for `candidate` in `term` without a request (`rescue.py`)."""
        assert term > self.term
        _base_clock.clock = self._clock
        self._SyncObj__setCurrentTerm(term, candidate)
        self._SyncObj__setState(Role.FOLLOWER)
        self.forget_leader()

    def grant(self, term: int, candidate: str) -> None:
        """Vote for `candidate` without comparing logs: the end of this replica's log is unknown (`Rejoin`)."""
        self.promise(term, candidate)
        self._outbox.send_vote(candidate, term)

    def abdicate(self) -> None:
        """Stop leading or campaigning, in the same term."""
        self._SyncObj__setState(Role.FOLLOWER)
        self.forget_leader()

    def campaign(self) -> None:
        """Become a candidate of the next term now. PreVote is up to the caller."""
        self._votes.clear()
        self._SyncObj__raftElectionDeadline = -1.0
        self.tick()
        self._SyncObj__raftElectionDeadline = NEVER

    def tick(self) -> None:
        """Let the base run: elections that are due, check-quorum."""
        _base_clock.clock = self._clock
        if self.leading:
            self._check_quorum()
        self._onTick(0.0)
        self._look()

    def _check_quorum(self) -> None:
        """Make the base's count of live voters agree with the configuration, which decides what a quorum is."""
        now = self._clock.monotonic()
        deadline = now - self._quorum_timeout
        alive = {peer for peer, when in self._heard.items() if when > deadline}
        alive.add(self._me)
        counted = now if self._config.is_quorum(alive) else deadline - 1.0
        for node in self._SyncObj__otherNodes:
            self._SyncObj__lastResponseTime[node] = counted

    def commit_to(self, index: int) -> bool:
        """Commit `index`, which a quorum has durably; entries of older terms only along with one of this term (Raft
        paper, figure 8). Returns True when the commit index advanced."""
        log = self._log
        term = log.last_term if index == log.last_index else log.term_at(index)
        if index <= self.commit or term != self.term:
            return False
        self.commit = index
        self._SyncObj__raftCommitIndex = index
        return True

    def heard(self, peer: str, when: float) -> None:
        """Note for check-quorum that `peer` was alive at `when`."""
        self._heard[peer] = when

    def receive_vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None:
        self._feed(
            peer,
            {"type": "request_vote", "term": term, "last_log_index": last_index, "last_log_term": last_term},
        )

    def receive_vote(self, peer: str, term: int) -> None:
        """Count each member's vote once (D9), and tell the base of the vote that completes a quorum."""
        if self._SyncObj__raftState != Role.CANDIDATE or term != self.term or peer in self._votes:
            return
        if self._peer(peer) not in self._SyncObj__otherNodes:
            return
        self._votes.add(peer)
        if self._config.is_quorum({self._me, *self._votes}):
            self._SyncObj__votesCount = len(self._SyncObj__otherNodes) + 1
            self._feed(peer, {"type": "response_vote", "term": term})

    def receive_append(
        self, peer: str, term: int, commit: int, prev_index: int, prev_term: int, entries: list[Entry]
    ) -> None:
        """Append a batch that `receiver.plan` has checked: `prev` matches, and the first entry is new here."""
        log = self._log
        if prev_index == log.last_index and peer == self.leader and term == self.term and self.role is Role.FOLLOWER:
            for command, _, entry_term, kind in entries:
                log.append(kind, entry_term, b"" if kind == NOOP else command)
            self._outbox.send_ack(peer, log.last_index)
            commit = min(commit, log.last_index)
            if commit > self.commit:
                self.commit = commit
                self._SyncObj__raftCommitIndex = commit
            return
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
        """Follow `peer` in `term`. `commit` must be verified to be in this log."""
        assert commit <= self._log.last_index
        if peer == self.leader and term == self.term and self.role is Role.FOLLOWER:
            if commit > self.commit:
                self.commit = commit
                self._SyncObj__raftCommitIndex = commit
            return
        self._adopt(peer, term)
        self._feed(peer, {"type": "append_entries", "term": term, "commit_index": commit, "entries": []})

    def _adopt(self, leader: str, term: int) -> None:
        """Record a vote for the leader of a new term: a replica that was removed and added again can then not vote a
        second time in a term of its earlier life."""
        if term > self.term:
            _base_clock.clock = self._clock
            self._SyncObj__setCurrentTerm(term, leader)

    def receive_match(self, peer: str, index: int) -> None:
        """Note that `peer` has this term's log durably up to `index`."""
        if peer in self._voters and self.matches.get(peer, 0) < index <= self._log.last_index:
            self.matches[peer] = index

    def forget_match(self, peer: str) -> None:
        """Forget the acks of `peer`: the entries are no longer on its disk (see `Rejoin`)."""
        self.matches.pop(peer, None)

    def receive_timeout_now(self, peer: str, term: int) -> None:
        self._feed(peer, {"type": "timeout_now", "term": term})
        self._SyncObj__raftElectionDeadline = NEVER

    def _feed(self, peer: str, message: dict[str, Any]) -> None:
        _base_clock.clock = self._clock
        self._SyncObj__onMessageReceived(self._peer(peer), message)
        self._look()

    # -- called by the base

    def _SyncObj__generateRaftTimeout(self) -> float:
        return NEVER  # deadlines are `Group`'s: one heap per node

    def _SyncObj__getEntries(
        self, first: int | None, count: int | None = None, max_bytes: int | None = None
    ) -> list[tuple[bytes, int, int]]:
        log = self._log
        if first is None or count == 1:
            return []  # a count of one is the base's commit rule, which does not wait for disks
        term = log.term_at(first)
        if term is None:
            return []
        if count is None and first < log.last_index:
            # The base uses the second entry only to see that there are more.
            return [(b"", first, term), (b"", first + 1, log.term_at(first + 1) or 0)]
        return [(b"", first, term)]

    def _SyncObj__setState(self, state: int) -> None:
        super()._SyncObj__setState(state)
        self.role = Role(state)
        self.leading = self.role is Role.LEADER

    def _SyncObj__setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        super()._SyncObj__setCurrentTerm(term, voted_for)
        self.term = term

    def _SyncObj__getCurrentLogIndex(self) -> int:
        return self._log.last_index

    def _SyncObj__getCurrentLogTerm(self) -> int:
        return self._log.last_term

    def _SyncObj__onBecomeLeader(self) -> None:
        self._SyncObj__raftMatchIndex.clear()
        self._SyncObj__raftNextIndex.clear()
        self.matches.clear()
        self._heard = dict.fromkeys(self._voters, self._clock.monotonic())
        super()._SyncObj__onBecomeLeader()

    def _SyncObj__sendNextNodeIdx(
        self, node: Peer, reset: bool = False, nextNodeIdx: int | None = None, success: bool = False
    ) -> None:
        assert success and nextNodeIdx is not None, "a batch was not verified before it reached the base"
        self._outbox.send_ack(node.id, nextNodeIdx - 1)

    def _SyncObj__sendAppendEntries(self) -> None:
        pass  # `Replicator` sends

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
