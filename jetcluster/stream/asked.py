"""`Asked`: requests that must not be carried out twice, and what came of them.

Who asks a leader that dies does not know whether its request was carried out, and asks the next one. A purge that is
carried out twice takes messages that were stored and acknowledged after the first time. So a requester gives the
request a number, the same whenever it asks again; it is in the command (`commands.NAMED`), and a number that was seen
is answered with what came of it. A row beside the messages, part of every copy of the state:

    u64 index of the command, or of the one that ended its job (big-endian)
        ->   u64 number | u64 time | i64 outcome | u8 open    (little-endian)

Only what was carried out is kept: a refused request may be carried out when it comes again, it has done nothing yet.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from jetcluster.errors import DiskError
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.ports import SIDE_ASKED, JobStep, Result

MOST: Final = 1024
"""Ended requests that are kept; a repetition comes within seconds."""

_KEY: Final = struct.Struct(">Q")
_ROW: Final = struct.Struct("<QQqB")


class AskedError(DiskError):
    """A stored row is of another version or cut off."""


class Outcome(NamedTuple):
    at: int
    """Index of the command; when it has ended, of the one that ended it."""
    ts: int
    """Time of the same command."""
    result: int
    """0 while it is open."""
    open: bool
    """It goes on as a job (`jobs`)."""


class Asked:
    def __init__(self, store: BlockStore) -> None:
        """Continues where the store stands. Raises AskedError."""
        self._store = store
        self._ended: dict[int, Outcome] = {}
        """By number, oldest first."""
        self._open: dict[int, Outcome] = {}
        """At most as many as there are jobs."""
        for key, row in store.side_scan(SIDE_ASKED):
            if len(key) != _KEY.size or len(row) != _ROW.size:
                raise AskedError(f"request of {len(row)} bytes")
            request, ts, result, is_open = _ROW.unpack(row)
            outcome = Outcome(_KEY.unpack(key)[0], ts, result, bool(is_open))
            (self._open if is_open else self._ended)[request] = outcome

    def __len__(self) -> int:
        return len(self._ended) + len(self._open)

    def get(self, request: int) -> Outcome | None:
        return self._ended.get(request) or self._open.get(request)

    def may_have_forgotten(self, since: int) -> bool:
        """True when a request that ended at or after time `since` may not be known any more."""
        return len(self._ended) >= MOST and next(iter(self._ended.values())).ts >= since

    def note(self, index: int, ts: int, request: int, result: Result) -> None:
        """A command was applied that carried the request out, or began to."""
        if isinstance(result, int):
            self._end(request, Outcome(index, ts, result, False))
        elif isinstance(result, JobStep):
            outcome = self._open[request] = Outcome(index, ts, 0, True)
            self._put(request, outcome)

    def job_done(self, index: int, ts: int, step: JobStep) -> None:
        """The command at `index` has ended a job, which may be that of a request."""
        for request, outcome in self._open.items():
            if outcome.at == step.job:
                del self._open[request]
                self._store.side_delete(SIDE_ASKED, _KEY.pack(outcome.at))
                self._end(request, Outcome(index, ts, step.removed, False))
                return

    def _end(self, request: int, outcome: Outcome) -> None:
        if len(self._ended) >= MOST:
            oldest = next(iter(self._ended))
            self._store.side_delete(SIDE_ASKED, _KEY.pack(self._ended.pop(oldest).at))
        self._ended[request] = outcome
        self._put(request, outcome)

    def _put(self, request: int, outcome: Outcome) -> None:
        row = _ROW.pack(request, outcome.ts, outcome.result, outcome.open)
        self._store.side_put(SIDE_ASKED, _KEY.pack(outcome.at), row)
