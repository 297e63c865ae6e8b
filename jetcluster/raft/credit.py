"""`Credit`: how far what a replica knows to be committed may rest on entries that were not on a disk yet.

A voter with a sync interval acknowledges what it has written, and a loss of power takes it back. So what a loss of
power may take from a group is not decided by what this node does: an entry that is on its own disk, and counted
together with such an acknowledgement, is lost all the same where the voters that go on do not have it. Every member has
to know that, or one that has kept more than the others would never follow their leader (`Receiver._refuse`).

Nodes tell each other in the greeting of a link how they sync. While one voter is known to acknowledge on credit, all of
the log counts as such (`GroupLog.credit`), also after a restart. When all voters are known to wait for their disks,
what there is by then does so still, until an entry behind it is committed: a voter that waits for its disk has on it
all that is before what it acknowledges, whoever wrote that, and in whatever life. A voter of which nothing is known, as
it is away or of a version that does not tell, changes nothing. So in a cluster where nobody ever had a sync interval no
log is on credit, and nobody gives up what it knows to be committed.

Counting only what is on disks while one voter waits for its own would be another way: then two servers with an interval
would let every publish wait for it while it is taken out one by one, and what was counted before would still be lost.
"""

from __future__ import annotations

from jetcluster.raft.group_state import GroupState
from jetcluster.raft.grouplog import ALL


class Credit:
    """The credit of one group's log."""

    def __init__(self, state: GroupState) -> None:
        self._state = state

    def look(self, heard: int) -> None:
        """Voters, or what is known of them, or the commit index, may be others than before. `heard`: the most that a
        leader said is committed."""
        state, log = self._state, self._state.log
        if not log.durable:
            return  # on credit by itself (`GroupLog.relaxed`)
        waits = {self._waits(peer) for peer in log.config.electorate}
        if False in waits:
            log.set_credit(ALL)
        elif None not in waits and log.credit == ALL:
            log.set_credit(max(heard, state.engine.commit, log.last_index))
        elif None not in waits and log.credit < state.engine.commit:
            log.set_credit(0)

    def _waits(self, peer: str) -> bool | None:
        """It waits for its disk before it acknowledges; None while that is not known."""
        if peer == self._state.me:
            return self._state.node.journal.options.sync_interval is None
        return self._state.node.peers.waits_for_disk(peer)
