"""`Runs`: requests that came together, and wait together for a leader's confirmation.

One `Read` stands for all of a run, so that a read which must be confirmed costs little more than one which need not.
Where it matters who asks, as when there is no leader, the run becomes a `Read` for each request.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import Final

from jetcluster import native
from jetcluster.protocol.bus import BulkCallback, Callback, Origin, Outgoing
from jetcluster.replica.reads.confirm import Read, ReadConfirmations

MAX_RUN: Final = 256
"""Requests of a run."""


def plain_body(payload: bytes) -> bool:
    """True for a body that is read by compiled code, and thus has no wishes."""
    return native.plain_get is not None and native.plain_get(payload) is not None


def no_body(payload: bytes) -> bool:
    return not payload


class Runs:
    """The runs of one membership."""

    def __init__(
        self,
        confirmations: ReadConfirmations,
        hand_on: Callable[[Outgoing], None],
        refuse: Callable[[bytes], None],
        trusted: Callable[[], bool],
    ) -> None:
        """`hand_on` lets another replica answer a request, `refuse` refuses to its reply subject. `trusted`: this
        replica may be read."""
        self._confirmations, self._trusted = confirmations, trusted
        self._hand_on, self._refuse = hand_on, refuse

    def hold(
        self,
        messages: Sequence[Outgoing],
        origin: Origin,
        plain: Callable[[bytes], bool],
        answer: BulkCallback,
        one: Callback,
        *,
        strict: bool,
    ) -> int:
        """Answer the first requests with bodies that are `plain` once a leader has confirmed; `answer`, `one`: answers
        several of them or one. Returns how many are taken: 0 where they are better taken alone. They have no headers.
        `strict`: see `ReadConfirmations.hold`."""
        run = list(takewhile(lambda request: plain(request[3]), islice(messages, MAX_RUN)))
        if (count := len(run)) < 2:
            return 0

        def answer_some() -> None:
            """Answer as many as at once, by their bytes, and the others in later turns."""
            nonlocal run
            run = run[answer(run, origin) :]
            if run and not self._trusted():
                give_up()
            elif run:
                read.reply, read.count = run[0][1], len(run)
                self._confirmations.resume(read)

        def give_up() -> None:
            for request in run:
                self._hand_on(request)

        def refuse() -> None:
            for request in run:
                self._refuse(request[1])

        def parts() -> list[Read]:
            return [self._part(request, origin, one) for request in run]

        read = Read(origin, run[0][1], answer_some, give_up, refuse, strict=strict, parts=parts, count=count)
        self._confirmations.take(read)
        return count

    def _part(self, request: Outgoing, origin: Origin, one: Callback) -> Read:
        """One request of a run."""
        answer = functools.partial(one, *request, origin)
        hand_on = functools.partial(self._hand_on, request)
        return Read(origin, request[1], answer, hand_on, functools.partial(self._refuse, request[1]))
