"""The rescue of a group whose majority will not come back: another configuration, of the voters that are left or of one
of them.

Raft cannot decide this: a missing voter may be alive elsewhere, lead, and go on. So an operator says so, and this is
what makes it safe as far as that is true (docs/membership.md, "A majority is lost"):

1. **promise**: everybody who is left gives his vote of one and the same new term to the one whose log is the most
   advanced, durably. The term is `TERM_STEP` above all that they know: no election among the missing reaches it by
   itself, and one that they win later is of a still higher term, so that the two can be told apart. A rescue that ends
   here has changed nothing but a term.
2. **force**: that one appends the new configuration to its log, in that term, durably. It is an entry like any other:
   who has it counts by it, and the next election, by its rules, makes the others take it over. By Raft's own rule for
   votes the most advanced log of the survivors holds all that any of them knows to be committed.
3. The configuration names those whom it leaves out (`Config.fenced`). Every replica that has it in its log ignores
   their frames, of any term: coming back with their old logs they can be a majority of the old configuration.

A damaged journal may be the most advanced one: what it still holds is a prefix of what it held. It is healed by 2,
since what it had promised and forgot was promised to those who are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jetcluster.raft.api import RaftError
from jetcluster.raft.codec import CONFIG, MAX_TERM, REGULAR
from jetcluster.raft.journal.log import GroupLog
from jetcluster.raft.membership import Config, encode_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetcluster.raft.core.group import Group
    from jetcluster.raft.journal.log import GroupLog

TERM_STEP = 1 << 20
"""Elections that the missing would have to hold without a majority to get as far."""

LEADER_KNOWN = "raft: leader is known"
"""These are nats-server's words for the same refusals (META.RESCUE, 10224)."""
BAD_QUORUM = "raft: rescue quorum must be between 1 and current quorum"
NOT_VOTING = "raft: not a voting member"
EMPTY_LOG = "raft: log is empty"


def is_lone(me: str, config: Config, *, damaged: bool, joining: bool) -> bool:
    """True for a replica that nobody in its group can heal, since by what is left of its log nobody else ever had a
    vote. `config`: the newest of what is left of the log. A replica that is being added was promised the group's
    content, and has to get it from the others: it never goes on with what it has.

    The journal has lost something of a group of one. The entries by which others became voters may be what is lost,
    and those may lead the group, and commit, without this replica. What the meta group says is no proof either:
    while a stream shrinks to one replica its assignment names that one from the first moment on, and the others vote
    until the leader has taken them out, or for as long as they do not hear of it. So only the others' word counts
    (`cluster.lone_replicas`): a replica with other voters in its log brings this one up, as any that is damaged;
    where no other node has one there is nobody to whom this replica could break a promise."""
    return damaged and not joining and set(config.electorate) <= {me}


def go_on(log: GroupLog, me: str, applied_index: int, applied_term: int) -> str:
    """Goes on with the state and the log that there are; nobody could restore what is lost. Returns what that is, in
    words. The log's term is raised to the state's."""
    end = log.last_index
    tail, log.tail = log.tail, []
    if me not in log.config.voters:
        log.set_members(Config((me,)))
    if applied_term > log.term:
        log.set_term(applied_term, None)
    if applied_index > end or log.term_at(applied_index) not in (None, applied_term):
        log.install(applied_index, applied_term, log.config)
    resumed = bool(tail) and tail[0][0] <= log.last_index + 1
    if resumed:
        for index, term, kind, command in tail:
            if index > log.last_index:
                log.append(kind, term, command)
    log.heal()
    if tail and not resumed:
        return f"entries {log.last_index + 1}..{tail[-1][0]} are lost"
    if tail:
        return f"nothing is lost: the state had applied what is missing of the log (before {tail[0][0]})"
    return f"entries after {log.last_index}, if there were any, are lost"


class RescueError(RaftError):
    """The group is not one that may be rescued now."""


class ReplicaReport(NamedTuple):
    """A replica's account of itself and its group, for those who want to know who is left."""

    peer: str
    gid: int
    term: int
    leader: str | None
    last_term: int
    last_index: int
    commit_index: int
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    rescue: int
    """`Config.rescue`."""
    damaged: bool
    stopped: str
    outgoing: tuple[str, ...] = ()
    """`Config.outgoing`."""

    @property
    def config(self) -> Config:
        return Config(self.voters, self.learners, outgoing=self.outgoing)

    @property
    def votes(self) -> bool:
        return self.config.has_vote(self.peer)

    @property
    def place(self) -> tuple[int, int]:
        """The place of a log: of two the one with the greater place is the more advanced."""
        return self.last_term, self.last_index

    @property
    def sound(self) -> bool:
        """It votes."""
        return not (self.damaged or self.stopped)

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ReplicaReport:
        """Raises KeyError, TypeError or ValueError on anything else than `to_dict` made."""
        fields = {name: data[name] for name in cls._fields if name != "outgoing"}
        peers = {name: tuple(data.get(name, ())) for name in ("voters", "learners", "outgoing")}
        return cls(**fields | peers)


def standing(group: Group) -> ReplicaReport:
    log = group.log
    return ReplicaReport(
        peer=group.me,
        gid=group.gid,
        term=group.term,
        leader=group.leader,
        last_term=log.last_term,
        last_index=log.last_index,
        commit_index=group.commit_index,
        voters=log.config.voters,
        learners=log.config.learners,
        rescue=log.rescues,
        damaged=log.damaged,
        stopped=group.stopped,
        outgoing=log.config.outgoing,
    )


def standing_of(log: GroupLog, me: str, stopped: str = "") -> ReplicaReport:
    """The standing of a replica that does not run: `stopped` says why it cannot."""
    return ReplicaReport(
        peer=me,
        gid=log.gid,
        term=log.term,
        leader=None,
        last_term=log.last_term,
        last_index=log.last_index,
        commit_index=log.commit_hint,
        voters=log.config.voters,
        learners=log.config.learners,
        rescue=log.rescues,
        damaged=log.damaged,
        stopped=stopped,
        outgoing=log.config.outgoing,
    )


def promise(group: Group, term: int, candidate: str) -> None:
    """Gives the vote of `term` away; `promised` says when that is durable. Raises RescueError."""
    _check_stuck(group)
    if group.term >= term:
        raise RescueError(f"term {group.term} has been reached, {term} was asked for")
    if term > MAX_TERM:
        raise RescueError(f"{term} is no term")
    group.engine.promise(term, candidate)
    group.sync()


def promised(group: Group, term: int, candidate: str) -> bool:
    log = group.log
    return (log.term, log.voted_for) == (term, candidate) and log.term_gseq <= log.durable_gseq


def force(
    group: Group, term: int, voters: tuple[str, ...], learners: tuple[str, ...], place: tuple[int, int], command: bytes
) -> int:
    """Makes `voters` and `learners` the group's configuration and has `command` follow it, then stands for election.
    `place` is where the log is believed to end. Returns the index of the command; all is durable when
    `log.durable_index` has reached it, and decided when it is committed. Raises RescueError."""
    _check_stuck(group)
    log = group.log
    if (group.term, log.voted_for) != (term, group.me):
        raise RescueError(f"term {term} was not promised to this server, or is over")
    if (log.last_term, log.last_index) != place:
        raise RescueError("the log has moved on")
    append_forced(log, group.me, term, voters, learners)
    index = log.append(REGULAR, term, command)
    group.follow_config()
    group.election.schedule(group.config.link_loss_jitter, sooner=True)
    group.mark()
    return index


def append_forced(
    log: GroupLog, me: str, term: int, voters: tuple[str, ...], learners: tuple[str, ...] = (), number: int = 0
) -> Config:
    """Puts into a log what `force` and `take_over` agree on. `term` is not below the log's own."""
    assert me in voters, "the first leader has a vote"
    assert term >= max(log.term, log.last_term), (term, log.term, log.last_term)
    if log.damaged:
        log.heal()
    if log.term < term:
        log.set_term(term, me)
    config = log.config.rescued(voters, learners, number)
    log.append(CONFIG, term, encode_config(config))
    return config


def take_over(log: GroupLog, me: str, term: int, applied_index: int, applied_term: int, number: int = 0) -> Config:
    """Offline: one replica becomes the whole group, with the state and the log that it has. `term` is the highest that
    anybody is known to have reached, `applied_*` say where the state machine stands, which may be ahead of a log that
    was damaged. `number`: see `Config.rescued`. Returns the new configuration."""
    assert applied_index >= log.base_index, "what is between the state and the log is missing"
    if log.term_at(applied_index) != applied_term:
        log.install(applied_index, applied_term, log.config)
    return append_forced(log, me, max(log.term, log.last_term, term) + TERM_STEP, (me,), number=number)


def _check_stuck(group: Group) -> None:
    if group.stopped:
        raise RescueError(f"the replica has stopped: {group.stopped}")
    if group.leader is not None or group.engine.leading:
        raise RescueError(LEADER_KNOWN)
