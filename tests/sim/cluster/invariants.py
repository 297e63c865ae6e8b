"""Rules that hold at every moment on every node, whatever the clients do: looked at while a run goes on.

It reads what the nodes hold in memory and changes nothing. A replica's hash covers all commands it has applied and what
they came to, so that two with the same hash at one index hold the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from jetcluster.cluster.store_care import PASSING
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.raft.api import META_GROUP, Role
from jetcluster.replica.proposals import MAX_WAITING
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.machine import DATA, Machine
from tests.sim.cluster.awaited import forgotten

EVERY = 1.0
"""Seconds between two looks."""
HELD = 4_096
"""Acknowledgements of one group that wait for its disk."""
JOBS = 8_192
"""Jobs of unknown length that wait on one node (docs/limits.md)."""
OVERDUE = 2.0
"""Seconds after its time within which a batch is given up."""
KEPT = 5.0
"""Seconds within which a segment goes that nobody needs: journals look once a second."""
LOOKED_AT = 32
"""Messages of a consumer at each look."""
ERRORS = ("callback_errors", "malformed", "oversize")
"""Counters of a mesh that stay at 0."""
DIVERGED = "a replica drifted apart from its leader"


class Replica(NamedTuple):
    """One group on one node that runs."""

    machine: Machine
    cluster: str
    group: Any
    """`jetcluster.raft.core.group.Group`."""
    stream: Any
    """`StreamReplica`; None for the meta group."""

    @property
    def gid(self) -> int:
        return int(self.group.gid)

    @property
    def where(self) -> str:
        name = "the meta group" if self.stream is None else f"stream {self.stream.assignment.name}"
        return f"{self.machine.name}, {name} ({self.gid})"

    @property
    def lasting(self) -> bool:
        """Its log outlives the power: it is no memory stream's, and no single copy that damage may cut short."""
        return bool(self.group.log.durable) and len(self.group.log.config.electorate) > 1


def jetstream_of(machine: Machine) -> Any:
    """`jetcluster.cluster.jetstream.JetStream` of what runs there; None where nothing does, or not yet."""
    node = machine.node
    if node is None or not machine.ready or node.jetstream is None:
        return None
    return node.jetstream.jetstream


def newest_meta(deployment: Deployment) -> Any:
    """`jetcluster.meta.machine.MetaMachine` of the running server that knows most of the meta log."""
    found = [jetstream_of(machine) for machine in deployment.running]
    return max((one.meta.machine for one in found if one is not None), key=lambda meta: meta.applied_index)


def assignment_of(deployment: Deployment, stream: str) -> Any:
    """`jetcluster.meta.state.Assignment` of a stream whose name no other account has."""
    (assignment,) = [one for one in newest_meta(deployment).all_assignments() if one.name == stream]
    return assignment


def replicas(deployment: Deployment) -> Iterator[Replica]:
    """Every group of every node that runs."""
    for name, machine in deployment.machines.items():
        jetstream = jetstream_of(machine)
        if jetstream is None:
            continue
        cluster = deployment.servers[name].cluster or name
        for gid, group in jetstream.network.raft.groups.items():
            stream = jetstream.replicas.get(gid)
            if gid == META_GROUP or stream is not None:
                yield Replica(machine, cluster, group, stream)


class Invariants:
    """`begin` has everything looked at from then on; what is broken is raised as Violation from the scheduler."""

    def __init__(self, deployment: Deployment) -> None:
        self.looks = 0
        self._deployment = deployment
        self._leaders: dict[tuple[str, int, int], str] = {}
        """(cluster, group, term) -> who led."""
        self._commits: dict[tuple[str, int], tuple[object, int]] = {}
        """(machine, group) -> (the object of that process, its commit index)."""
        self._hashes: dict[tuple[str, int, int], tuple[bytes, str]] = {}
        """(cluster, group, index) -> (hash, where it was seen first)."""
        self._emptied: dict[str, tuple[object, set[str]]] = {}
        """Machine -> (the object of that process, who is being emptied by what it knows)."""
        self._divergences: dict[tuple[str, int], tuple[object, int]] = {}
        """(machine, group) of one that was made to drift -> the object of that process, and how often it found so."""
        self._unacked: dict[tuple[str, int, int, int], tuple[object, set[int], set[int]]] = {}
        """(machine, group, consumer, epoch) -> (the object of that process, what was there and waited for its ack, and
        what waited, was gone, and had been there)."""
        self._allowed: dict[tuple[str, int, int], tuple[int, int]] = {}
        """(machine, group, consumer) -> (its max_ack_pending, the most that may wait for an ack)."""
        self._late: dict[tuple[str, int], set[bytes]] = {}
        """(machine, group) -> open batches that were overdue at the last look."""
        self._idle: dict[tuple[str, int], tuple[object, int]] = {}
        """(machine, group) of one that has no leader and looks for none -> (the object of that process, `looks`)."""
        self._unneeded: dict[str, tuple[object, int, float]] = {}
        """Machine -> (its journal, the oldest segment, of which nobody has anything; since when)."""

    def begin(self) -> None:
        self.look()
        self._deployment.scheduler.after(EVERY, self.begin)

    def look(self) -> None:
        self.looks += 1
        for replica in replicas(self._deployment):
            self._one_leader(replica)
            self._commit(replica)
            self._looks_for_a_leader(replica)
            self._same_state(replica)
            self._sound(replica)
            self._group_bounds(replica)
        self._gone_with_their_drift()
        self._deployment.vows.look()
        for machine in self._deployment.machines.values():
            self._node_bounds(machine)
            self._still_emptied(machine)
            self._founders(machine)

    # ---- Raft

    def _one_leader(self, replica: Replica) -> None:
        group = replica.group
        if group.role is not Role.LEADER or not replica.lasting:
            return  # votes are synced also where entries wait
        me = replica.machine.name
        led = self._leaders.setdefault((replica.cluster, replica.gid, group.term), me)
        self._require(led == me, f"{replica.where}: leads term {group.term}, as {led} did")

    def _commit(self, replica: Replica) -> None:
        group, key = replica.group, (replica.machine.name, replica.gid)
        before, commit = self._commits.get(key, (group, 0))
        now = group.commit_index
        if before is group and not self._may_be_taken(group):
            self._require(now >= commit, f"{replica.where}: its commit index went back from {commit} to {now}")
        self._commits[key] = group, now
        applied, stored = group.applied_index, group.log.last_index
        self._require(applied <= now, f"{replica.where}: applied {applied}, and only {now} is committed")
        self._require(now <= stored, f"{replica.where}: {now} is committed, and it has {stored}")
        self._require(
            group.log.written_index <= stored, f"{replica.where}: {group.log.written_index} is stored, of {stored}"
        )

    def _looks_for_a_leader(self, replica: Replica) -> None:
        """A replica that may campaign and knows no leader has an election ahead, a turn later at most."""
        group, key = replica.group, (replica.machine.name, replica.gid)
        due = group.election.at is not None or group.leader is not None or not group.may_campaign()
        if due or replica.machine.paused:
            self._idle.pop(key, None)
            return
        before, look = self._idle.setdefault(key, (group, self.looks))
        if before is not group:
            self._idle[key] = group, self.looks
        self._require(before is not group or look == self.looks, f"{replica.where}: it looks for no leader")

    def _same_state(self, replica: Replica) -> None:
        """Compares with the hashes that other replicas had at the same indexes, now or earlier."""
        if not self._lasts(replica):
            return
        drifted, own = self._deployment.drifted, (replica.machine.name, replica.gid)
        for index, digest in self._told(replica):
            if own in drifted:  # until it has what the others have, after that was noticed or a kill took the change
                known, _ = self._hashes.get((replica.cluster, replica.gid, index), (b"", ""))
                if known != digest or index <= drifted[own] or not replica.stream.sound:
                    continue
                del drifted[own]
                self._divergences[own] = replica.stream, replica.stream.divergences
            known, where = self._hashes.setdefault(
                (replica.cluster, replica.gid, index), (digest, f"{replica.machine.name} at {self._now:.3f}")
            )
            self._require(known == digest, f"{replica.where}: at index {index} not what {where} had")

    def _gone_with_their_drift(self) -> None:
        """A stream may move away from where its replica has drifted: with that, the change is gone. A server that knows
        all assignments has nothing of such a group any more, in its journal neither."""
        drifted = self._deployment.drifted
        for name, gid in list(drifted):
            jetstream = jetstream_of(self._deployment.machines[name])
            if jetstream is not None and jetstream.known.current:
                raft = jetstream.network.raft
                if gid not in raft.groups and gid not in raft.journal.groups:
                    del drifted[name, gid]

    def _told(self, replica: Replica) -> list[tuple[int, bytes]]:
        if replica.stream is None:
            jetstream = jetstream_of(replica.machine)
            machine = jetstream.meta.machine
            return [(machine.applied_index, machine.digest.encode())]
        if replica.stream.installing:
            return []
        return list(replica.stream.checkpoints.newest_ones())

    def _sound(self, replica: Replica) -> None:
        fault = replica.group.fault
        self._require(fault is None or _of_the_disk(replica), f"{replica.where}: apply raised {fault!r}")
        if replica.stream is not None and self._lasts(replica):
            key, divergences = (replica.machine.name, replica.gid), replica.stream.divergences
            if key in self._deployment.drifted:
                self._divergences[key] = replica.stream, divergences
            stream, allowed = self._divergences.get(key, (None, 0))
            allowed = allowed if stream is replica.stream else 0
            self._require(divergences <= allowed, f"{replica.where}: {DIVERGED}")

    def _lasts(self, replica: Replica) -> bool:
        return replica.lasting and not (self._deployment.relaxed and self._deployment.power_failures)

    def _may_be_taken(self, group: Any) -> bool:
        """A loss of power may take committed entries of a log that is not synced for each of them: a replica that kept
        more than the majority that goes on takes its leader's state (docs/health/disks.md)."""
        return bool(group.log.may_lose(group.commit_index) and self._deployment.power_failures)

    def _still_emptied(self, machine: Machine) -> None:
        """A server that is being emptied is so until it is removed, or somebody asks to use it again."""
        jetstream = jetstream_of(machine)
        if jetstream is None:
            return
        nodes = jetstream.meta.machine.nodes
        before, emptied = self._emptied.get(machine.name, (jetstream, set()))
        now = {peer for peer, node in nodes.items() if node.draining}
        lost = (emptied & nodes.keys()) - now - self._deployment.put_back
        self._require(before is not jetstream or not lost, f"{machine.name}: {lost} is not emptied any more")
        self._emptied[machine.name] = jetstream, now

    def _founders(self, machine: Machine) -> None:
        """Only a server that has had a replica since the group began may take an empty log for the group's: one that
        has left is none, also when it comes back. Two who may, and know nothing, would found the group once more."""
        jetstream = jetstream_of(machine)
        for assignment in jetstream.meta.machine.all_assignments() if jetstream is not None else ():
            gone = set(assignment.founders).difference(assignment.peers)
            what = f"{gone} may found the stream {assignment.name} of {assignment.peers} again"
            self._require(not gone, f"{machine.name}: {what}")

    # ---- bounds

    def _group_bounds(self, replica: Replica) -> None:
        group, limits = replica.group, replica.group.config
        where = replica.where
        most = limits.max_uncommitted + limits.max_entry
        self._within(where, "bytes of proposals", group.uncommitted, most)
        self._within(where, "acknowledgements held back", len(group.held.frames), HELD)
        self._answers_are_awaited(replica)
        if replica.stream is None:
            return
        stream = replica.stream
        waiting = stream.proposals._waiting
        self._within(where, "requests that wait for their command", len(waiting), MAX_WAITING)
        if group.role is not Role.LEADER and not group.stopped:
            # A job that the command began goes on under the next leader, and its end is told here as well.
            left = [at for at, answer in waiting.items() if not (answer.done() or stream.machine.has_job(at))]
            self._require(not left, f"{where}: it leads no more, and requests wait for its commands {left}")
            # The command at which a leader came upon damage was left unanswered, and its replica has another state now.
            kept = [] if replica.machine.damaged_data else list(stream.ingest.proposed)
            self._require(not kept, f"{where}: it leads no more, and publishes wait for its commands {kept}")
        self._consumers(replica)
        self._batches_end(replica)

    def _batches_end(self, replica: Replica) -> None:
        """A batch that nobody goes on with is given up in time, and its place with it, also where nothing else
        happens."""
        now = jetstream_of(replica.machine).runtime.clock.monotonic()
        opened = attrgetter("ingest.batches.stage._open")(replica.stream)
        late = {batch for batch, one in opened.items() if now - one.deadline > OVERDUE}
        key, machine = (replica.machine.name, replica.gid), replica.machine
        slow = machine.paused or machine.clock.slowness != machine.usual_slowness
        before = set() if slow else self._late.get(key, set())
        self._late[key] = late
        self._require(not late & before, f"{replica.where}: batches {late & before} are open, and their time is over")

    def _answers_are_awaited(self, replica: Replica) -> None:
        """A leader knows of each follower that it has everything that was sent, or waits for its answer: else it sends
        that once more only when there is more to send."""
        for flow in replica.group.flows.values():
            what = forgotten(flow)
            self._require(not what, f"{replica.where}: {what}")

    def _consumers(self, replica: Replica) -> None:
        """None has more pending than it may, and what is gone waits for no ack."""
        stream, where = replica.stream, replica.where
        own = replica.machine.name, replica.gid
        whole = not (stream.installing or stream.rejected or replica.group.fault or own in self._deployment.drifted)
        for state in stream.consumers.table.by_cid.values():
            self._pending(state, own, where)
            some = list(islice(state.unacked.entries, LOOKED_AT if whole else 0))
            there = set(filter(stream.store.contains, some))
            key = replica.machine.name, replica.gid, state.cid, state.epoch
            process, before, suspected = self._unacked.get(key, (None, set(), set()))
            # An owner that is behind delivers what was removed already, and takes it back once it knows: also a message
            # that had been delivered before, so that a second look has to find it.
            missing = {seq for seq in some if seq not in there and process is stream}
            gone = sorted(missing & suspected)
            self._unacked[key] = stream, there, missing & (before | suspected)
            self._require(not gone, f"{where}: {gone} wait for an ack of {state.name}, and are not there")

    def _pending(self, state: ConsumerState, own: tuple[str, int], where: str) -> None:
        """An update to fewer does not take back what is out: it may only become less."""
        most, count = state.rules.max_ack_pending, len(state.unacked)
        if not state.rules.acks or not most:
            return
        of, allowed = self._allowed.get((*own, state.cid), (0, 0))
        if of != most or count <= most:
            allowed = max(most, count if of != most else 0)
        self._allowed[*own, state.cid] = most, allowed
        self._within(f"{where}, {state.name}", "messages not acknowledged", count, allowed)

    def _node_bounds(self, machine: Machine) -> None:
        jetstream = jetstream_of(machine)
        if jetstream is None:
            return
        raft, mesh = jetstream.network.raft, jetstream.network.mesh
        journal = raft.journal
        most = journal.options.max_queued_bytes + raft.config.max_entry
        self._within(machine.name, "bytes that wait for the journal", journal.queued_bytes, most)
        excused = {"malformed": self._deployment.strangers.get(machine.name, 0)}
        broken = {what: n for what in ERRORS if (n := getattr(mesh.counters, what)) > excused.get(what, 0)}
        self._require(not broken, f"{machine.name}: its mesh counts {broken}")
        for link in mesh.links.values():
            most = mesh.options.max_pending + mesh.max_frame
            self._within(machine.name, f"bytes for {link.peer_id}", link._pending, most)
        self._nothing_waits_for_nobody(machine.name, mesh)
        self._segments_go(machine, journal)
        jobs = sum(map(len, jetstream.runtime.budget._waiting.values()))
        self._within(machine.name, "jobs that wait for the loop", jobs, JOBS)
        early = raft._early
        self._within(machine.name, "early frames", early.bytes, raft.config.early_bytes)

    def _nothing_waits_for_nobody(self, name: str, mesh: Any) -> None:
        """A whole frame is taken at once, and a call to a server that has gone is answered at once: one that waits is
        slow, and fails no client."""
        for link in mesh.links.values():
            chunks, have, need = attrgetter("_reader._chunks", "_reader._have", "_reader._need")(link)
            self._require(not chunks or have < need, f"{name}: a whole frame of {link.peer_id} waits for more")
        for peer, answer in attrgetter("_rpc._waiting")(mesh).values():
            told = answer.done() or peer in mesh.links
            self._require(told, f"{name}: a call waits for {peer}, to which there is no link any more")

    def _segments_go(self, machine: Machine, journal: Any) -> None:
        """The oldest segment goes within a second, once no log has an entry in it and every group has told its state
        anew."""
        retention, logs, now = journal.retention, journal.groups.values(), self._now
        oldest = retention.oldest
        held = any(first <= oldest for first in (log.first_segment() for log in logs) if first is not None)
        needed = held or oldest >= min(journal.restatement.complete, journal.newest_segment) or journal.failed
        excused = machine.paused or machine.disk.hung or machine.clock.slowness != machine.usual_slowness
        process, before, since = self._unneeded.get(machine.name, (None, 0, 0.0))
        if needed or excused or before != oldest or process is not journal:
            self._unneeded[machine.name] = journal, (0 if needed else oldest), now
            return
        what = f"segment {oldest} is kept for {now - since:.1f} s, of which nobody has anything"
        self._require(now - since < KEPT, f"{machine.name}: {what}")

    def _within(self, where: str, what: str, number: int, most: int) -> None:
        self._require(number <= most, f"{where}: {number} {what}, {most} at most")

    # ----

    @property
    def _now(self) -> float:
        return self._deployment.scheduler.now

    def _require(self, is_so: bool, what: str) -> None:
        if not is_so:
            raise Violation(f"at {self._now:.3f}: {what}")


def _of_the_disk(replica: Replica) -> bool:
    """A replica may stop whose disk fails under a command: its server starts again once the disk takes writes
    (docs/health/disks.md, `cluster/store_care.py`). That it does is judged when all is over (`liveness`)."""
    return isinstance(replica.group.fault, PASSING) and replica.machine.disk_troubled(DATA)
