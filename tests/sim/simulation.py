"""A simulated cluster: virtual time, ordered links that break, disks that forget, processes that pause and die.

Everything random comes from one seeded generator and nothing iterates a set of strings, so a seed replays exactly,
whatever PYTHONHASHSEED is.
"""

from __future__ import annotations

import collections
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from jetcluster.health.cluster_clock import ClusterClock
from jetcluster.health.node_health import Aspect, NodeHealth
from jetcluster.raft.api import MembershipError, NotLeaderError, RaftError
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.core.group import Group
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.membership import Members
from jetcluster.raft.node import RaftNode
from jetcluster.raft.node_state import LEASES_LEVEL
from testkit.twins.journal import JournalDisk, MemoryMark
from testkit.twins.time import SeededRng
from tests.sim.checks import Checks, Violation
from tests.sim.limits import FAST, JOURNAL
from tests.sim.liveness import Liveness
from tests.sim.machine import SimMachine, SimStore
from tests.sim.process import SimTimers, SimWriter

if TYPE_CHECKING:
    from tests.sim.nemesis import Nemesis

START = 1000.0
"""All clocks at the beginning, seconds."""
MAX_EVENTS = 400_000
"""More of them in one run is a storm."""


@dataclass
class Scenario:
    """The parameters of a run; `of(seed)` draws them."""

    voters: int = 3
    spares: int = 0
    groups: int = 1
    seconds: float = 1.0
    settle: float = 1.2
    config: RaftConfig = FAST
    reads_every: float = 0.0
    """Seconds between two reads at all that believe to lead; 0: drawn by the seed."""
    nemesis: Callable[[Simulation], Nemesis] | None = None
    """The faults; None for the usual ones."""
    drift: float = 0.1
    """Share by which clocks may be fast or slow: each is, or all but one are fast and that one is slow."""
    fault_every: float = 0.15
    think: float = 0.012
    corrupt: bool = False
    disk_full: bool = False
    lose_state: bool = False
    rebuild: bool = False
    faults: tuple[str, ...] = ("crash", "reset", "cut", "stall", "pause", "slow-disk", "transfer")

    @staticmethod
    def of(seed: int) -> Scenario:
        rng = random.Random(seed * 31 + 5)
        scenario = Scenario(
            voters=rng.choice((1, 2, 3, 3, 3, 3, 5)),
            groups=rng.choice((1, 1, 2)),
            fault_every=rng.choice((0.03, 0.06, 0.12)),
            think=rng.choice((0.008, 0.016, 0.04)),
        )
        if rng.random() < 0.04:
            scenario.seconds = 4.0
        scenario.spares = rng.choice((0, 0, 1, 2)) if scenario.voters > 1 else rng.choice((0, 1))
        scenario.corrupt = scenario.voters >= 2 and rng.random() < 0.3
        if scenario.corrupt and scenario.voters == 2:
            scenario.settle += (
                0.8  # the damaged one votes for the other only, is healed, and may then be given the lead
            )
        scenario.disk_full = rng.random() < 0.25
        if scenario.disk_full:
            scenario.settle += 1.2  # that there is room again is seen within a second, and a leader may give way then
        scenario.lose_state = scenario.voters >= 3 and rng.random() < 0.25
        scenario.rebuild = scenario.voters >= 3 and rng.random() < 0.25
        return scenario


class SimNode:
    def __init__(self, sim: Simulation, name: str) -> None:
        self.sim = sim
        self.name = name
        self.disk = JournalDisk()
        self.mark = MemoryMark()
        self.stores: dict[int, SimStore] = {}
        self.machines: dict[int, SimMachine] = {}
        self.assigned: dict[int, tuple[str, ...]] = {}
        """gid -> peers that the group was created with."""
        self.rate = 1.0
        """Seconds of its clocks per true second."""
        self._base = 0.0
        self.life = 0
        self.dead = True
        self.paused_until = 0.0
        self.slow_until = 0.0
        self.ill_until = 0.0
        self.reports: list[str] = []

    def clock(self) -> float:
        """The reading of its monotonic clock, seconds."""
        return self._base + self.sim.now * self.rate

    def set_rate(self, rate: float) -> None:
        """Lets its clocks run at another rate from now on; timers that run go off when they would have."""
        self._base += self.sim.now * (self.rate - rate)
        self.rate = rate

    def boot(self) -> None:
        self.life += 1
        self.dead = False
        self.paused_until = 0.0
        sim = self.sim
        timers = SimTimers(sim, self, self.life)
        rng = SeededRng(sim.seed * 1000 + self.life * 10 + ord(self.name[0]))
        self.writer = SimWriter(self, timers)
        self.journal = Journal(self.disk, self.writer, timers, rng, JOURNAL, self._fatal, self.mark)
        self.journal.open()
        if self.journal.damage:
            sim.stats["damaged-journals"] += 1
            sim.log(self.name, "DAMAGE", [d.why for d in self.journal.damage])
        sim.checks.restarted(self)
        time = ClusterClock(timers, others=partial(self.journal.other_voters, self.name))
        health = NodeHealth(timers, time, calm=0.1)
        health.watch(Aspect.MEMORY, lambda: "hardly any is left" if sim.now < self.ill_until else "")
        self.raft = RaftNode(
            self.name, self.journal, self, timers, rng, timers, sim.scenario.config, self._report, health,
            level=LEASES_LEVEL, vouched=sim.nodes.__contains__,
        )  # fmt: skip
        for gid, peers in list(self.assigned.items()):
            self.create(gid, peers)

    def _report(self, gid: int, text: str) -> None:
        self.reports.append(text)
        self.sim.log(self.name, "report", gid, text)

    def _fatal(self, error: BaseException) -> None:
        raise Violation("fatal", f"{self.name}: {error!r}")

    def create(self, gid: int, peers: tuple[str, ...]) -> None:
        self.assigned[gid] = peers
        store = self.stores.setdefault(gid, SimStore())
        machine = self.machines[gid] = SimMachine(self, gid, store)
        self.raft.create_group(
            gid,
            peers,
            machine,
            applied_index=machine.index,
            applied_term=machine.term,
            campaign=peers[:1] == (self.name,),
            promotes=gid == 1,
            members=store.members if machine.index else None,
            sole=peers == (self.name,),
        )
        self.sim.checks.installed(self, gid, machine.index)

    def drop(self, gid: int) -> None:
        """The meta layer takes the replica away."""
        self.assigned.pop(gid, None)
        self.stores.pop(gid, None)
        self.machines.pop(gid, None)
        self.sim.checks.taken_away[(self.name, gid)] = self.journal.groups[gid].written_index
        self.raft.remove_group(gid)
        self.sim.checks.claimed.pop((self.name, gid), None)
        self.sim.checks.last_applied.pop((self.name, gid, self.life), None)

    def send_raft(self, peer: str, gid: int, frame: bytes) -> bool:
        return self.sim.send(self, peer, gid, frame)


class Simulation:
    def __init__(self, seed: int, scenario: Scenario | None = None, trace: bool = False) -> None:
        self.seed = seed
        self.scenario = scenario or Scenario.of(seed)
        self.rng = random.Random(seed)
        self.now = START
        self.trace: list[str] | None = [] if trace else None
        self.stats: collections.Counter[str] = collections.Counter()
        self.acks: dict[int, dict[int, bytes]] = {}
        self.seen: dict[int, int] = {}
        """Newest index that a read has shown, by group."""
        self.checks = Checks(self)
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._events = 0
        self._sent = 0
        self.healed = False
        self.state_lost = False
        """The state machines of a node were emptied."""
        self.links: dict[tuple[str, str], int] = {}
        self.watch: Callable[[str, bytes], None] | None = None
        """Called with the sender of a group's frame, and the frame."""
        self.blocked: set[tuple[str, str]] = set()
        self.stalled: dict[tuple[str, str], float] = {}
        self._arrival: dict[tuple[str, str], float] = {}
        names = [chr(65 + i) for i in range(self.scenario.voters + self.scenario.spares)]
        self.nodes = {name: SimNode(self, name) for name in names}
        self._draws = SeededRng(seed)
        """Draws of clocks and reads, apart from the others."""
        self._set_clocks()
        voters = tuple(names[: self.scenario.voters])
        for node in self.nodes.values():
            node.boot()
        for gid in range(1, self.scenario.groups + 1):
            for name in voters:
                # The first of the list holds the first election.
                self.nodes[name].create(gid, voters)
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                self.connect(a, b)

    def _set_clocks(self) -> None:
        kind, drift = self._draws.randrange(3), self.scenario.drift
        slow = self._draws.randrange(len(self.nodes))
        for at, node in enumerate(self.nodes.values()):
            if kind == 1:
                node.set_rate(1 + drift * (self._draws.randrange(3) - 1))
            elif kind == 2:
                node.set_rate(1 - drift if at == slow else 1 + drift)

    # -- time

    def at(self, delay: float, callback: Callable[..., None], *args: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self.now + delay, self._sequence, callback, args))

    def log(self, *words: object) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now - 1000:.4f} " + " ".join(map(str, words)))

    def run(self) -> None:
        from tests.sim.nemesis import Nemesis

        scenario = self.scenario
        nemesis = (scenario.nemesis or Nemesis)(self)
        self.at(0.02, self._client)
        self.at(0.02, self._reader)
        self.at(0.1, nemesis.strike)
        self.at(0.05, self._housekeep)
        self.at(0.1, self._match)
        heal_at = self.now + scenario.seconds
        liveness = Liveness(self, heal_at)
        while self._queue:
            when, _, callback, args = heapq.heappop(self._queue)
            if when > heal_at and not self.healed:
                self.now = heal_at
                self.healed = True
                nemesis.heal()
            if when > liveness.next_look and liveness.look():
                break
            self.now = max(self.now, when)
            self._events += 1
            if self._events > MAX_EVENTS:
                raise Violation("storm", f"more than {MAX_EVENTS} events")
            callback(*args)
        self.checks.log_matching()
        self.checks.final()
        liveness.judge()

    def _match(self) -> None:
        self.checks.log_matching()
        self.at(0.2, self._match)

    def _housekeep(self) -> None:
        """The store's flush, as the owner does it from time to time: then the log may be compacted."""
        self.at(self.rng.uniform(0.05, 0.2), self._housekeep)
        for node in self.nodes.values():
            if node.dead or node.paused_until > self.now or self.rng.random() < 0.3:
                continue
            for gid, machine in list(node.machines.items()):
                if self.rng.random() < 0.7 and not machine.fetching:
                    node.raft.groups[gid].compact(machine.flush())
            node.journal.housekeep()
            self.checks.after_event(node)

    # -- network

    @staticmethod
    def pair(a: str, b: str) -> tuple[str, str]:
        return (a, b) if a < b else (b, a)

    def connect(self, a: str, b: str) -> None:
        pair = self.pair(a, b)
        one, other = self.nodes[a], self.nodes[b]
        if one.dead or other.dead or pair in self.links or pair in self.blocked:
            return
        self._sequence += 1
        self.links[pair] = self._sequence
        one.raft.peer_up(b, waits=True)
        other.raft.peer_up(a, waits=True)
        self.checks.after_event(one)
        self.checks.after_event(other)

    def disconnect(self, a: str, b: str) -> None:
        if self.links.pop(self.pair(a, b), None) is None:
            return
        self._arrival.pop((a, b), None)
        self._arrival.pop((b, a), None)
        for one, other in ((a, b), (b, a)):
            node = self.nodes[one]
            if not node.dead:
                node.raft.peer_down(other)
                self.checks.after_event(node)

    def send(self, source: SimNode, target: str, gid: int, frame: bytes) -> bool:
        link = self.links.get(self.pair(source.name, target))
        if link is None or source.dead:
            return False
        self.checks.frame(source, target, gid, frame)
        if self.watch is not None and gid:
            self.watch(source.name, frame)
        rng = self.rng
        delay = rng.uniform(0.0002, 0.002) if rng.random() < 0.93 else rng.uniform(0.002, 0.03)
        way = (source.name, target)
        when = max(self.now + delay, self._arrival.get(way, 0.0), self.stalled.get(way, 0.0)) + 1e-6
        self._arrival[way] = when
        self.at(when - self.now, self._deliver, link, source.name, target, gid, frame)
        return True

    def _deliver(self, link: int, source: str, target: str, gid: int, frame: bytes) -> None:
        node = self.nodes[target]
        if node.dead or self.links.get(self.pair(source, target)) != link:
            return
        if node.paused_until > self.now:
            self.at(node.paused_until - self.now + 1e-6, self._deliver, link, source, target, gid, frame)
            return
        if self.trace is not None and gid:
            from jetcluster.raft import codec

            self.log(f"{source}->{target}", gid, _short(codec.decode(frame)))
        node.raft.on_frame(source, gid, frame)
        node.raft.end_of_batch()
        self.checks.after_event(node)

    # -- processes

    def crash(self, name: str) -> None:
        node = self.nodes[name]
        if node.dead:
            return
        self.log("CRASH", name)
        self.stats["crashes"] += 1
        self.checks.crashed(node)
        node.dead = True
        node.writer.power_off(node.disk)
        node.disk.crash(SeededRng(self.rng.randrange(1 << 30)))
        for other in self.nodes:
            if other != name:
                self.disconnect(name, other)

    def restart(self, name: str) -> None:
        node = self.nodes[name]
        if not node.dead:
            return
        self.log("RESTART", name)
        node.boot()
        for other in self.nodes:
            if other != name:
                self.connect(name, other)

    # -- snapshots

    def fetch_snapshot(self, node: SimNode, gid: int, leader: str, index: int) -> None:
        machine = node.machines.get(gid)
        if machine is None or machine.fetching or leader == node.name:
            return
        machine.fetching = True
        self.at(self.rng.uniform(0.01, 0.15), self._snapshot, node, node.life, gid, leader, index)

    def _snapshot(self, node: SimNode, life: int, gid: int, leader: str, index: int) -> None:
        machine = node.machines.get(gid)
        if node.dead or node.life != life or machine is None or not machine.fetching:
            return
        machine.fetching = False
        source = self.nodes[leader]
        there = source.machines.get(gid)
        if source.dead or there is None or self.pair(node.name, leader) not in self.links:
            return
        if there.index < index or node.paused_until > self.now or source.paused_until > self.now:
            return
        group = node.raft.groups[gid]
        if there.index <= machine.index and not group.needs_snapshot:
            return
        self.stats["snapshots"] += 1
        self.log(node.name, "INSTALL", gid, there.index, there.term)
        term = there.term if there.index else 0
        config = source.raft.groups[gid].members_at(there.index)
        group.suspend()
        machine.replace(there.entries, there.index, term, Members(there.index, config))
        machine.fetching = True
        # The state is durable now; a crash before the journal knows of it is part of the game.
        self.at(self.rng.uniform(0.0, 0.03), self._install, node, life, gid, machine)

    def _install(self, node: SimNode, life: int, gid: int, machine: SimMachine) -> None:
        if node.dead or node.life != life or node.machines.get(gid) is not machine:
            return
        if node.paused_until > self.now:
            self.at(node.paused_until - self.now, self._install, node, life, gid, machine)
            return
        machine.fetching = False
        members = machine.members
        assert members is not None
        self.checks.installed(node, gid, machine.index)
        node.raft.groups[gid].install(machine.index, machine.term, members.config)
        self.checks.after_event(node)

    # -- clients

    def _client(self) -> None:
        if self.healed and self.now > 1000 + self.scenario.seconds + self.scenario.settle / 2:
            return
        self.at(self.rng.expovariate(1 / self.scenario.think), self._client)
        gid = self.rng.randrange(self.scenario.groups) + 1
        leaders = [
            n
            for n in self.nodes.values()
            if not n.dead and n.paused_until <= self.now and gid in n.raft.groups and n.raft.groups[gid].engine.leading
        ]
        if not leaders:
            return
        node = self.rng.choice(leaders)
        group = node.raft.groups[gid]
        if self.rng.random() < 0.2:
            self._read(node, gid, group)
        for _ in range(self.rng.choice((1, 1, 3, 8))):
            self._sent += 1
            command = b"%d." % self._sent + b"." * self.rng.choice((10, 60, 300))
            try:
                index = group.propose(command)
            except RaftError:
                self.stats["refused"] += 1
                break
            node.machines[gid].waiting[index] = command
        self.checks.after_event(node)

    def acked(self, gid: int, index: int, command: bytes) -> None:
        self.acks.setdefault(gid, {})[index] = command
        self.stats["acked"] += 1

    def _reader(self) -> None:
        """Reads at all that believe to lead, in half of the runs so often that they have leases."""
        if self.healed:
            return
        often = self.scenario.reads_every or (self._draws.uniform(0.002, 0.03) if self.seed % 2 else 0.3)
        self.at(often, self._reader)
        for node in self.nodes.values():
            self.read_at(node)

    def read_at(self, node: SimNode) -> None:
        """Reads there, if it runs, before it does anything else."""
        if node.dead or node.paused_until > self.now:
            return
        for gid, group in list(node.raft.groups.items()):
            if group.engine.leading and not group.stopped:
                self._read(node, gid, group)
        self.checks.after_event(node)

    def _read(self, node: SimNode, gid: int, group: Group) -> None:
        """A read that begins now must show all that was acked, and all that a read has shown."""
        floor = max(max(self.acks.get(gid, {}), default=0), self.seen.get(gid, 0))
        life = node.life

        def served(ok: bool) -> None:
            if ok and node.life == life and not group.lacks_state:
                self.stats["reads"] += 1
                found = node.machines[gid].index
                if found < floor:
                    raise Violation("stale-read", f"{node.name} serves {gid} at {found} < {floor}")
                self.seen[gid] = max(found, self.seen.get(gid, 0))

        if group.reads_now():
            self.stats["lease-reads"] += len(group.peers) > 1
            served(True)
        else:
            group.read_index(served)

    def admin(self) -> None:
        """One membership change, as the meta layer would make it."""
        gid = self.rng.randrange(self.scenario.groups) + 1
        node = self.healed_leader(gid)
        if node is None:
            return
        group = node.raft.groups[gid]
        members = group.log.config.members
        outside = [n for n in self.nodes if n not in members and gid not in self.nodes[n].assigned]
        try:
            if outside and self.rng.random() < 0.55:
                name = self.rng.choice(outside)
                if not self.nodes[name].dead:
                    self.log("ADD", gid, name)
                    self.nodes[name].create(gid, group.peers)
                    group.add_peer(name)
                    self.stats["added"] += 1
            elif gid > 1 or self.rng.random() < 0.3:
                self._change(node, gid)
            elif len(group.peers) > (3 if self.state_lost else 2):
                name = self.rng.choice([m for m in members if m != node.name])
                self.log("REMOVE", gid, name)
                self._removed(gid, name, group.remove_peer(name))
        except (MembershipError, NotLeaderError):
            self.stats["changes-refused"] += 1

    def _change(self, node: SimNode, gid: int) -> None:
        """Other voters in one step: any of those that there are, and of the learners that have caught up."""
        group = node.raft.groups[gid]
        config = group.log.config
        able = [p.peer for p in group.status().peers if p.caught_up]
        among = [*config.voters, *able]
        if self.state_lost and len(among) < 3:
            return
        sizes = (3, len(among)) if self.state_lost else (1, 3, len(among))
        voters = tuple(self.rng.sample(among, self.rng.choice(sizes) if len(among) >= 3 else 1))
        self.log("CHANGE", gid, config.voters, "->", voters)
        index = group.change_voters(voters)
        self.stats["changed"] += 1
        for name in config.voters:
            if name not in voters:
                self._removed(gid, name, index)

    def may_lose_state(self, name: str) -> bool:
        """All groups of the node have three voters, in every log and on the way to a next one: else nobody may be left
        who has the state. After that none shrinks to fewer (`state_lost`)."""
        logs = [log for node in self.nodes.values() for gid, log in node.journal.groups.items() if self._has(name, gid)]
        configs = [config for log in logs for _, config in log.configs]
        return all(len(voters) >= 3 for c in configs for voters in (c.voters, c.outgoing) if voters)

    def _has(self, name: str, gid: int) -> bool:
        return gid in self.nodes[name].assigned

    def _removed(self, gid: int, name: str, index: int) -> None:
        self.stats["removed"] += 1
        self.at(0.1, self._take_away, gid, name, index)

    def _take_away(self, gid: int, name: str, index: int) -> None:
        """Deletes the removed replica once the removal is committed."""
        if self.healed:
            return
        node = self.nodes[name]
        leader = self.healed_leader(gid)
        done = False
        if leader is not None:
            group = leader.raft.groups[gid]
            config = group.log.config
            done = group.commit_index >= max(index, group.log.config_index) and not config.outgoing
            if done and name in config.members:
                return
        if done and not node.dead and gid in node.assigned:
            self.log("TAKE AWAY", gid, name)
            node.drop(gid)
            return
        self.at(0.1, self._take_away, gid, name, index)

    # -- results

    def healed_leader(self, gid: int) -> SimNode | None:
        found = [n for n in self.nodes.values() if not n.dead and gid in n.raft.groups and n.raft.groups[gid].ready]
        return max(found, key=lambda n: n.raft.groups[gid].term, default=None)

    def best_machine(self, gid: int) -> SimMachine | None:
        leader = self.healed_leader(gid)
        return leader.machines[gid] if leader is not None else None


def _short(message: Any) -> str:
    text = str(message)
    return text if len(text) < 160 else text[:160] + "..."
