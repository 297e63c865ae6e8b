"""The faults of a run, and their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jetcluster.clock import Rng
from jetcluster.raft.journal import records
from testkit.twins.journal import JournalDisk
from testkit.twins.time import SeededRng

if TYPE_CHECKING:
    from tests.sim.world import World


class Nemesis:
    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.victim = "A" if world.scenario.voters < 2 else world.rng.choice(list(world.nodes))
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
        self._ailments = SeededRng(world.seed) if world.seed % 2 == 0 else None
        """Draws of ailments, in half of the runs; apart from the other draws, which stay as they are."""
        self.actions = [table[name] for name in world.scenario.faults]
        self.actions += [self.crash_all] if self.rng.random() < 0.5 else []
        if world.scenario.spares:
            self.actions += [world.admin] * 4
        if world.scenario.corrupt:
            self.actions += [self.corrupt]
        if world.scenario.disk_full:
            self.actions += [self.fill]
        if world.scenario.lose_state:
            self.actions += [self.lose_state]
        if world.scenario.rebuild:
            self.actions += [self.rebuild]

    def strike(self) -> None:
        world = self.world
        if world.healed:
            return
        world.at(self.rng.expovariate(1 / world.scenario.fault_every), self.strike)
        if self._ailments is not None and self._ailments.uniform(0, 1) < 0.2:
            self._ail(self._ailments)
        self.rng.choice(self.actions)()

    def _name(self) -> str:
        return self.rng.choice(list(self.world.nodes))

    def crash(self) -> None:
        name = self._leader() if self.rng.random() < 0.4 else self._name()
        self.world.crash(name)
        self.world.at(self.rng.uniform(0.01, 0.6), self.world.restart, name)

    def crash_all(self) -> None:
        if self.rng.random() < 0.5:
            return
        for name in self.world.nodes:
            self.world.crash(name)
            self.world.at(self.rng.uniform(0.01, 0.3), self.world.restart, name)

    def _leader(self) -> str:
        node = self.world.healed_leader(1)
        return node.name if node is not None else self._name()

    def _two(self) -> tuple[str, str] | None:
        names = list(self.world.nodes)
        if len(names) < 2:
            return None
        a, b = self.rng.sample(names, 2)
        return a, b

    def reset(self) -> None:
        two = self._two()
        if two:
            self.world.log("RESET", *two)
            self.world.disconnect(*two)
            self.world.at(self.rng.uniform(0.001, 0.1), self.world.connect, *two)

    def cut(self) -> None:
        world = self.world
        name = self._name()
        others = [n for n in world.nodes if n != name]
        if self.rng.random() < 0.4 and others:
            others = [self.rng.choice(others)]
        pairs = [world.pair(name, other) for other in others]
        world.log("CUT", pairs)
        for pair in pairs:
            world.blocked.add(pair)
            world.disconnect(*pair)

        def mend() -> None:
            for pair in pairs:
                world.blocked.discard(pair)
                world.connect(*pair)

        world.at(self.rng.uniform(0.05, 0.9), mend)

    def stall(self) -> None:
        two = self._two()
        if two:
            self.world.log("STALL", *two)
            self.world.stalled[two] = self.world.now + self.rng.uniform(0.03, 0.7)

    def pause(self) -> None:
        node = self.world.nodes[self._leader() if self.rng.random() < 0.4 else self._name()]
        if not node.dead:
            self.world.log("PAUSE", node.name)
            node.paused_until = self.world.now + self.rng.uniform(0.03, 0.7)

    def slow_disk(self) -> None:
        node = self.world.nodes[self._name()]
        node.slow_until = self.world.now + self.rng.uniform(0.1, 0.8)

    def transfer(self) -> None:
        for gid in range(1, self.world.scenario.groups + 1):
            node = self.world.healed_leader(gid)
            if node is not None and node.paused_until <= self.world.now:
                self.world.log("TRANSFER", gid, node.name)
                node.raft.groups[gid].transfer()

    def _ail(self, rng: Rng) -> None:
        """A node that should not lead, sometimes until long after the end: the others are to find somebody who does."""
        names = list(self.world.nodes)
        node = self.world.nodes[names[int(rng.uniform(0, len(names)))]]
        self.world.log("AIL", node.name)
        self.world.stats["ailments"] += 1
        node.ill_until = self.world.now + (1e9 if rng.uniform(0, 1) < 0.3 else rng.uniform(0.05, 1.5))

    def corrupt(self) -> None:
        """Bit rot in what the victim has written, found at its next start."""
        world = self.world
        node = world.nodes[self.victim]
        world.crash(self.victim)
        number, size = self._vouched_for(node.disk)
        segments = [n for n in node.disk.segments() if len(node.disk.load(n)) > records.SEGMENT_HEAD_BYTES]
        if segments and self.rng.random() < 0.2:
            newest = segments[-1]
            left = self.rng.randrange(records.SEGMENT_HEAD_BYTES, len(node.disk.load(newest)) + 1)
            world.log("CUT SHORT", self.victim, newest, left)
            world.stats["cut-short"] += 1
            node.disk.cut(newest, left)
        elif size and self.rng.random() < 0.7:
            at = self.rng.randrange(size)
            world.log("CORRUPT", self.victim, number, at)
            world.stats["corruptions"] += 1
            noise = bytes(self.rng.randrange(256) for _ in range(self.rng.choice((1, 16, 200))))
            node.disk.corrupt(number, at, noise[: size - at])
        world.at(self.rng.uniform(0.01, 0.2), world.restart, self.victim)

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
        node = self.world.nodes[self._name()]
        self.world.log("DISK FULL", node.name)
        self.world.stats["disk-full"] += 1
        node.disk.capacity = node.disk.used()

        def free() -> None:
            node.disk.capacity = 1 << 40

        self.world.at(self.rng.uniform(0.05, 0.5), free)

    def lose_state(self) -> None:
        """The victim's state machine starts empty (a memory stream, a deleted store) while its log goes on."""
        world = self.world
        node = world.nodes[self.victim]
        if not world.may_lose_state(self.victim):
            return
        world.state_lost = True
        world.crash(self.victim)
        for store in node.stores.values():
            store.entries, store.index, store.term = [], 0, 0
        world.log("STATE LOST", self.victim)
        world.at(self.rng.uniform(0.01, 0.2), world.restart, self.victim)

    def rebuild(self) -> None:
        """The victim's owner distrusts its state and has it replaced."""
        node = self.world.nodes[self.victim]
        if node.dead or node.paused_until > self.world.now:
            return
        for gid, group in node.raft.groups.items():
            if len(group.peers) > 2:
                self.world.log("REBUILD", self.victim, gid)
                self.world.stats["rebuilds"] += 1
                group.suspend()

    def heal(self) -> None:
        world = self.world
        world.log("HEAL")
        world.blocked.clear()
        world.stalled.clear()
        for node in world.nodes.values():
            node.paused_until = 0.0
            node.slow_until = 0.0
            node.disk.capacity = 1 << 40
            world.restart(node.name)
        names = list(world.nodes)
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                world.connect(a, b)
