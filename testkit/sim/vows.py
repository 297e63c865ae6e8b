"""Statements that servers have made to each other in the Raft protocol, and must know when they start again: what
they have stored, and whom they voted for. A log that the server itself calls damaged excuses it, and nothing else.

A server calls a log damaged where something has happened to its journal. Or to its data store, if it has left the group
before: a store that has lost its last flushes has the state of that replica again, and the journal rightly has no log.

Vows are overheard on the connections between servers, and compared with the log that a server has recovered, before
anybody can send it anything.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from jetcluster.mesh.frames import RAFT, Kind
from jetcluster.raft.codec import ACK, VOTE_REPLY
from testkit.sim import starts
from testkit.sim.machine import DATA, JOURNAL
from testkit.sim.protocol import SPOKEN, Protocol
from testkit.sim.rafts import raft_of

if TYPE_CHECKING:
    from testkit.sim.deployment import Deployment
    from testkit.sim.machine import Machine
    from testkit.sim.network import Address

POLL = 0.0005
"""Seconds between two looks whether a server that starts has read its journal."""
SHORTEST = 7
"""Bytes behind the length of a RAFT whose frame has a kind."""
ASKED = frozenset((Kind.CALL, Kind.REPLY, Kind.ERROR))
NOBODY = 0xFFFF_FFFF
"""Number of requests of a fault (`confused`), which nobody waits for."""
_HEAD = struct.Struct("!IBI")
_ACK = struct.Struct("<BBQQIBI")
_VOTE_REPLY = struct.Struct("<BBQB")


class Vow(NamedTuple):
    """The vow of one server in one group."""

    term: int = 0
    match: int = 0
    """The index up to which it has everything on disk, by what it said in `term`."""
    vote_term: int = 0
    vote: str = ""
    """Raft's id of the server that it voted for in `vote_term`."""


class Vows:
    """`overhear` gets everything servers write to each other, `died` and `started` are called at their ends and
    beginnings. A broken vow goes to `deployment.failed`."""

    def __init__(self, deployment: Deployment) -> None:
        self.kept = 0
        """Counts what was compared."""
        self.nonsense: set[bytes] = set()
        """Frames that a fault has a server send, which no server would: nobody vows anything by them."""
        self._deployment = deployment
        self._protocol = Protocol(deployment, self._broken)
        self._calls: dict[tuple[Address, Address], set[int]] = {}
        """By connection, the numbers of requests that were not answered."""
        self._damaged: set[tuple[str, int]] = set()
        """Logs that were when their process ended."""
        self._logs: set[tuple[str, int]] = set()
        """All that were seen in journals."""
        self.left: set[tuple[str, int]] = set()
        """Those of them that a journal had no more: the replica was removed."""
        self.vows: dict[tuple[str, int], Vow] = {}
        self.claims: dict[tuple[str, int], int] = {}
        """Committed, and counted by that server itself, when its process ended."""
        self._unmarked: set[str] = set()
        """Machines whose processes ended with batches that the durable mark lacks: if the last of these rots, it looks
        like one that was never durable (`raft.journal.disk.FileMark`)."""

    def committed(self, cluster: str, gid: int, at: float) -> int:
        """The index of a group that a leader had told by that time as committed."""
        return self._protocol.committed((cluster, gid), at)

    def overhear(self, own: Address, other: Address, data: bytes) -> None:
        """Whole frames, as `mesh.link` writes them; anything else is passed over, and so is what strangers say."""
        if not {own[0], other[0]} <= self._deployment.names.keys():
            return
        at, end = 0, len(data)
        while at + _HEAD.size <= end:
            length, kind, gid = _HEAD.unpack_from(data, at)
            body = at + _HEAD.size
            if (
                kind == RAFT
                and length >= SHORTEST
                and body + 1 < end
                and (said := data[body + 1]) in SPOKEN
                and not self._is_nonsense(data, at, length)
            ):
                self._protocol.heard(self._name(own), self._name(other), gid, memoryview(data)[body : at + 4 + length])
                if said == ACK and length == _ACK.size + 5:
                    self._acked(own, gid, _ACK.unpack_from(data, body))
                elif said == VOTE_REPLY and length == _VOTE_REPLY.size + 5:
                    self._voted(own, other, gid, _VOTE_REPLY.unpack_from(data, body))
            elif (
                kind in ASKED and gid != NOBODY and at + 4 + length <= end and not self._is_nonsense(data, at, length)
            ):  # the number of a request is where RAFT has its group
                self._asked(own, other, kind, gid)
            at += 4 + length

    def _asked(self, own: Address, other: Address, kind: int, number: int) -> None:
        """Requests between servers: an answer that comes late is to the one that was asked under its number."""
        if kind != Kind.CALL:
            self._calls.get((other, own), set()).discard(number)
            return
        waiting = self._calls.setdefault((own, other), set())
        if number in waiting:
            text = f"asks {self._name(other)} under the number {number}, of another request that has no answer yet"
            self._deployment.failed(f"at {self._deployment.scheduler.now:.3f}: {self._name(own)} {text}")
        waiting.add(number)

    def _is_nonsense(self, data: bytes, at: int, length: int) -> bool:
        return bool(self.nonsense) and data[at : at + 4 + length] in self.nonsense

    def _acked(self, own: Address, gid: int, frame: tuple[Any, ...]) -> None:
        _, _, term, match, _, recovering, _ = frame
        key = self._name(own), gid
        vow = self.vows.get(key, Vow())
        if recovering:  # its log begins anew: it was damaged, or its replica was removed and is added again
            self.vows[key] = Vow()  # votes are gone, too: it votes for nobody before a leader has healed it
            return
        if term < vow.term:
            return
        match = max(match, vow.match) if term == vow.term else match
        self.vows[key] = vow._replace(term=term, match=match)

    def _voted(self, own: Address, other: Address, gid: int, frame: tuple[Any, ...]) -> None:
        _, _, term, granted = frame
        key = self._name(own), gid
        vow = self.vows.get(key, Vow())
        node = self._deployment.machines[self._name(other)].node
        if not granted or term < vow.vote_term or node is None or node.jetstream is None:
            return
        vote = node.jetstream.mesh.me.peer_id
        if term == vow.vote_term and vote != vow.vote:
            self._broken(key, f"votes for {vote} in term {term}, and voted for {vow.vote}")
        self.vows[key] = vow._replace(vote_term=term, vote=vote)

    def _name(self, address: Address) -> str:
        return self._deployment.names[address[0]]

    # ---- ends and beginnings

    def died(self, machine: Machine) -> None:
        """Takes note of a death, while the machine's node can still be looked at."""
        raft = raft_of(machine)
        if raft is None:
            return
        self._note_logs(machine.name, raft.journal.groups)
        self._unmarked.discard(machine.name)
        if raft.journal.synced > raft.journal.marked:
            self._unmarked.add(machine.name)
        damaged = {(machine.name, gid) for gid, log in raft.journal.groups.items() if log.damaged}
        self._damaged = {key for key in self._damaged if key[0] != machine.name} | damaged
        for gid, group in raft.groups.items():
            log = group.log
            if log.durable and not (log.damaged or log.joining or log.fetching or group.stopped):
                self.claims[machine.name, gid] = min(group.commit_index, log.written_index)

    def _note_logs(self, name: str, logs: Iterable[int]) -> None:
        present = {(name, gid) for gid in logs}
        self.left |= {key for key in self._logs if key[0] == name} - present
        self._logs |= present

    def new_disk(self, machine: Machine) -> None:
        """Nothing of what it had can come back."""
        self.forget(machine)
        for keys in (self._logs, self.left):
            keys -= {key for key in keys if key[0] == machine.name}

    def forget(self, machine: Machine, kept: Container[int] = ()) -> None:
        """All groups but these: it has no replica of the others any more."""
        for table in (self.vows, self.claims):
            for key in [key for key in table if key[0] == machine.name and key[1] not in kept]:
                del table[key]

    def marked(self, machine: Machine, gid: int) -> None:
        """An administrator has the replica there for damaged from its next start on."""
        self._damaged.add((machine.name, gid))

    def look(self) -> None:
        """Once in a while: replicas that are gone count no more."""
        for machine in self._deployment.machines.values():
            raft = raft_of(machine)
            if raft is not None and machine.ready:
                self._note_logs(machine.name, raft.journal.groups)
                self.forget(machine, raft.groups)

    def started(self, machine: Machine) -> None:
        loop = machine.loop

        def look() -> None:
            if machine.loop is not loop or loop is None or not loop.alive:
                return
            raft = raft_of(machine)
            if raft is None:
                self._deployment.scheduler.after(POLL, look)
                return
            starts.watch(self._deployment, machine, raft.journal.groups, self._broken)
            if not self._deployment.relaxed:
                self._compare(machine, raft.journal.groups)

        self._deployment.scheduler.after(POLL, look)

    def may_lack_its_end(self, machine: Machine) -> bool:
        """The end of its journal may be gone without a trace: it died before what was durable had been marked so, and
        something has happened to the disk."""
        return machine.name in self._unmarked and machine.disk_troubled(JOURNAL)

    def _compare(self, machine: Machine, logs: dict[int, Any]) -> None:
        for gid, log in logs.items():
            key = machine.name, gid
            vow = self.vows.get(key, Vow())
            new = log.damaged and not log.joining and key not in self._damaged
            excused = machine.disk_troubled(JOURNAL) or (key in self.left and machine.disk_troubled(DATA))
            if new and not excused:
                self._broken(key, "starts with a damaged journal, and nothing has happened to its disk")
            if not log.durable or log.damaged or log.joining or log.fetching:
                continue
            if self.may_lack_its_end(machine):
                continue
            self.kept += 1
            claim = self.claims.get(key, 0)
            if log.last_index < claim:
                self._broken(key, f"starts with {log.last_index} entries and counted for {claim}, which are committed")
            if log.term < vow.term or (log.term == vow.term and log.last_index < vow.match):
                self._broken(key, f"starts with {log.last_index} entries in term {log.term}, and acknowledged {vow}")
            forgotten = log.term == vow.vote_term and log.voted_for != vow.vote
            if vow.vote and (log.term < vow.vote_term or forgotten):
                self._broken(
                    key, f"starts in term {log.term} with its vote for {log.voted_for}, and acknowledged {vow}"
                )

    def _broken(self, key: tuple[str, int], what: str) -> None:
        self._deployment.failed(f"at {self._deployment.scheduler.now:.3f}: {key[0]}, group {key[1]}: {what}")
