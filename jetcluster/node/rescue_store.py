"""Offline rescue of a stream in stopped servers' stores (`jetcluster rescue --keep`): one replica becomes the stream.

It is safe together with the servers' next start (`cluster.stream_rescue`): the kept replica is not used before the meta
group has registered it, and the meta log makes the others give up. Order of the writes, each durable before the next:

1. The record, beside the kept store (`cluster.rescue_record`): the person, the time, the possible losses.
2. The new configuration in the journal of the kept store, as one batch: from here on the stream is rescued. A crash
   before this leaves the old configuration, and the server reports that nothing has changed.
3. The mark of a damaged replica in the journals of the other given stores: those replicas no longer vote, not even
   until their servers learn of the rescue. Their data stays until then. Stores that no server starts with
   (`mesh.identity`) are not touched.

A run that ends between 2 and 3 (killed, or a store is not writable) is completed by another, which writes the marks.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from jetcluster.clock import Rng
from jetcluster.cluster import rescue_record
from jetcluster.cluster.rescue_record import RescueRecord
from jetcluster.errors import CallerError
from jetcluster.model.times import rfc3339
from jetcluster.node.node_jetstream import MARK_NAME
from jetcluster.node.part_options import journal_options
from jetcluster.node.rescue_survey import ReplicaView, StoreView, StreamView
from jetcluster.raft.journal.disk import FileMark
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.journal.of_files import file_journal
from jetcluster.raft.membership import Config, is_quorum
from jetcluster.raft.rescue import take_over

LOOK_SECONDS: Final = 0.05
"""Time between two checks whether a write waits for room on the disk."""


class RescueRefusedError(CallerError):
    """The stream needs no rescue, or the store is not the one to keep."""


@dataclass(slots=True, frozen=True)
class Choice:
    """Plan of a rescue: its steps and its cost."""

    stream: StreamView
    kept: ReplicaView
    number: int
    term: int
    """The highest term of the replicas here."""
    lost: tuple[str, ...]
    others: tuple[ReplicaView, ...]
    """Replicas that must be marked."""
    before: tuple[str, ...]
    """Voters that are given up, and the kept one."""
    from_start: bool = True
    """False when the kept replica is the stream already, and the others are not all marked."""


def choose(stream: StreamView, kept: StoreView) -> Choice:
    """Returns the plan of keeping the replica in `kept`. Raises RescueRefusedError."""
    replica = next((r for r in stream.replicas if r.store is kept), None)
    if replica is None:
        raise RescueRefusedError(f"{kept.path} holds nothing of {stream.label}")
    if replica.left_out:
        raise RescueRefusedError(f"the cluster goes on without this store: {replica.left_out}")
    if _unregistered(stream, replica):
        return _to_finish(stream, replica)
    if stream.majority:
        sound = ", ".join(r.name for r in stream.replicas if r.sound)
        raise RescueRefusedError(f"a majority of the replicas of {stream.label} is whole ({sound}): start the servers")
    if len(stream.voters) == 1 and replica.peer in stream.voters and not replica.lone:
        raise RescueRefusedError(f"{stream.label} has one replica, which goes on with what it has: start the server")
    if not replica.usable:
        raise RescueRefusedError(f"the replica of {replica.name} cannot be used: {'; '.join(replica.problems)}")
    number = max(stream.assignment.rescue, *(r.rescues for r in stream.replicas)) + 1
    term = max(max(r.log.found.term if r.log is not None else 0, r.place[0]) for r in stream.replicas)
    others = tuple(r for r in stream.replicas if r is not replica and not r.store.left_out)
    lost = tuple(what_may_be_lost(stream, replica))
    return Choice(stream, replica, number, term, lost, others, stream.voters)


def _to_finish(stream: StreamView, kept: ReplicaView) -> Choice:
    """Returns the plan of completing a run. Raises RescueRefusedError if it is complete or would not be used."""
    others = unmarked(stream, kept)
    if not others:
        raise RescueRefusedError(f"{stream.label} was rescued here already (rescue {kept.forced}): start the server")
    if whole := whole_without(stream, kept):
        raise RescueRefusedError(
            f"a majority of the replicas of {stream.label} is whole ({', '.join(whole)}): start the servers"
        )
    _, before = kept.before
    lost = tuple(what_may_be_lost(stream, kept))
    return Choice(stream, kept, kept.forced, kept.place[0], lost, others, before, from_start=False)


def _unregistered(stream: StreamView, replica: ReplicaView) -> bool:
    """True for a replica that was made the whole stream, before the meta group has registered it."""
    return replica.forced > stream.assignment.rescue


def unmarked(stream: StreamView, kept: ReplicaView) -> tuple[ReplicaView, ...]:
    """Returns the replicas here that must still give up: `kept` records their rescue, and the meta group does not."""
    if not _unregistered(stream, kept):
        return ()
    return tuple(
        other
        for other in stream.replicas
        if other.log is not None
        and other.rescues < kept.forced
        and not (other.log.found.damaged or other.store.left_out)
    )


def whole_without(stream: StreamView, kept: ReplicaView) -> list[str]:
    """Returns the names of the replicas that were a majority before the rescue of `kept`, without it: the servers then
    do not use it (`cluster.stream_rescue`). Empty where there is no such majority."""
    _, voters = kept.before
    whole = [r for r in stream.replicas if r.sound and r.rescues < kept.forced and r.peer in voters]
    return [r.name for r in whole] if is_quorum(voters, [r.peer for r in whole]) else []


def what_may_be_lost(stream: StreamView, kept: ReplicaView) -> list[str]:
    """Describes the losses if the stream continues with `kept`, the certain ones first."""
    place, missing = kept.place, stream.missing
    if _unregistered(stream, kept):
        place, voters = kept.before
        missing = stream.not_here(voters)
    term, index = place
    found = []
    for other in stream.replicas:
        if other is kept or other.place <= place:
            continue
        last_term, last = other.place
        text = f"what {other.name} has and {kept.name} does not: log entries up to {last} (term {last_term})"
        if other.state is not None and kept.state is not None and other.state.last_seq > kept.state.last_seq:
            text += f", messages {kept.state.last_seq + 1} to {other.state.last_seq}"
        found.append(text)
    if missing:
        at = rfc3339(kept.state.last_ts) if kept.state is not None and kept.state.last_ts else "the beginning"
        found.append(
            f"all that was acknowledged after entry {index} (term {term}) of {kept.name}, whose newest message is of "
            f"{at}: only {', '.join(missing)} may have had it, whose stores are not here"
        )
    found += [f"on {kept.name}: {problem}" for problem in kept.problems]
    return found


def carry_out(choice: Choice, by: str, now_ns: int, rng: Rng) -> None:
    """Writes the rescue to locked stores. Raises OSError and `rescue_record.RecordError`; another run continues."""
    kept, gid = choice.kept, choice.stream.assignment.gid
    _record(choice, by, now_ns)
    if choice.from_start:
        _write(kept.store, lambda journal: _keep(journal, choice), rng)
    else:
        _sync(kept.store.path / "journal")
    failures = []
    for other in choice.others:  # as many as possible
        try:
            _write(other.store, lambda journal: _mark(journal, gid), rng)
        except OSError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _record(choice: Choice, by: str, now_ns: int) -> None:
    stream, kept = choice.stream, choice.kept
    assignment, directory = stream.assignment, kept.store.path
    record = RescueRecord(
        assignment.account, assignment.name, assignment.gid, choice.number, now_ns, by, kept.name,
        tuple(stream.names.get(peer, peer) for peer in choice.before), describe(kept), choice.lost,
    )  # fmt: skip
    if not choice.from_start:
        same = (r for r in rescue_record.read(directory) if (r.gid, r.number) == (assignment.gid, choice.number))
        begun = next(same, None)
        if begun is not None:
            more = tuple(text for text in choice.lost if text not in begun.lost)
            if not more:
                return
            record = replace(begun, lost=begun.lost + more, told=False)
    rescue_record.add(directory, record)


def _sync(directory: Path) -> None:
    """Syncs a folder and its files, as data that was read may be in the page cache only. Raises OSError."""
    for path in (*directory.iterdir(), directory):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _keep(journal: Journal, choice: Choice) -> None:
    kept, gid = choice.kept, choice.stream.assignment.gid
    log = journal.groups.get(gid)
    if log is None:
        durable = not choice.stream.assignment.memory
        log = journal.create(gid, Config(choice.stream.voters), durable)
    take_over(log, kept.peer, choice.term, *kept.applied, number=choice.number)


def _mark(journal: Journal, gid: int) -> None:
    log = journal.groups.get(gid)
    if log is not None and not log.damaged:
        log.mark_damaged()


def _write(store: StoreView, change: Callable[[Journal], None], rng: Rng) -> None:
    """Applies `change` to the store's journal, written as a server would. Durable on return. Raises OSError."""

    async def write() -> None:
        failures: list[BaseException] = []
        moved = asyncio.Event()

        def failed(error: BaseException) -> None:
            failures.append(error)
            moved.set()

        directory, loop = store.path / "journal", asyncio.get_running_loop()
        mark = FileMark(store.path / MARK_NAME, store.identity.peer_id)
        journal = file_journal(directory, loop, rng, journal_options(directory, None), failed, mark, store.keys)
        journal.serve(lambda logs: moved.set())
        try:
            journal.open()
            change(journal)
            wanted = {log: log.gseq for log in journal.groups.values()}
            while not failures and any(log.durable_gseq < gseq for log, gseq in wanted.items()):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await moved.wait()
                moved.clear()
                if journal.stuck:  # a server would wait for room; a command reports it
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
        finally:
            journal.close()
        for failure in failures:
            raise OSError(f"{directory}: {failure}") from failure

    asyncio.run(write())


def describe(replica: ReplicaView) -> str:
    """Describes the content of a replica."""
    term, index = replica.place
    known = f"{replica.committed} known to be committed, {replica.applied[0]} in the data store"
    text = f"log to entry {index} of term {term} ({known})"
    state = replica.state
    if state is None:
        return text
    if not state.messages:
        return f"{text}, no messages, last sequence {state.last_seq}"
    return (
        f"{text}, {state.messages} messages ({state.bytes} bytes), sequences {state.first_seq} to {state.last_seq}, "
        f"the last one of {rfc3339(state.last_ts)}"
    )


def stores_to_write(choice: Choice) -> Sequence[StoreView]:
    return [choice.kept.store, *(other.store for other in choice.others)]
