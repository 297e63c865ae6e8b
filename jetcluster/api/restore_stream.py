"""The stream that a restore makes, as its receiver asks for it: it may be deleted meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from jetcluster import errors
from jetcluster.api import streams
from jetcluster.api.request import ApiContext
from jetcluster.cancelling import cancelled
from jetcluster.errors import ApiError, by_code
from jetcluster.meta.state import Assignment

Fields = dict[str, Any]
T = TypeVar("T")

LOOK_SECONDS: Final = 0.25
"""Time between two looks whether the stream is there, while its leader does not answer."""


class RestoreStream:
    """Requests about `assignment` of the account's stream. All raise ApiError, 10062 once the stream was deleted: the
    question for a leader that it has not any more would end in 10008, upon which clients try again."""

    def __init__(self, context: ApiContext, account: str, assignment: Assignment) -> None:
        self._context = context
        self._account = account
        self._assignment = assignment
        self._known = False
        """True once this node's replica of the meta group had the stream."""

    def check(self) -> None:
        """Raises ApiError 10062 when the stream was deleted."""
        found = self._context.cluster.assignment(self._account, self._assignment.name)
        if found is not None and found.gid == self._assignment.gid:
            self._known = True
        elif self._known:
            raise deleted()

    async def ready(self, as_of: Assignment | None = None) -> Fields:
        """Returns the leader's answer once it knows the assignment, or the newer one `as_of`."""
        return await self._unless_deleted(streams.ready(self._context, as_of or self._assignment))

    async def ask(self, kind: str, body: Fields) -> Fields:
        return await self._unless_deleted(self._context.cluster.stream_request(self._assignment, kind, body))

    async def _unless_deleted(self, asking: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(asking)
        try:
            self.check()
            while not task.done():
                await asyncio.wait((task,), timeout=LOOK_SECONDS)
                self.check()
            return task.result()
        finally:
            await cancelled((task,))


def deleted() -> ApiError:
    return by_code(errors.RESTORE_FAILED, err="the stream was deleted meanwhile")
