"""This node's replica of the meta group: Raft, persistence and effects around the pure `MetaMachine`.

The state is small, so it is written whole, and only right before a flush: what a crash loses is applied again from the
journal. Stream data may be newer than the meta state on disk, as each group is consistent with its own applied index.

An unreadable state on disk is given up, and the group continues with that of another node. A missing state is treated
the same way: the journal records whether there was one, and a renewed store marks it. The state is not rebuilt from the
log, even where the log reaches back, because entries about streams that have left this node would be carried out again.
It is rebuilt only where no other node has the group, and so none could be misled.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection
from typing import Any

from jetcluster.logs import Log
from jetcluster.mesh.api import MeshError
from jetcluster.meta.machine import MetaMachine
from jetcluster.meta.state import Effect
from jetcluster.raft.api import META_GROUP, NotLeaderError, RaftGroup, Role
from jetcluster.raft.membership import Config, Members, MembersError, decode_members, encode_members
from jetcluster.replica.exports import Cut
from jetcluster.replica.proposals import Proposals, resolver
from jetcluster.replica.services import Network
from jetcluster.replica.turn_commit import TurnCommit
from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KeyValue, KvDamagedError, MemRecords, MemSnapshot
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.transfer import RANGE_BYTES, Giver, Taker

STATE_KEY, MEMBERS_KEY = b"\x00meta", b"\x00members"
"""Kind 0 of `store.keys`: the node's own records. MEMBERS: the configuration at the applied index or a later one."""
LOST_KEY = b"\x00lost"
"""Marks a store that was renewed without the meta group's state (`node.data_renewal`), until there is one."""
_TERM = struct.Struct("<Q")

PROPOSE_SECONDS = 4.0
CONFIRM_SECONDS = 2.0
_NO_STREAM = 0
"""Stream id under which the state travels as records; no stream has it."""


def read_state(kv: RocksKv, machine: MetaMachine) -> int:
    """Restores `machine` from the store; returns the newest command's term, or 0. Raises ValueError and KvError."""
    stored = kv.get(STATE_KEY)
    if stored is None:
        return 0
    if len(stored) < _TERM.size:
        raise ValueError("damaged meta snapshot: it is cut short")
    (term,) = _TERM.unpack_from(stored)
    machine.restore(stored[_TERM.size :])
    return int(term)


class MetaReplica:
    """`raft.api.StateMachine` and `SnapshotOwner` of the meta group."""

    def __init__(
        self,
        network: Network,
        commits: TurnCommit,
        machine: MetaMachine,
        log: Log,
        on_effects: Callable[[list[Effect]], None],
        on_leading: Callable[[bool], None],
        on_config: Callable[[], None] = lambda: None,
        may_vote: Callable[[str, Collection[str]], bool] = lambda peer, voters: True,
    ) -> None:
        """`on_config` is called when the members change; `may_vote`: see `MetaVoters`. Raises ValueError and KvError
        for an irreplaceable state."""
        self._on_config, self._may_vote = on_config, may_vote
        self._network, self._commits, self._log = network, commits, log
        self.machine = machine
        self.group: RaftGroup | None = None
        self._on_effects = on_effects
        self._on_leading = on_leading
        self._proposals = Proposals()
        self._import = MemRecords()
        self._state_lost = False
        """True when the state was unreadable or missing when the process started."""
        self._fetched = False
        """True when the state must be fetched before anything is applied."""
        self.applied_term = self._read_state()
        self._saved_index = self.machine.applied_index

    def _read_state(self) -> int:
        try:
            return self._stored()
        except (ValueError, KvDamagedError) as error:
            log = self._log
            alone = self._network.raft.is_alone(META_GROUP, clustered=bool(self._network.cluster_name))
            if not alone:
                text = "the state of the meta group is damaged or lost; it is fetched from another server"
                log.error(text, error=str(error))  # noqa: TRY400
            elif self._network.raft.holds_all(META_GROUP):
                text = "the state of the meta group is damaged or lost; it is made anew from the journal"
                log.error(text, error=str(error))  # noqa: TRY400
            else:
                text = f"{error}; no other server has it, and the journal no longer holds all that led there"
                raise ValueError(f"{text}: put the store back from a backup") from error
            self._state_lost = True
            self._fetched = not alone
            return 0

    def _stored(self) -> int:
        """As `read_state`; raises ValueError also for a state that is missing."""
        term = read_state(self._commits.kv, self.machine)
        if not self.machine.applied_index and self.had_state():
            raise ValueError("there is none, and there was one")
        return term

    def had_state(self) -> bool:
        """True when there must be a stored state; before the first flush the log has everything."""
        raft = self._network.raft
        return raft.was_kept(META_GROUP) or (raft.knows(META_GROUP) and self._commits.kv.get(LOST_KEY) is not None)

    def start(self, peers: tuple[str, ...]) -> None:
        """Creates or continues the group. `peers` count only where the journal has no record of it."""
        self._network.raft.create_group(
            META_GROUP,
            peers,
            self,
            applied_index=self.machine.applied_index,
            applied_term=self.applied_term,
            durable=True,
            campaign=peers == (self._network.me,),
            attach=self._attach,
            members=self._members(),
            sole=peers == (self._network.me,),
            may_vote=self._may_vote,
        )

    def stop(self) -> None:
        """Ends all waits for proposals."""
        self._proposals.dropped(0)

    def _attach(self, group: RaftGroup) -> None:
        self.group = group
        if self._fetched:
            group.suspend()

    @property
    def leading(self) -> bool:
        return self.group is not None and self.group.role is Role.LEADER and self.group.ready

    async def propose(self, command: bytes) -> dict[str, Any]:
        """Returns the result of `MetaMachine.apply`. Raises RaftError and OutcomeUnknownError."""
        if self.group is None:
            raise NotLeaderError(None)
        result: dict[str, Any] = await self._proposals.propose(self.group, command, PROPOSE_SECONDS)
        return result

    async def barrier(self) -> None:
        """Returns once this node is proven to lead and has applied all earlier commits. Raises NotLeaderError."""
        if self.group is None:
            raise NotLeaderError(None)
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.group.read_index(resolver(future))
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                confirmed = await future
        except TimeoutError:  # a leader by its own view, which can prove or apply nothing
            confirmed = False
        if not confirmed:
            raise NotLeaderError(None)

    def save(self) -> None:
        """Puts a changed state into the open write batch; called before every flush."""
        if self.machine.applied_index != self._saved_index:
            self._commits.kv.put(STATE_KEY, _TERM.pack(self.applied_term) + self.machine.snapshot())
            if self._state_lost:
                self._commits.kv.delete(LOST_KEY)
            self._saved_index = self.machine.applied_index

    # ---- raft.api.StateMachine

    def apply(self, index: int, term: int, command: bytes) -> None:
        result, effects = self.machine.apply(index, term, command)
        self.applied_term = term
        self._proposals.applied(index, result)
        if effects:
            self._on_effects(effects)

    def on_role(self, role: Role, term: int, leader: str | None) -> None:
        if role is Role.LEADER:
            self._network.leaders.lead(META_GROUP, term)
        else:
            self._network.leaders.follow(META_GROUP, term, leader)
        self._on_leading(role is Role.LEADER)

    def on_dropped(self, first_index: int) -> None:
        self._proposals.dropped(first_index)

    def on_members(self, members: Members) -> None:
        known = self._members()
        if known is None or known.config != members.config:
            self._keep_members(members)
            self._commits.mark()
            self._on_config()

    def _keep_members(self, members: Members) -> None:
        self._commits.kv.put(MEMBERS_KEY, encode_members(members))

    def _members(self) -> Members | None:
        """Returns the stored members; None also when they are unreadable: the group reports them again."""
        try:
            stored = self._commits.kv.get(MEMBERS_KEY)
            return decode_members(stored) if stored is not None else None
        except (MembersError, KvDamagedError) as error:
            text = "the members of the meta group are damaged in the store"
            self._log.error(text, error=str(error))
            return None

    def on_contradicted(self) -> None:
        """Keep using the state until the leader's replaces it."""

    def on_snapshot_needed(self, leader: str, index: int, term: int) -> None:
        if leader == self._network.me:
            self._log.error("no other node has the part of the meta log that this one lacks")
            return
        self._network.catchup.pull(META_GROUP, leader, index)

    # ---- SnapshotOwner

    @property
    def state_index(self) -> int:
        lost = self.group is not None and self.group.contradicted
        return 0 if lost else self.machine.applied_index

    @property
    def wants_state(self) -> bool:
        return self.group is not None and self.group.lacks_state

    @property
    def keeps_state(self) -> bool:
        return False  # it is complete: it was read at the start

    def export_failed(self, error: DamagedError) -> None:
        """Never called: the state is in memory."""

    def snapshot_export(self) -> Cut:
        if self.group is None or self.group.stopped:
            raise MeshError("the meta group does not run here")
        config = self.group.members_at(self.machine.applied_index)
        giver = Giver(MemSnapshot(_pieces(self.machine.snapshot())), _NO_STREAM)
        return Cut(self.machine.applied_index, self.applied_term, config, giver)

    def snapshot_fetched(self, peer: str, index: int) -> None:
        if self.group is not None:
            self.group.fetches(peer, index)

    def snapshot_begin(self) -> Taker:
        self._import = MemRecords()
        return Taker(self._import, _NO_STREAM)

    async def snapshot_room(self, size: int) -> None:
        """Needs no room: the state is received into memory."""

    async def snapshot_abandon(self) -> None:
        self._import = MemRecords()

    async def snapshot_end(self, index: int, term: int, config: Config) -> None:
        assert self.group is not None
        data, self._import = b"".join(value for _, value in self._import.snapshot().scan(b"", b"\xff")), MemRecords()
        if index < self.state_index:
            raise MeshError("the meta log was faster")
        self.group.suspend()
        effects = self.machine.restore(data)
        self.applied_term = term
        self.save()
        self._keep_members(Members(index, config))
        # In the same step as the state itself: a restart must not find a state whose effects are missing.
        self._on_effects(effects)
        await self._commits.kv.flush()
        self.group.install(index, term, config)


def _pieces(data: bytes) -> list[KeyValue]:
    prefix = keys.stream_prefix(keys.STATE, _NO_STREAM)
    places = range(0, len(data), RANGE_BYTES)
    return [(prefix + at.to_bytes(8, "big"), data[at : at + RANGE_BYTES]) for at in places]
