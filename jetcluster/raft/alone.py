"""A replica that nobody in its group can heal, since by what is left of its log nobody else ever had a vote.

The journal has lost something of a group of one. The entries by which others became voters may be what is lost, and
those may lead the group, and commit, without this replica. What the meta group says is no proof either: while a stream
shrinks to one replica its assignment names that one from the first moment on, and the others vote until the leader has
taken them out, or for as long as they do not hear of it. So only the others' word counts (`cluster.lone_replicas`): a
replica with other voters in its log brings this one up, as any that is damaged; where no other node has one there is
nobody to whom this replica could break a promise.
"""

from __future__ import annotations

from jetcluster.raft.grouplog import GroupLog
from jetcluster.raft.membership import Config


def is_lone(me: str, config: Config, *, damaged: bool, joining: bool) -> bool:
    """`config`: the newest of what is left of the log. A replica that is being added was promised the group's content,
    and has to get it from the others: it never goes on with what it has."""
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
