"""`ReplicaLoad`: what this server says of its replicas, when it is asked for its load (`cluster.load`)."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

from jetcluster.replica.members import MAX_ENTRIES_BEHIND, carried_without

if TYPE_CHECKING:
    from jetcluster.meta.placement import PlacementRules
    from jetcluster.replica.stream_replica import StreamReplica

MARGIN_PART: Final = 10
"""One part in so many of a server's capacity stays free: streams grow while replicas move."""


class ReplicaLoad:
    """The sum over the replicas that were added. One that leaves, and waits for its deletion, counts for nothing."""

    def __init__(self) -> None:
        self.stored: Counter[str] = Counter()
        """Bytes by storage ("file", "memory")."""
        self.amiss = 0
        """Replicas that are damaged, being installed, disputed or behind, or know no leader; of those that lead, the
        ones that another voter does not keep up with."""

    def add(self, replica: StreamReplica) -> None:
        if not replica.retiring:
            self.stored[str(replica.assignment.config["storage"])] += replica.store.byte_count
            self.amiss += is_amiss(replica)

    def free(self, rules: PlacementRules, disk_free: int, disk_size: int) -> dict[str, int]:
        """Returns by storage the bytes that another replica may take, less a margin. `disk_free`, `disk_size`: of the
        file system; a size of 0 is an unknown one."""
        stored, limit = self.stored["file"], rules.max_storage
        room = disk_free if disk_size else sys.maxsize
        capacity = min(limit, stored + room)
        memory = rules.max_memory - self.stored["memory"]
        return {
            "file": capacity - stored - capacity // MARGIN_PART,
            "memory": memory - rules.max_memory // MARGIN_PART,
        }


def is_amiss(replica: StreamReplica) -> bool:
    """Returns whether a copy somewhere else has to wait, because this replica or one that follows it is not current."""
    group = replica.group
    if group.leader is None or not replica.trusted:
        return True
    if replica.leading:
        voters, carried = carried_without(group, replica.network.me)
        return len(carried) < len(voters)
    return group.applied_index + MAX_ENTRIES_BEHIND < group.told_index
