"""`jetcluster rescue` as a program of a simulated machine whose server is stopped: what it writes into the journals
(`jetcluster.node.rescue_store`), by the functions that write it there. Of what the command reads before, to advise
whoever runs it, only how it reads a journal is part of this: it must find there what a start of the server finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from jetcluster.cluster import rescue_record
from jetcluster.cluster.rescue_record import RescueRecord
from jetcluster.consumer.state.table import ConsumerTable
from jetcluster.meta.state import Assignment
from jetcluster.node.node_jetstream import MARK_NAME
from jetcluster.raft.journal.disk import FileDisk, FileMark
from jetcluster.raft.journal.inspection import JournalView, has_sealed, read_journal
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.rescue import take_over
from jetcluster.sealing.keyring import Keyring
from jetcluster.sealing.segments import Segments
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.rules import StreamRules
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.machine import DATA, JOURNAL, Machine, SimPlatform
from testkit.twins.encryption import seal_of
from testkit.twins.time import SeededRng

WRITTEN = 30.0
"""Seconds within which a disk without faults has what is written."""


class Standing(NamedTuple):
    """A replica in the journal and in the data store of a machine that is off."""

    peer: str
    term: int
    end: tuple[int, int]
    """(term, index) of the newest entry."""
    applied: tuple[int, int]
    """(index, term) of its state."""


async def keep(deployment: Deployment, machine: Machine, assignment: Assignment) -> Standing:
    """Makes the replica there the whole stream; returns what it was before. What the command writes down of it is there
    before, and so is the record of a rescue that was begun and not carried out."""
    found: list[Standing] = []
    files = machine.disk.files
    for number in (assignment.rescue + 1, assignment.rescue + 99):
        record = RescueRecord(
            assignment.account, assignment.name, assignment.gid, number, 0, "somebody", machine.peer_id,
            tuple(assignment.peers), "all", ("what others had",),
        )  # fmt: skip
        rescue_record.add(Path(DATA).parent, record, files)

    def change(journal: Journal, applied: tuple[int, int]) -> None:
        log = journal.groups[assignment.gid]
        found.append(Standing(machine.peer_id, log.term, (log.last_term, log.last_index), applied))
        take_over(log, machine.peer_id, log.term, *applied, number=assignment.rescue + 1)

    await _write(deployment, machine, assignment, change)
    return found[0]


def untold(machine: Machine) -> list[int]:
    """The rescues that the server there has not told of."""
    found = rescue_record.read(Path(DATA).parent, machine.disk.files)
    return [record.number for record in found if not record.told]


async def give_up(deployment: Deployment, machine: Machine, assignment: Assignment) -> None:
    """Marks the replica there as one that votes no more."""

    def change(journal: Journal, applied: tuple[int, int]) -> None:
        log = journal.groups.get(assignment.gid)
        if log is not None and not log.damaged:
            log.mark_damaged()

    await _write(deployment, machine, assignment, change)
    deployment.vows.marked(machine, assignment.gid)


async def _write(
    deployment: Deployment, machine: Machine, assignment: Assignment, change: Callable[[Journal, tuple[int, int]], None]
) -> None:
    """Runs a process that changes the journal, and ends. Raises Violation where it cannot."""
    done: list[BaseException | None] = []
    loop = machine.begin()
    platform = SimPlatform(machine, SeededRng(deployment.rng.getrandbits(64)))

    async def program() -> None:
        try:
            keyring = _unlock(platform, deployment.servers[machine.name].secrets)
            applied = _applied(platform, assignment, keyring)
            await _changed(platform, machine.peer_id, keyring, lambda journal: change(journal, applied))
        except Exception as error:
            done.append(error)
        else:
            done.append(None)

    machine.run(program())
    end = deployment.scheduler.now + WRITTEN
    while not done and deployment.scheduler.now < end:
        await asyncio.sleep(0.05)
    if not done or done[0] is not None:
        raise Violation(f"the journal of {machine.name} is not written: {done}")
    assert machine.loop is loop
    machine.kill()


def _unlock(platform: SimPlatform, secrets: Sequence[str]) -> Keyring | None:
    """The keys of the store; None for one that is not encrypted."""
    if not secrets:
        return None
    return Keyring.unlock(Path(DATA).parent, secrets[0], secrets[-1], platform.files, platform.rng)


def _applied(platform: SimPlatform, assignment: Assignment, keyring: Keyring | None) -> tuple[int, int]:
    kv = platform.open_store(Path(DATA), seal=None if keyring is None else seal_of(keyring, platform.rng))
    try:
        rules = StreamRules.from_config(assignment.config)
        store = BlockStore(kv, assignment.gid, memory=rules.memory)
        stream = StreamMachine(assignment.name, rules, store, ConsumerTable(store))
        return stream.applied_index, stream.applied_term
    finally:
        kv.close()


async def _changed(
    platform: SimPlatform, peer: str, keyring: Keyring | None, change: Callable[[Journal], None]
) -> None:
    directory, loop = Path(JOURNAL), asyncio.get_running_loop()
    failures: list[BaseException] = []
    mark = FileMark(directory.with_name(MARK_NAME), peer, platform.files)
    keys = None if keyring is None else Segments(keyring, platform.rng)
    journal = Journal(
        FileDisk(directory, files=platform.files), platform.open_writer(loop), loop, platform.rng,
        platform.journal_options(directory, None), failures.append, mark, keys=keys,
    )  # fmt: skip
    journal.serve(lambda logs: None)
    try:
        journal.open()
        _inspect(platform, journal, read_journal(directory, mark.read(), keys, platform.files), sealed=keys is not None)
        change(journal)
        wanted = {log: log.gseq for log in journal.groups.values()}
        while not failures and any(log.durable_gseq < gseq for log, gseq in wanted.items()):
            await asyncio.sleep(0.01)
    finally:
        journal.close()
    if failures:
        raise failures[0]


def _inspect(platform: SimPlatform, journal: Journal, view: JournalView, *, sealed: bool) -> None:
    """Raises Violation where the journal, read as it is, has other logs than the one that was opened."""
    if has_sealed(Path(JOURNAL), platform.files) and not sealed:
        raise Violation("a journal that is read without a key has segments that are sealed")
    for gid, log in journal.groups.items():
        seen = view.groups[gid]
        term = seen.term_at(log.last_index)
        entries = [(one.at, one.term) for one in seen.entries_after(log.base_index)]
        there = [(at, log.term_at(at)) for at in range(log.base_index + 1, log.last_index + 1)]
        if (term, seen.last_term, seen.config, entries) != (log.last_term, log.last_term, log.config, there):
            raise Violation(f"group {gid} is read as {entries} by {seen.config}, and is {there} by {log.config}")
