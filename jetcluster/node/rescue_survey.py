"""A read-only survey of each stream's content in the stores of stopped servers, for `jetcluster rescue`.

A store is read as its server would find it at a start: the journal as recovery reads it, the data as of the last flush,
and on top of that, in memory, the later commands of the journal. The replica would continue with these figures.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jetcluster.clock import SystemRng
from jetcluster.cluster.meta_replica import read_state
from jetcluster.consumer.state.table import ConsumerTable
from jetcluster.errors import OperatorError
from jetcluster.mesh.identity import FILE_NAME, NodeIdentity, left_out_reason, read_identity
from jetcluster.meta.machine import MetaMachine
from jetcluster.meta.state import Assignment
from jetcluster.node.data_renewal import data_folder, is_plain, looks_sealed, needs_key
from jetcluster.node.node_jetstream import MARK_NAME
from jetcluster.raft.api import META_GROUP
from jetcluster.raft.codec import REGULAR
from jetcluster.raft.journal.disk import FileMark
from jetcluster.raft.journal.inspection import JournalView, LogView, read_journal
from jetcluster.raft.membership import Config
from jetcluster.raft.rescue import is_lone
from jetcluster.sealing.api import KeyringError, SegmentKeys
from jetcluster.store import keys
from jetcluster.store.api import DamagedError, StoreState
from jetcluster.store.block_store import BlockStore
from jetcluster.store.kv import KvError
from jetcluster.store.rocks_reader import RocksReader
from jetcluster.stream.apply.applier import Applier, LogEntry
from jetcluster.stream.apply.machine import StateError, StreamMachine
from jetcluster.stream.log.commands import CommandError
from jetcluster.stream.ports import NAMED_TABLES
from jetcluster.stream.rules import StreamRules

if TYPE_CHECKING:
    from jetcluster.store.seal import StoreSeal

KEY_VARIABLE: Final = "JETCLUSTER_ENCRYPTION_KEY"
"""Environment variable with the keys of encrypted stores, one a line."""
LOCK: Final = "LOCK"
"""Locked by RocksDB while a server has the store open."""


class RescueStoreError(OperatorError):
    """The folder is no readable store, or its server runs."""


@dataclass(slots=True)
class ReplicaView:
    """A replica of a stream."""

    store: StoreView
    log: LogView | None
    """None when the journal has nothing of the stream."""
    applied: tuple[int, int] = (0, 0)
    """(index, term) of the newest command in the state on disk."""
    state: StoreState | None = None
    """The state with the journal's later commands; None when it is unreadable."""
    problems: list[str] = field(default_factory=list)
    """Reasons why the replica is not sound; none for one that votes."""
    usable: bool = True
    """True when the stream can continue with it."""
    left_out: str = ""
    """Reason why its server is no longer part of the cluster; "" where it may be."""

    @property
    def peer(self) -> str:
        return self.store.identity.peer_id

    @property
    def name(self) -> str:
        return self.store.identity.name

    @property
    def sound(self) -> bool:
        """True when its server votes with it after a start."""
        return self.usable and not self.problems and not self.left_out

    @property
    def lone(self) -> bool:
        """True when its server first waits for the reports of all others (`RaftNode.in_doubt`)."""
        if self.log is None:
            return False
        found = self.log.found
        return is_lone(self.peer, self.log.config, damaged=found.damaged, joining=found.joining)

    @property
    def place(self) -> tuple[int, int]:
        """(term, index) of the newest entry or state; the greater one is more advanced."""
        end = (self.log.last_term, self.log.found.last_index) if self.log is not None else (0, 0)
        return max(end, (self.applied[1], self.applied[0]))

    @property
    def committed(self) -> int:
        """Index that is known to be committed; more may be."""
        return max(self.log.found.commit if self.log is not None else 0, self.applied[0])

    @property
    def voters(self) -> tuple[str, ...]:
        return self.log.config.electorate if self.log is not None else ()

    @property
    def rescues(self) -> int:
        return max(config.rescue for _, config in self.log.configs) if self.log is not None else 0

    @property
    def forced(self) -> int:
        """The newest rescue that kept this replica (`RaftNode.forced`)."""
        at = self._newest_rescue
        return self.rescues if at is not None and at[1].voters == (self.peer,) else 0

    @property
    def before(self) -> tuple[tuple[int, int], tuple[str, ...]]:
        """(`place`, `voters`) before its newest rescue; the present ones without a rescue."""
        at = self._newest_rescue
        if self.log is None or at is None:
            return self.place, self.voters
        index, config = at
        earlier = [old.electorate for where, old in self.log.configs if where < index]
        voters = earlier[-1] if earlier else (*config.voters, *config.fenced)
        return (self.log.term_at(index - 1) or 0, index - 1), voters

    @property
    def _newest_rescue(self) -> tuple[int, Config] | None:
        """Index and configuration of the newest rescue."""
        if self.log is None or not self.rescues:
            return None
        return next((at for at in self.log.configs if at[1].rescue == self.rescues), None)

    @property
    def rank(self) -> tuple[bool, tuple[int, int], bool]:
        """Order of replicas, of which the greatest is the best to keep."""
        return self.usable, self.place, self.sound


@dataclass(slots=True)
class StoreView:
    """One store."""

    path: Path
    """The JetStream folder."""
    identity: NodeIdentity
    journal: JournalView
    kv: RocksReader
    meta: MetaMachine
    """Empty when it is unreadable."""
    left_out: str
    """Reason why its server does not start with this store; "" when it does."""
    keys: SegmentKeys | None = None
    """Keys of an encrypted journal."""


@dataclass(slots=True)
class StreamView:
    """One stream, and its replicas here."""

    assignment: Assignment
    replicas: list[ReplicaView]
    """Replicas in the given stores."""
    names: dict[str, str]
    """Names of all nodes, by peer id."""

    @property
    def label(self) -> str:
        return f"{self.assignment.account}/{self.assignment.name}"

    @property
    def best(self) -> ReplicaView | None:
        usable = [replica for replica in self.replicas if replica.usable and not replica.left_out]
        return max(usable, key=lambda replica: replica.rank, default=None)

    @property
    def voters(self) -> tuple[str, ...]:
        """Voters, by the most advanced log here."""
        return self._config.electorate

    @property
    def _config(self) -> Config:
        known = [replica for replica in self.replicas if replica.voters]
        newest = max(known, key=lambda replica: (replica.rescues, replica.place), default=None)
        return newest.log.config if newest is not None and newest.log is not None else Config(self.assignment.peers)

    @property
    def missing(self) -> list[str]:
        """Names of the voters whose stores were not given."""
        return self.not_here(self.voters)

    def not_here(self, peers: Sequence[str]) -> list[str]:
        """Returns the names of the peers whose stores were not given."""
        here = {replica.peer for replica in self.replicas}
        return [self.names.get(peer, peer) for peer in peers if peer not in here]

    @property
    def majority(self) -> bool:
        """True when enough sound replicas are here to elect a leader."""
        return self._config.is_quorum([replica.peer for replica in self.replicas if replica.sound])


def jetstream_folder(path: Path) -> Path:
    """Returns the JetStream folder of a store directory, or the folder itself. Raises RescueStoreError."""
    for folder in (path / "jetstream", path):
        if (folder / FILE_NAME).is_file():
            return folder
    raise RescueStoreError(f"{path} is no store of a jetcluster server: it has no {FILE_NAME}")


@contextmanager
def locked(folders: Sequence[Path], *, to_write: bool) -> Iterator[None]:
    """Locks stores against the start of their servers, and against other writers. Raises RescueStoreError."""
    with ExitStack() as stack:
        for folder in folders:
            try:
                descriptor = os.open(
                    data_folder(folder) / LOCK, (os.O_RDWR if to_write else os.O_RDONLY) | os.O_CLOEXEC
                )
                stack.callback(os.close, descriptor)
                fcntl.lockf(descriptor, (fcntl.LOCK_EX if to_write else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except FileNotFoundError:
                raise RescueStoreError(f"{folder} has no data store") from None
            except OSError as error:
                raise RescueStoreError(f"{folder} is in use, its server has to be stopped ({error.strerror})") from None
        yield


@contextmanager
def opened(folders: Sequence[Path]) -> Iterator[list[StoreView]]:
    """Opens stores of one cluster for reading. Raises RescueStoreError."""
    with ExitStack() as stack:
        views = []
        for folder in folders:
            views.append(_read(folder))
            stack.callback(views[-1].kv.close)
        clusters = {view.identity.cluster for view in views if view.identity.cluster}
        if len(clusters) > 1:
            raise RescueStoreError(f"these stores are of different clusters: {', '.join(sorted(clusters))}")
        peers = [view.identity.peer_id for view in views]
        if len(set(peers)) < len(peers):
            raise RescueStoreError("one of these stores is a copy of another one")
        yield views


def _read(folder: Path) -> StoreView:
    try:
        identity = read_identity(folder)
        keys, seal = _unlock(folder) if needs_key(folder) else (None, None)
        journal = read_journal(folder / "journal", FileMark(folder / MARK_NAME, identity.peer_id).read(), keys)
        kv = _read_data(data_folder(folder), seal)
        mark = left_out_reason(folder)
    except (OperatorError, KvError, OSError) as error:
        raise RescueStoreError(f"{folder}: {error}") from error
    return StoreView(folder, identity, journal, kv, _read_meta(journal, kv), mark, keys)


def _unlock(folder: Path) -> tuple[SegmentKeys, StoreSeal]:
    """Returns the keys of an encrypted store: the first line of KEY_VARIABLE that opens it. Raises KeyringError."""
    from jetcluster.sealing.keyring import Keyring
    from jetcluster.sealing.names import HiddenNames
    from jetcluster.sealing.segments import Segments
    from jetcluster.sealing.values import Values
    from jetcluster.store.seal import StoreSeal

    rng = SystemRng()
    refused: KeyringError | None = None
    for secret in os.environ.get(KEY_VARIABLE, "").splitlines():
        if not secret:
            continue
        try:
            keyring = Keyring.unlock(folder, secret)
        except KeyringError as error:
            refused = error
        else:
            return Segments(keyring, rng), StoreSeal(Values(keyring, rng), HiddenNames(keyring.names), NAMED_TABLES)
    raise refused or KeyringError(f"the store is encrypted: give its key in the environment, as {KEY_VARIABLE}")


def _read_data(path: Path, seal: StoreSeal | None) -> RocksReader:
    """Opens the data store, by `seal` if it is sealed; see `data_renewal.looks_sealed`."""
    if seal is None or is_plain(path):
        plain = RocksReader(path)
        if seal is None or not looks_sealed(plain, seal):
            return plain
        plain.close()
    from jetcluster.store.sealed_kv import SealedReader

    return SealedReader(path, seal)


def _read_meta(journal: JournalView, kv: RocksReader) -> MetaMachine:
    """Returns the meta group's state as far as it is readable: another store may have more of it."""
    meta = MetaMachine()
    try:
        read_state(kv, meta)
    except (ValueError, KvError):
        return meta
    log = journal.groups.get(META_GROUP)
    if log is not None and meta.applied_index >= log.found.base_index:
        for entry in log.entries_after(meta.applied_index):
            if entry.kind == REGULAR:
                meta.apply(entry.at, entry.term, entry.command)
    return meta


def survey(stores: Sequence[StoreView], only: str = "", *, verify: bool = False) -> list[StreamView]:
    """Returns all streams, or the stream `account/name`, by the newest meta state among the stores. A state after a
    rescue of the meta group precedes that of a server left out, which may have continued. `verify`: each stored message
    is read and checked against its checksum. Raises RescueStoreError."""
    meta = max((store.meta for store in stores), key=_meta_rank)
    if not meta.applied_index:
        raise RescueStoreError("none of these stores says which streams there are")
    names = {**meta.removed, **{peer: node.name for peer, node in meta.nodes.items()}}
    names |= {store.identity.peer_id: store.identity.name for store in stores}
    found = []
    for assignment in meta.all_assignments():
        if only in ("", f"{assignment.account}/{assignment.name}"):
            replicas = [view for store in stores if (view := look(store, assignment, verify=verify)) is not None]
            for replica in replicas:
                replica.left_out = replica.store.left_out or _given_up(meta, replica.peer)
            found.append(StreamView(assignment, replicas, names))
    return found


def _meta_rank(meta: MetaMachine) -> tuple[int, int]:
    return meta.rescues[-1].number if meta.rescues else 0, meta.applied_index


def _given_up(meta: MetaMachine, peer: str) -> str:
    """Returns the text with which the first survivor that it meets will refuse it, before its store is marked."""
    rescue = meta.left_out.get(peer)
    return rescue.told(peer) if rescue is not None else ""


def look(store: StoreView, assignment: Assignment, *, verify: bool = False) -> ReplicaView | None:
    """Returns the replica of a stream in a store; None where the store has nothing of it."""
    gid = assignment.gid
    log = store.journal.groups.get(gid)
    view = ReplicaView(store, log)
    try:
        if log is None and store.kv.get(keys.stream_prefix(keys.STATE, gid)) is None:
            return None
        if store.kv.get(keys.stream_prefix(keys.INSTALLING, gid)) is not None:
            return _unusable(view, _half_fetched(view, assignment, verify=verify))
        _judge_log(view)
        _replay(view, assignment, verify=verify)
    except (DamagedError, KvError, StateError) as error:
        return _unusable(view, f"its records cannot be read: {error}")
    return view


def _unusable(view: ReplicaView, why: str) -> ReplicaView:
    view.problems.append(why)
    view.usable = False
    return view


def _half_fetched(view: ReplicaView, assignment: Assignment, *, verify: bool) -> str:
    """Describes a state that another replica's was replacing, record by record. It may still be the whole old state,
    which cannot be known: it is not used again, but the readable part is shown."""
    kv, mark = view.store.kv, keys.stream_prefix(keys.INSTALLING, assignment.gid)
    text = "its state was being fetched from another replica, and is in part of before and in part of that one"
    kv.delete(mark)  # in memory only
    try:
        store = BlockStore(kv, assignment.gid, memory=StreamRules.from_config(assignment.config).memory)
        for _ in store.queries.scan(b">", 1) if verify else ():
            pass
    except DamagedError:
        info = keys.INFO, assignment.gid
        blocks = sum(1 for _ in kv.scan(keys.stream_prefix(*info), keys.stream_end(*info)))
        return f"{text}: {blocks} blocks of messages are there, and do not fit together"
    finally:
        kv.put(mark, b"")
    view.state = store.state
    if not store.messages:
        return f"{text}: no messages are there"
    return f"{text}: what is there fits together" + (", and can be read" if verify else "")


def _judge_log(view: ReplicaView) -> None:
    if view.log is None:
        view.problems.append("its log is gone")
    elif view.log.found.damaged:
        view.problems.append("its journal is damaged: it does not vote")


class _Offline:
    """`stream.apply.applier.ApplierHost` of a machine that only this process reads."""

    def __init__(self, store: BlockStore, log: LogView) -> None:
        self._store = store
        self._log = log
        self.abandon = store.abandon

    def entry(self, index: int) -> LogEntry | None:
        found = next(self._log.entries_after(index - 1), None)
        if found is None or found.at != index:
            raise DamagedError(index, index)
        return (found.term, found.command) if found.kind == REGULAR else None

    def taking_back(self) -> None: ...

    def taken_back(self) -> None: ...

    def commit(self) -> None: ...

    def refused(self, index: int, command: bytes, error: Exception | None) -> None: ...

    def recovered(self, index: int, command: bytes, error: Exception) -> None: ...


def _replay(view: ReplicaView, assignment: Assignment, *, verify: bool) -> None:
    """Applies the journal's later commands to the state in memory. Raises DamagedError, KvError and StateError."""
    rules = StreamRules.from_config(assignment.config)
    store = BlockStore(view.store.kv, assignment.gid, memory=rules.memory)
    machine = StreamMachine(assignment.name, rules, store, ConsumerTable(store))
    view.applied = machine.applied_index, machine.applied_term
    log = view.log
    if log is not None and machine.applied_index < log.found.base_index:
        gap = f"its log begins after {log.found.base_index}, its state ends at {machine.applied_index}"
        _unusable(view, gap)
    elif log is not None and log.term_at(machine.applied_index) != machine.applied_term:
        view.problems.append("its log does not hold what its state does: it does not vote")
    elif log is not None:
        applier = Applier(machine, _Offline(store, log))
        for entry in log.entries_after(machine.applied_index):
            if entry.kind == REGULAR:
                try:
                    applier.apply(entry.at, entry.term, entry.command)
                except CommandError as error:
                    raise DamagedError(entry.at, entry.at) from error
    view.state = store.state
    if verify:
        for _ in store.queries.scan(b">", 1):
            pass
