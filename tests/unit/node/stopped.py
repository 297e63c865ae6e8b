"""Stores of servers that are stopped, made without any server: a journal, a data store, an identity."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jetcluster.cluster.meta_replica import STATE_KEY
from jetcluster.consumer.state.table import ConsumerTable
from jetcluster.mesh.identity import NodeIdentity, load_identity, save_identity
from jetcluster.meta.machine import MetaMachine
from jetcluster.model.stream import StreamConfig
from jetcluster.raft.api import META_GROUP
from jetcluster.raft.codec import NOOP, REGULAR
from jetcluster.raft.config import JournalOptions
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.journal.of_files import file_journal
from jetcluster.raft.membership import Config
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.log import commands
from jetcluster.stream.rules import StreamRules
from testkit.twins.time import SeededRng

LIMITS = {"max_streams": -1, "max_memory": -1, "max_storage": -1}
SMALL = JournalOptions(segment_bytes=1 << 20, reserve_bytes=0)
SECOND = 10**9
START = 1_700_000_000 * SECOND
PER_COMMAND = 2


def wire(name: str, replicas: int) -> dict[str, Any]:
    return StreamConfig(name=name, subjects=[name.lower()], num_replicas=replicas).normalised().to_wire()


class Stopped:
    """Stores `n1`, `n2`, ... of one cluster, and its streams in account A. `fill` puts a replica into a store."""

    def __init__(self, root: Path, count: int = 3) -> None:
        self.root = root
        self.ids: dict[str, NodeIdentity] = {}
        self.meta: list[bytes] = []
        self.gids: dict[str, int] = {}
        for at in range(1, count + 1):
            name = f"n{at}"
            directory = self.folder(name)
            directory.mkdir(parents=True)
            identity = load_identity(directory, name, guarded=("journal", "data"), rng=SeededRng(at))
            self.ids[name] = replace(identity, cluster="c1", member=True)
            save_identity(directory, self.ids[name])
        for name, identity in self.ids.items():
            self._meta("node", peer=identity.peer_id, name=name, tags=[], jetstream=True)

    def folder(self, name: str) -> Path:
        return self.root / name / "jetstream"

    def peer(self, name: str) -> str:
        return self.ids[name].peer_id

    def peers(self) -> list[str]:
        return [identity.peer_id for identity in self.ids.values()]

    def _meta(self, kind: str, **body: Any) -> None:
        self.meta.append(json.dumps({"kind": kind, "request": f"r{len(self.meta)}", **body}).encode())

    def stream(self, name: str, *on: str) -> None:
        peers = [self.peer(node) for node in on]
        self.gids[name] = META_GROUP + 1 + len(self.gids)
        self._meta(
            "stream_create", account="A", config=wire(name, len(on)), peers=peers, leader=peers[0], created=START,
            limits=LIMITS,
        )  # fmt: skip

    def commands(self, stream: str, count: int, replicas: int = 3) -> list[bytes]:
        """The configuration, and `count` publishes of `PER_COMMAND` messages, a second apart."""
        found = [commands.encode_update_config(START, wire(stream, replicas), 1)]
        for at in range(count):
            payloads = [b"%d-%d" % (at, n) for n in range(PER_COMMAND)]
            batch = Batch.encode([stream.lower().encode()] * PER_COMMAND, [b""] * PER_COMMAND, payloads)
            found.append(commands.encode_publish(START + at * SECOND, batch))
        return found

    def compact(self, journal: Journal, stream: str, index: int) -> None:
        """The log of the stream forgets what is up to `index`, as if the state were flushed there."""
        log = journal.groups[self.gids[stream]]
        log.compactable = index
        log.compact(index)

    def fill(
        self, node: str, replicas: dict[str, tuple[int, int]], *, after: Callable[[Journal], None] = lambda j: None
    ) -> None:
        """`replicas`: stream -> (entries in the log, those of them that the data store had applied). Index 1 is a no-op
        of term 1, all else is of term 1 too. `after` may do what it wants with the journal."""
        directory = self.folder(node)

        def write(journal: Journal) -> Iterator[None]:
            log = journal.create(META_GROUP, Config(tuple(self.peers())), durable=True)
            log.set_term(1, self.peers()[0])
            for command in self.meta:
                log.append(REGULAR, 1, command)
            yield
            log.set_commit_hint(log.last_index)
            yield
            for stream, (entries, _) in replicas.items():
                log = journal.create(self.gids[stream], Config(self._voters(stream)), durable=True)
                log.set_term(1, self._voters(stream)[0])
                log.append(NOOP, 1, b"")
                for command in self.commands(stream, entries - 2)[: entries - 1]:
                    log.append(REGULAR, 1, command)
                    yield
                    log.set_commit_hint(log.last_index - 1)
            yield
            after(journal)

        in_journal(directory, write)
        kv = RocksKv(directory / "data")
        for stream, (entries, applied) in replicas.items():
            rules = StreamRules.from_config(wire(stream, 3))
            store = BlockStore(kv, self.gids[stream], memory=False)
            machine = StreamMachine(stream, rules, store, ConsumerTable(store))
            for index, command in enumerate(self.commands(stream, entries)[: max(applied - 1, 0)], 2):
                machine.apply(index, 1, command)
        meta = MetaMachine()
        meta.apply(1, 1, self.meta[0])  # the rest is in the journal
        kv.put(STATE_KEY, (1).to_bytes(8, "little") + meta.snapshot())
        kv.commit()
        kv.flush_now()
        kv.close()

    def _voters(self, stream: str) -> tuple[str, ...]:
        machine = MetaMachine()
        for index, command in enumerate(self.meta, 1):
            machine.apply(index, 1, command)
        found = machine.by_gid(self.gids[stream])
        assert found is not None
        return found.peers

    def folders(self, *names: str) -> Sequence[Path]:
        return [self.folder(name) for name in names or self.ids]


def in_journal(directory: Path, change: Callable[[Journal], Iterator[None]]) -> None:
    """Opens the journal as a server would and has it changed; every `yield` ends a batch."""

    async def write() -> None:
        journal = file_journal(directory / "journal", asyncio.get_running_loop(), SeededRng(3), SMALL)
        moved = asyncio.Event()
        journal.serve(lambda logs: moved.set())
        journal.open()
        for _ in change(journal):
            while any(log.durable_gseq < log.gseq for log in journal.groups.values()):
                await moved.wait()
                moved.clear()
        journal.close()

    asyncio.run(write())


def hurt(directory: Path, gid: int, index: int) -> None:
    """A bit of the group's entry `index` flips on the disk."""
    from jetcluster.raft.journal.inspection import ReadDisk, read_journal

    view = read_journal(directory / "journal").groups[gid]
    place = view.found.entries[index]
    path = ReadDisk(directory / "journal")._path(place.segment)
    with path.open("r+b") as file:
        file.seek(place.offset)
        (byte,) = file.read(1)
        file.seek(place.offset)
        file.write(bytes([byte ^ 64]))
