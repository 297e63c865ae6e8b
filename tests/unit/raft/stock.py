"""pysyncobj 0.3.17 as it is on PyPI, driven by hand: shows that the tests of this package can fail.

The only changes are outside its logic: no poller, no pickle on apply, a transport that collects messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pysyncobj.syncobj as base
import pytest
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

Message = dict[str, Any]


class StockTransport(Transport):
    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.out: list[tuple[str, Message]] = []

    def send(self, node: Node, message: Message) -> bool:
        self.out.append((node.id, message))
        return True

    def take(self, peer: str) -> list[Message]:
        taken = [m for n, m in self.out if n == peer]
        self.out = [x for x in self.out if x[0] != peer]
        return taken


class _NoPoller:
    def poll(self, timeout: float) -> None:
        pass


class Stock(SyncObj):
    """One stock replica."""

    def __init__(self, me: str, ids: str, batch: int = 400, dynamic: bool = False, journal: Any = None) -> None:
        self.wire = StockTransport()
        self.applied: list[tuple[int, bytes]] = []
        self.truncated = 0
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,
            commandsWaitLeader=False,
            appendEntriesBatchSizeBytes=batch,
            logCompactionMinEntries=10**9,
            logCompactionMinTime=10**9,
            dynamicMembershipChange=dynamic,
            useFork=False,
            journalFile=journal,
        )
        super().__init__(Node(me), [Node(i) for i in ids if i != me], conf, transport=self.wire)
        self._poller = _NoPoller()
        for i in ids:
            if i != me:
                self.wire._onNodeConnected(Node(i))

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        if command[:1] == b"\0":
            self.applied.append((self._SyncObj__raftLastApplied + 1, command[1:]))

    def _SyncObj__deleteEntriesFrom(self, index: int) -> None:
        self.truncated += 1
        super()._SyncObj__deleteEntriesFrom(index)

    def receive(self, sender: str, message: Message) -> None:
        self.wire._onMessageReceived(Node(sender), message)

    def campaign(self, voters: str) -> None:
        self._SyncObj__raftElectionDeadline = 0
        self.doTick(0)
        for voter in voters:
            self.receive(voter, {"type": "response_vote", "term": self.raftCurrentTerm})

    def propose(self, data: bytes, callback: Callable[[Any, int], None] | None = None) -> None:
        log = self._SyncObj__raftLog
        index, term = log[-1][1] + 1, self.raftCurrentTerm
        log.add(b"\0" + data, index, term)
        if callback is not None:
            self._SyncObj__commandsWaitingCommit[index].append((term, callback))

    def flush(self) -> None:
        self._SyncObj__sendAppendEntries()

    def log_end(self) -> int:
        return int(self._SyncObj__getCurrentLogIndex())


class StockClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def stock_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[StockClock]:
    """Virtual time for stock replicas."""
    clock = StockClock()
    monkeypatch.setattr(base, "monotonicTime", clock)
    yield clock
