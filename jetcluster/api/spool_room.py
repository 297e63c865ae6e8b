"""`SpoolClaim`: the bytes that a restore sets aside, which take the room of what is stored.

Of an account all restores on this node together set aside no more than the account may still store when each of them
begins, and all restores of the node no more than the node may still store.
"""

from __future__ import annotations

from jetcluster import errors
from jetcluster.api.request import ApiContext
from jetcluster.errors import by_code
from jetcluster.meta.state import Assignment


class SpoolClaim:
    """The bytes of one restore."""

    def __init__(self, context: ApiContext, account: str, assignment: Assignment) -> None:
        self._context = context
        self._account = account
        self._assignment = assignment
        self._aside = context.restore_room.aside
        self._size = 0
        self._room: int | None = None
        """Bytes that the account had left, -1 for no limit; None before that was asked."""

    async def add(self, size: int) -> None:
        """Claims bytes more. Raises ApiError, as for a message that finds no room, and then claims none."""
        if self._room is None:
            self._room = await self._left()
        if 0 <= self._room < self._aside[self._account] + size:
            raise by_code(errors.ACCOUNT_FULL)
        if self._aside.total() + size > self._context.spool_bytes():
            raise by_code(errors.INSUFFICIENT_RESOURCES)
        self._aside[self._account] += size
        self._size += size

    def end(self) -> None:
        """Gives everything back."""
        self._aside[self._account] -= self._size
        self._size = 0
        if not self._aside[self._account]:
            del self._aside[self._account]

    async def _left(self) -> int:
        """Bytes of the stream's storage that the account may still store, over all replicas; -1 for no limit."""
        replicas, memory = self._assignment.replicas, self._assignment.config["storage"] == "memory"
        limits = self._context.own_limits(self._account)
        found = limits.of(replicas)
        limit = found.max_memory if memory else found.max_storage
        if limit < 0:
            return -1
        if found.replicas:
            limit *= found.replicas
            used = (await self._context.cluster.used_by_tier(self._account)).get(replicas, (0, 0, 0))
        else:
            used = await self._context.cluster.used(self._account)
        return max(0, limit - used[0 if memory else 1])
