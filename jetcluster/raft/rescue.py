"""The rescue of a group that has lost its majority for good: a new configuration of remaining voters, or of one of
them.

Raft cannot decide this: a missing voter may be alive elsewhere, lead, and go on. So an operator decides, and the rescue
is safe as far as the missing voters are really gone (docs/membership/rescue.md):

1. **promise**: all remaining voters durably give their vote of one new term to the one with the most advanced log. The
   term is `TERM_STEP` above all that they know: no election among the missing voters reaches it by itself, and a leader
   that they elect later has a still higher term, so the two can be distinguished. A rescue that ends here has changed
   nothing but a term.
2. **force**: that voter durably appends the new configuration to its log, in that term. It is an entry like any other:
   replicas that have it count by it, and the next election makes the others adopt it. By Raft's rule for votes the most
   advanced log of the survivors holds all that any of them knows to be committed.
3. The configuration names the voters that it leaves out (`Config.fenced`). Every replica with it in its log ignores
   their frames, of any term: coming back with their old logs they could be a majority of the old configuration.

A damaged journal may be the most advanced one: it holds a prefix of its former log. Step 2 heals it, since the votes
and acks that it has lost were given to the voters that are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jetcluster.raft.api import RaftError
from jetcluster.raft.codec import CONFIG, MAX_TERM, REGULAR
from jetcluster.raft.journal.log import GroupLog
from jetcluster.raft.membership import Config, encode_config
from jetcluster.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetcluster.raft.core.group import Group
    from jetcluster.raft.journal.log import GroupLog

TERM_STEP = 1 << 20
"""Elections without a majority that the missing voters would have to hold to reach the term of a rescue."""

LEADER_KNOWN = "raft: leader is known"
"""This and the next texts are nats-server's for the same refusals (META.RESCUE, 10224)."""
BAD_QUORUM = "raft: rescue quorum must be between 1 and current quorum"
NOT_VOTING = "raft: not a voting member"
EMPTY_LOG = "raft: log is empty"


def is_lone(me: str, config: Config, *, damaged: bool, joining: bool) -> bool:
    """True for a damaged replica that no other can heal, if the rest of its log shows no other node as a voter, now or
    earlier. `config`: the newest one left in the log. A replica that is being added must get the group's content from
    the others and never goes on with its own.

    The lost entries may be those by which others became voters, and these may lead the group, and commit, without this
    replica. The meta group proves nothing either: while a stream shrinks to one replica its assignment names only that
    one from the start, and the others vote until the leader has removed them, or until they learn of it. So only the
    others' word counts (`cluster.lone_replicas`): a replica with other voters in its log heals this one like any
    damaged one; if no other node has one, this replica cannot break a promise to any."""
    return damaged and not joining and set(config.electorate) <= {me}


def go_on(log: GroupLog, me: str, applied_index: int, applied_term: int) -> str:
    """Go on with the present state and log, since no replica could restore the lost entries. Raises the log's term to
    the state's. Returns a text that names the lost entries."""
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
    if set(log.config.electorate) != {me}:  # the lost entries are those by which the others left
        term = max(log.term, log.last_term) + 1
        log.set_term(term, me)
        log.append(CONFIG, term, encode_config(replace(log.config, voters=(me,), learners=(), outgoing=())))
    if tail and not resumed:
        return f"entries {log.last_index + 1}..{tail[-1][0]} are lost"
    if tail:
        return f"nothing is lost: the state had applied what is missing of the log (before {tail[0][0]})"
    return f"entries after {log.last_index}, if there were any, are lost"


class RescueError(RaftError):
    """The group may not be rescued now."""


class ReplicaReport(NamedTuple):
    """A replica's report of itself and its group, for the planning of a rescue."""

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
        """(last term, last index): of two logs the one with the greater place is the more advanced."""
        return self.last_term, self.last_index

    @property
    def sound(self) -> bool:
        """True when the replica is neither damaged nor stopped."""
        return not (self.damaged or self.stopped)

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ReplicaReport:
        """Make a report from what `to_dict` returned. Raises KeyError, TypeError or ValueError on anything else."""
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
    """Return the report of a replica that does not run; `stopped` is the reason."""
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
    """Give the vote of `term` to `candidate`; it is durable once `promised` is true. Raises RescueError."""
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
    """Make `voters` and `learners` the group's configuration, append `command` after it, and campaign. `place`: the
    expected end of the log. Returns the index of the command: all is durable once `log.durable_index` has reached it,
    and decided once it is committed. Raises RescueError."""
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
    """Append a forced configuration to the log, and return it. `term` must not be below the log's own."""
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
    """Make one replica, whose server is stopped, the whole group, with its state and log. `term`: the highest that any
    replica is known to have reached. `applied_*`: the state machine's position, which may be ahead of a damaged log.
    `number`: see `Config.rescued`. Returns the new configuration."""
    assert applied_index >= log.base_index, "what is between the state and the log is missing"
    if log.term_at(applied_index) != applied_term:
        log.install(applied_index, applied_term, log.config)
    return append_forced(log, me, max(log.term, log.last_term, term) + TERM_STEP, (me,), number=number)


def _check_stuck(group: Group) -> None:
    if group.stopped:
        raise RescueError(f"the replica has stopped: {group.stopped}")
    if group.leader is not None or group.engine.leading:
        raise RescueError(LEADER_KNOWN)
