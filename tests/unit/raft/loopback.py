"""Several `RaftNode`s in one process over virtual time: the harness of this package's unit tests."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from jetcluster.raft import codec
from jetcluster.raft.api import Role
from jetcluster.raft.config import JournalOptions, RaftConfig
from jetcluster.raft.core.group import Group
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.membership import Members
from jetcluster.raft.node import RaftNode
from jetcluster.raft.node_state import LEASES_LEVEL
from testkit.twins.journal import InlineWriter, JournalDisk, MemoryMark
from testkit.twins.time import ManualTime, SeededRng

SMALL = JournalOptions(segment_bytes=1 << 16, reserve_bytes=0, node_retain_bytes=1 << 20)


class Recorder:
    """A state machine that writes down its calls."""

    def __init__(self, applied: list[tuple[int, bytes]] | None = None) -> None:
        self.applied: list[tuple[int, bytes]] = applied if applied is not None else []
        self.roles: list[tuple[Role, int, str | None]] = []
        self.dropped: list[int] = []
        self.snapshots: list[tuple[str, int, int]] = []
        self.contradictions = 0
        self.keep_members: Callable[[Members], None] = lambda members: None
        self.fail_on: bytes | None = None

    def apply(self, index: int, term: int, command: bytes) -> None:
        if command == self.fail_on:
            raise RuntimeError("bad command")
        self.applied.append((index, command))

    def on_role(self, role: Role, term: int, leader: str | None) -> None:
        self.roles.append((role, term, leader))

    def on_dropped(self, first_index: int) -> None:
        self.dropped.append(first_index)

    def on_members(self, members: Members) -> None:
        self.keep_members(members)

    def on_contradicted(self) -> None:
        self.contradictions += 1

    def on_snapshot_needed(self, leader: str, index: int, term: int) -> None:
        self.snapshots.append((leader, index, term))

    def commands(self) -> list[bytes]:
        return [c for _, c in self.applied]


class MemberClock:
    """Monotonic time is everybody's, the wall clock may be off, and the machine may have been suspended."""

    def __init__(self, net: Loopback, name: str) -> None:
        self._net = net
        self._name = name

    def monotonic(self) -> float:
        return self._net.time.monotonic()

    def uptime(self) -> float:
        return self.monotonic() + self._net.suspended.get(self._name, 0.0)

    def time_ns(self) -> int:
        return self._net.time.time_ns() + int(self._net.ahead.get(self._name, 0.0) * 1e9)


class Member:
    def __init__(self, net: Loopback, name: str, disk: JournalDisk) -> None:
        self.net = net
        self.name = name
        self.disk = disk
        self.dead = False
        self.fatal: list[BaseException] = []
        self.reports: list[tuple[int, str]] = []
        self.machines: dict[int, Recorder] = {}
        self.rng = SeededRng(hash_of(name) + net.boots)
        net.boots += 1
        mark = net.marks.setdefault(name, MemoryMark())
        self.writer = InlineWriter(net.time)
        self.journal = Journal(disk, self.writer, net.time, self.rng, net.journal_options, self.fatal.append, mark)
        self.journal.open()
        self.clock = MemberClock(net, name)
        self.node = RaftNode(
            name, self.journal, self, self.clock, self.rng, net.time, net.config, self._report,
            level=LEASES_LEVEL, vouched=lambda peer: peer in net.members,
        )  # fmt: skip

    def _report(self, gid: int, text: str) -> None:
        self.reports.append((gid, text))

    def send_raft(self, peer: str, gid: int, frame: bytes) -> bool:
        return self.net.send(self.name, peer, gid, frame)

    def create(
        self,
        gid: int,
        peers: tuple[str, ...],
        applied_index: int = 0,
        applied_term: int = 0,
        durable: bool = True,
        campaign: bool = False,
        sole: bool = False,
        promotes: bool = True,
    ) -> Group:
        machine = self.machines.setdefault(gid, Recorder())
        kept = self.net.kept_members
        members = kept.get((self.name, gid)) if applied_index else None
        machine.keep_members = lambda members: kept.update({(self.name, gid): members})
        where = applied_index, applied_term
        more = {"members": members, "sole": sole, "promotes": promotes}
        return self.node.create_group(gid, peers, machine, *where, durable, campaign, **more)  # type: ignore[arg-type]

    def group(self, gid: int = 1) -> Group:
        return self.node.groups[gid]

    def machine(self, gid: int = 1) -> Recorder:
        return self.machines[gid]


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode(), "little")


class Loopback:
    """Links deliver in order after `latency`; a cut loses what is under way."""

    def __init__(
        self,
        names: str = "ABC",
        options: JournalOptions = SMALL,
        config: RaftConfig | None = None,
        latency: float = 0.0002,
    ) -> None:
        self.time = ManualTime()
        self.journal_options = options
        self.config = config or RaftConfig()
        self.latency = latency
        self.boots = 0
        self.marks: dict[str, MemoryMark] = {}
        self.kept_members: dict[tuple[str, int], Members] = {}
        """(member, gid) -> what its state knows of the group's members; survives crashes, as if always flushed."""
        self.links: dict[frozenset[str], int] = {}
        self.generation = 0
        self.filter: Callable[[str, str, int, bytes], bool] | None = None
        """Called with (from, to, gid, frame); False drops the frame."""
        self.suspended: dict[str, float] = {}
        """Seconds for which a member's machine was suspended."""
        self.ahead: dict[str, float] = {}
        """Seconds by which a member's wall clock is ahead."""
        self.members: dict[str, Member] = {}
        for name in names:
            self.members[name] = Member(self, name, JournalDisk())
        self.connect_all()
        self.run(2 * latency)  # they have heard each other's clocks

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def connect_all(self) -> None:
        names = sorted(self.members)
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                self.connect(a, b)

    def connect(self, a: str, b: str) -> None:
        pair = frozenset((a, b))
        if pair in self.links or self.members[a].dead or self.members[b].dead:
            return
        self.generation += 1
        self.links[pair] = self.generation
        for one, other in ((a, b), (b, a)):
            self.members[one].node.peer_up(other, self.members[other].journal.options.sync_interval is None)

    def cut(self, a: str, b: str) -> None:
        if self.links.pop(frozenset((a, b)), None) is None:
            return
        for one, other in ((a, b), (b, a)):
            if not self.members[one].dead:
                self.members[one].node.peer_down(other)

    def isolate(self, name: str) -> None:
        for other in list(self.members):
            if other != name:
                self.cut(name, other)

    def send(self, source: str, target: str, gid: int, frame: bytes) -> bool:
        link = self.links.get(frozenset((source, target)))
        if link is None:
            return False
        if self.filter is not None and not self.filter(source, target, gid, frame):
            return True
        self.time.call_later(self.latency, self._deliver, link, source, target, gid, frame)
        return True

    def _deliver(self, link: int, source: str, target: str, gid: int, frame: bytes) -> None:
        member = self.members[target]
        if self.links.get(frozenset((source, target))) != link or member.dead:
            return
        member.node.on_frame(source, gid, frame)
        member.node.end_of_batch()

    def crash(self, name: str, lose: bool = True) -> None:
        member = self.members[name]
        self.isolate(name)
        member.dead = True
        member.node.close()
        member.disk = copy.deepcopy(member.disk)  # what the old journal still does reaches another one
        if lose:
            member.disk.crash(SeededRng(7))

    def restart(self, name: str) -> Member:
        old = self.members[name]
        member = self.members[name] = Member(self, name, old.disk)
        return member

    def run(self, seconds: float) -> None:
        self.time.advance(seconds)

    def until(self, condition: Callable[[], bool], seconds: float = 10.0, step: float = 0.005) -> None:
        for _ in range(int(seconds / step)):
            if condition():
                return
            self.run(step)
        raise AssertionError("condition not reached in time")

    def start(self, gid: int = 1, peers: str | None = None, leader: str | None = "A", **options: bool) -> Group:
        """Creates the group on every member; waits for `leader` (or any)."""
        names = tuple(peers or sorted(self.members))
        for name in names:
            self.members[name].create(gid, names, campaign=name == leader, **options)
        return self.elected(gid=gid)

    def leader(self, gid: int = 1) -> Group | None:
        found = [
            m.node.groups[gid]
            for m in self.members.values()
            if not m.dead and gid in m.node.groups and m.node.groups[gid].ready
        ]
        return max(found, key=lambda g: g.term, default=None)

    def led_by(self, gid: int = 1) -> Group:
        """The leader, which there must be."""
        found = self.leader(gid)
        assert found is not None
        return found

    def elected(self, seconds: float = 10.0, gid: int = 1) -> Group:
        """The leader, once there is one."""
        self.until(lambda: self.leader(gid) is not None, seconds)
        return self.led_by(gid)

    def propose(self, leader: Group, command: bytes, *, after: float) -> int:
        index = leader.propose(command)
        self.run(after)
        return index

    def crowd(
        self,
        leader: Group,
        count: int,
        size: int = 40,
        form: bytes = b"",
        *,
        each: float = 0.0,
        after: float | None = None,
    ) -> list[int]:
        """Proposes commands (`form` with a number, or of a size); lets time pass for each, and afterwards."""
        indexes = []
        for i in range(count):
            indexes.append(leader.propose(form % i if form else b"%04d" % i + b"." * size))
            if each:
                self.run(each)
        if after is not None:
            self.run(after)
        return indexes


def asked(leader: Group) -> list[bool]:
    """Answers to a read index that is asked for now."""
    answers: list[bool] = []
    leader.read_index(answers.append)
    return answers


def led(
    names: str = "ABC",
    *,
    options: JournalOptions = SMALL,
    config: RaftConfig | None = None,
    latency: float = 0.0002,
    peers: str | None = None,
    leader: str | None = "A",
    commands: int = 0,
    after: float | None = None,
    **more: bool,
) -> tuple[Loopback, Group]:
    """A network with a group (`more`: how it is created) that has a leader: with `commands`, `after` seconds."""
    net = Loopback(names, options, config, latency)
    found = net.start(1, peers, leader, **more)
    net.crowd(found, commands, after=after)
    return net, found


def running(names: str = "ABC", **more: Any) -> Loopback:
    return led(names, **more)[0]


def leased(names: str = "ABC", **more: Any) -> tuple[Loopback, Group]:
    """A network whose leader A has just been given a lease."""
    net, leader = led(names, after=1.0, **more)
    read_enough(net, leader)
    assert leader.reads_now()
    return net, leader


def read_enough(net: Loopback, leader: Group) -> None:
    """Reads until a lease is asked for, and answered."""
    for _ in range(net.config.lease_reads):
        assert not leader.reads_now()
    net.run(0.01)


def frames(net: Loopback, *kinds: type) -> list[tuple[str, str, codec.Message]]:
    """Collects the frames of these kinds, as (from, to, message)."""
    seen: list[tuple[str, str, codec.Message]] = []

    def note(source: str, target: str, gid: int, frame: bytes) -> bool:
        message = codec.decode(frame) if gid else None
        if isinstance(message, kinds):
            seen.append((source, target, message))
        return True

    net.filter = note
    return seen


class Untimely:
    """Health of a node whose clock is in doubt."""

    keeps_time = False
