"""`Runs`: requests that came together, and wait together for a leader's confirmation or for an index.

One `Read` stands for all of a run, so that a read which must wait costs little more than one which need not.
Where it matters who asks, as when there is no leader, the run becomes a `Read` for each request.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import Final

from jetcluster import native
from jetcluster.protocol.bus import BulkCallback, Callback, Origin, Outgoing
from jetcluster.records import NamedTuple
from jetcluster.replica.reads.confirm import ReadConfirmations
from jetcluster.replica.reads.waits import Read, ReadWaits, size_of

MAX_RUN: Final = 256
"""Requests of a run."""


def plain_body(payload: bytes) -> bool:
    """True for a body that is read by compiled code, and thus has no wishes."""
    return native.plain_get is not None and native.plain_get(payload) is not None


def no_body(payload: bytes) -> bool:
    return not payload


class RunKind(NamedTuple):
    """The requests that may be in a run together, and their answers."""

    plain: Callable[[bytes], bool]
    """True for a body without wishes."""
    answer: BulkCallback
    """Answers several of them."""
    one: Callback
    """Answers one."""


class Runs:
    """The runs of one membership."""

    def __init__(
        self,
        confirmations: ReadConfirmations,
        waits: ReadWaits,
        hand_on: Callable[[Outgoing], None],
        refuse: Callable[[bytes], None],
        refuse_more: Callable[[bytes], None],
        trusted: Callable[[], bool],
    ) -> None:
        """`hand_on` lets another replica answer a request. `refuse` refuses to its reply subject, `refuse_more` because
        too much waits. `trusted`: this replica may be read."""
        self._confirmations, self._waits, self._trusted = confirmations, waits, trusted
        self._hand_on, self._refuse, self._refuse_more = hand_on, refuse, refuse_more
        self._gathered: dict[tuple[Origin, RunKind], list[Outgoing]] = {}
        """Requests of this turn of the loop that came one by one, by who sent them."""

    def gather(self, request: Outgoing, origin: Origin, kind: RunKind, *, strict: bool) -> bool:
        """Do `hold` for a request without headers and others of its origin that come in this turn; False for one that
        is not plain."""
        if not kind.plain(request[3]):
            return False
        key = origin, kind
        if (run := self._gathered.get(key)) is not None:
            run.append(request)
        else:
            self._gathered[key] = [request]
            asyncio.get_running_loop().call_soon(self._hold_gathered, key, strict)
        return True

    def clear(self) -> None:
        """Hand on what was gathered."""
        gathered, self._gathered = self._gathered, {}
        for run in gathered.values():
            for request in run:
                self._hand_on(request)

    def _hold_gathered(self, key: tuple[Origin, RunKind], strict: bool) -> None:
        requests, (origin, kind) = self._gathered.pop(key, []), key
        for place in range(0, len(requests), MAX_RUN):
            self._take(requests[place : place + MAX_RUN], origin, kind, strict)

    def hold(
        self, messages: Sequence[Outgoing], origin: Origin, kind: RunKind, *, strict: bool = False, index: int = 0
    ) -> int:
        """Answer the first requests, if they are plain, once a leader has confirmed, or `index` is applied if there is
        one. Returns how many are taken: 0 where they are better taken alone. They have no headers. `strict`: see
        `ReadConfirmations.hold`."""
        run = list(takewhile(lambda request: kind.plain(request[3]), islice(messages, MAX_RUN)))
        if len(run) < 2:
            return 0
        self._take(run, origin, kind, strict, index)
        return len(run)

    def _take(self, run: list[Outgoing], origin: Origin, kind: RunKind, strict: bool, index: int = 0) -> None:
        waits = self._waits if index else self._confirmations.waits

        def answer_some() -> None:
            """Answer as many as at once, by their bytes, and the others in later turns."""
            nonlocal run
            run = run[kind.answer(run, origin) :]
            if run and not self._trusted():
                give_up()
            elif run:
                read.reply, read.count, read.size = run[0][1], len(run), sum(map(size_of, run))
                waits.resume(read)

        def give_up() -> None:
            for request in run:
                self._hand_on(request)

        def refuse() -> None:
            for request in run:
                self._refuse(request[1])

        def parts() -> list[Read]:
            return [self._part(request, origin, kind.one) for request in run]

        size = sum(map(size_of, run))
        read = Read(
            origin, run[0][1], answer_some, give_up, refuse, strict=strict, parts=parts, count=len(run), size=size
        )
        if not (waits.take(index, read) if index else self._confirmations.take(read)):
            for _, reply, _, _ in run:
                self._refuse_more(reply)

    def _part(self, request: Outgoing, origin: Origin, one: Callback) -> Read:
        """One request of a run."""
        answer = functools.partial(one, *request, origin)
        hand_on = functools.partial(self._hand_on, request)
        refuse = functools.partial(self._refuse, request[1])
        return Read(origin, request[1], answer, hand_on, refuse, size=size_of(request))
