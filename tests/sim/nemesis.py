"""The faults of a run, and their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jetcluster.clock import Rng
from jetcluster.raft.journal import records
from testkit.twins.journal import JournalDisk
from testkit.twins.time import SeededRng

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


class Nemesis:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.rng = sim.rng
        self.victim = "A" if sim.scenario.voters < 2 else sim.rng.choice(list(sim.nodes))
        """The one node whose disk rots or whose state gets lost: more at a time is more than Raft promises."""
        table: dict[str, Callable[[], None]] = {
            "crash": self.crash,
            "reset": self.reset,
            "cut": self.cut,
            "stall": self.stall,
            "pause": self.pause,
            "slow-disk": self.slow_disk,
            "transfer": self.transfer,
        }
        self._ailments = SeededRng(sim.seed) if sim.seed % 2 == 0 else None
        """Draws of ailments, in half of the runs; apart from the other draws, which stay as they are."""
        self.actions = [table[name] for name in sim.scenario.faults]
        self.actions += [self.crash_all] if self.rng.random() < 0.5 else []
        if sim.scenario.spares:
            self.actions += [sim.admin] * 4
        if sim.scenario.corrupt:
            self.actions += [self.corrupt]
        if sim.scenario.disk_full:
            self.actions += [self.fill]
        if sim.scenario.lose_state:
            self.actions += [self.lose_state]
        if sim.scenario.rebuild:
            self.actions += [self.rebuild]

    def strike(self) -> None:
        sim = self.sim
        if sim.healed:
            return
        sim.at(self.rng.expovariate(1 / sim.scenario.fault_every), self.strike)
        if self._ailments is not None and self._ailments.uniform(0, 1) < 0.2:
            self._ail(self._ailments)
        self.rng.choice(self.actions)()

    def _name(self) -> str:
        return self.rng.choice(list(self.sim.nodes))

    def crash(self) -> None:
        name = self._leader() if self.rng.random() < 0.4 else self._name()
        self.sim.crash(name)
        self.sim.at(self.rng.uniform(0.01, 0.6), self.sim.restart, name)

    def crash_all(self) -> None:
        if self.rng.random() < 0.5:
            return
        for name in self.sim.nodes:
            self.sim.crash(name)
            self.sim.at(self.rng.uniform(0.01, 0.3), self.sim.restart, name)

    def _leader(self) -> str:
        node = self.sim.healed_leader(1)
        return node.name if node is not None else self._name()

    def _two(self) -> tuple[str, str] | None:
        names = list(self.sim.nodes)
        if len(names) < 2:
            return None
        a, b = self.rng.sample(names, 2)
        return a, b

    def reset(self) -> None:
        two = self._two()
        if two:
            self.sim.log("RESET", *two)
            self.sim.disconnect(*two)
            self.sim.at(self.rng.uniform(0.001, 0.1), self.sim.connect, *two)

    def cut(self) -> None:
        sim = self.sim
        name = self._name()
        others = [n for n in sim.nodes if n != name]
        if self.rng.random() < 0.4 and others:
            others = [self.rng.choice(others)]
        pairs = [sim.pair(name, other) for other in others]
        sim.log("CUT", pairs)
        for pair in pairs:
            sim.blocked.add(pair)
            sim.disconnect(*pair)

        def mend() -> None:
            for pair in pairs:
                sim.blocked.discard(pair)
                sim.connect(*pair)

        sim.at(self.rng.uniform(0.05, 0.9), mend)

    def stall(self) -> None:
        two = self._two()
        if two:
            self.sim.log("STALL", *two)
            self.sim.stalled[two] = self.sim.now + self.rng.uniform(0.03, 0.7)

    def pause(self) -> None:
        node = self.sim.nodes[self._leader() if self.rng.random() < 0.4 else self._name()]
        if not node.dead:
            self.sim.log("PAUSE", node.name)
            node.paused_until = self.sim.now + self.rng.uniform(0.03, 0.7)
            self.sim.at(node.paused_until - self.sim.now, self.sim.read_at, node)

    def slow_disk(self) -> None:
        node = self.sim.nodes[self._name()]
        node.slow_until = self.sim.now + self.rng.uniform(0.1, 0.8)

    def transfer(self) -> None:
        for gid in range(1, self.sim.scenario.groups + 1):
            node = self.sim.healed_leader(gid)
            if node is not None and node.paused_until <= self.sim.now:
                self.sim.log("TRANSFER", gid, node.name)
                node.raft.groups[gid].transfer()

    def _ail(self, rng: Rng) -> None:
        """A node that should not lead, sometimes until long after the end: the others are to find somebody who does."""
        names = list(self.sim.nodes)
        node = self.sim.nodes[names[int(rng.uniform(0, len(names)))]]
        self.sim.log("AIL", node.name)
        self.sim.stats["ailments"] += 1
        node.ill_until = self.sim.now + (1e9 if rng.uniform(0, 1) < 0.3 else rng.uniform(0.05, 1.5))

    def corrupt(self) -> None:
        """Bit rot in what the victim has written, found at its next start."""
        sim = self.sim
        node = sim.nodes[self.victim]
        sim.crash(self.victim)
        number, size = self._vouched_for(node.disk)
        segments = [n for n in node.disk.segments() if len(node.disk.load(n)) > records.SEGMENT_HEAD_BYTES]
        if segments and self.rng.random() < 0.2:
            newest = segments[-1]
            left = self.rng.randrange(records.SEGMENT_HEAD_BYTES, len(node.disk.load(newest)) + 1)
            sim.log("CUT SHORT", self.victim, newest, left)
            sim.stats["cut-short"] += 1
            node.disk.cut(newest, left)
        elif size and self.rng.random() < 0.7:
            at = self.rng.randrange(size)
            sim.log("CORRUPT", self.victim, number, at)
            sim.stats["corruptions"] += 1
            noise = bytes(self.rng.randrange(256) for _ in range(self.rng.choice((1, 16, 200))))
            node.disk.corrupt(number, at, noise[: size - at])
        sim.at(self.rng.uniform(0.01, 0.2), sim.restart, self.victim)

    def _vouched_for(self, disk: JournalDisk) -> tuple[int, int]:
        """(segment, bytes) that a later batch proves to have been durable. Rot in the very last batch looks like a
        torn write and nobody can tell; the journal keeps that window short with its commit hints."""
        numbers = disk.segments()
        if not numbers:
            return 0, 0
        number = self.rng.choice(numbers)
        data = disk.load(number)
        head = records.read_segment_head(data, number)
        if head is None:
            return 0, 0
        seed = records.salt(number, head.nonce)
        starts = [records.SEGMENT_HEAD_BYTES]
        while (batch := records.read_batch(data, starts[-1], seed)) is not None:
            starts.append(batch.end)
        later = [n for n in numbers if n > number and self._has_batch(disk, n)]
        if later:
            return number, starts[-1]
        return (number, starts[-2]) if len(starts) > 2 else (0, 0)

    @staticmethod
    def _has_batch(disk: JournalDisk, number: int) -> bool:
        data = disk.load(number)
        head = records.read_segment_head(data, number)
        if head is None:
            return False
        return records.read_batch(data, records.SEGMENT_HEAD_BYTES, records.salt(number, head.nonce)) is not None

    def fill(self) -> None:
        node = self.sim.nodes[self._name()]
        self.sim.log("DISK FULL", node.name)
        self.sim.stats["disk-full"] += 1
        node.disk.capacity = node.disk.used()

        def free() -> None:
            node.disk.capacity = 1 << 40

        self.sim.at(self.rng.uniform(0.05, 0.5), free)

    def lose_state(self) -> None:
        """The victim's state machine starts empty (a memory stream, a deleted store) while its log goes on."""
        sim = self.sim
        node = sim.nodes[self.victim]
        if not sim.may_lose_state(self.victim):
            return
        sim.state_lost = True
        sim.crash(self.victim)
        for store in node.stores.values():
            store.entries, store.index, store.term = [], 0, 0
        sim.log("STATE LOST", self.victim)
        sim.at(self.rng.uniform(0.01, 0.2), sim.restart, self.victim)

    def rebuild(self) -> None:
        """The victim's owner distrusts its state and has it replaced."""
        node = self.sim.nodes[self.victim]
        if node.dead or node.paused_until > self.sim.now:
            return
        for gid, group in node.raft.groups.items():
            if len(group.peers) > 2:
                self.sim.log("REBUILD", self.victim, gid)
                self.sim.stats["rebuilds"] += 1
                group.suspend()

    def heal(self) -> None:
        sim = self.sim
        sim.log("HEAL")
        sim.blocked.clear()
        sim.stalled.clear()
        for node in sim.nodes.values():
            node.paused_until = 0.0
            node.slow_until = 0.0
            node.disk.capacity = 1 << 40
            sim.restart(node.name)
        names = list(sim.nodes)
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                sim.connect(a, b)
