"""`Asked`: outcomes of requests that must not be carried out twice.

A requester whose leader dies does not know whether its request was carried out, and repeats it to the next leader. A
purge that is carried out twice removes messages that were stored and acknowledged in between. So a requester numbers
its request, with the same number in each repetition; the number is in the command (`commands.NAMED`), and a repetition
gets the first outcome. Outcomes are rows beside the messages, part of every copy of the state:

    u64 index of the command, or of the one that ended its job (big-endian)
        ->   u64 number | u64 time | i64 outcome | u8 open    (little-endian)

Refused requests are not kept: they changed nothing, and a repetition may be carried out.
"""

from __future__ import annotations

import struct
from typing import Final

from jetcluster.errors import DiskError
from jetcluster.records import NamedTuple
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.ports import SIDE_ASKED, JobStep, Result

MAX_ENDED: Final = 1024
"""Ended requests kept; a repetition comes within seconds."""

_KEY: Final = struct.Struct(">Q")
_ROW: Final = struct.Struct("<QQqB")


class AskedError(DiskError):
    """A stored row has another version or is cut off."""


class Outcome(NamedTuple):
    """The outcome of one request."""

    at: int
    """Index of the command, or of the one that ended its job."""
    ts: int
    """Time of the same command, Unix nanoseconds."""
    result: int
    """Result of the command or of its job; 0 while open."""
    open: bool
    """The request goes on as a job (`jobs`)."""


class Asked:
    """The outcomes of a stream's numbered requests."""

    def __init__(self, store: BlockStore) -> None:
        """Loads the rows of `store`. Raises AskedError."""
        self._store = store
        self._ended: dict[int, Outcome] = {}
        """By number, oldest first."""
        self._open: dict[int, Outcome] = {}
        """By number; at most one per job."""
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
        """True when a request that ended at or after time `since` may have been dropped."""
        return len(self._ended) >= MAX_ENDED and next(iter(self._ended.values())).ts >= since

    def note(self, index: int, ts: int, request: int, result: Result) -> None:
        """Records the result of the command that carried the request out, or began to."""
        if isinstance(result, int):
            self._end(request, Outcome(index, ts, result, False))
        elif isinstance(result, JobStep):
            outcome = self._open[request] = Outcome(index, ts, 0, True)
            self._put(request, outcome)

    def job_done(self, index: int, ts: int, step: JobStep) -> None:
        """Records that the command at `index` ended a job, which may be that of a request."""
        for request, outcome in self._open.items():
            if outcome.at == step.job:
                del self._open[request]
                self._store.side_delete(SIDE_ASKED, _KEY.pack(outcome.at))
                self._end(request, Outcome(index, ts, step.removed, False))
                return

    def _end(self, request: int, outcome: Outcome) -> None:
        if len(self._ended) >= MAX_ENDED:
            oldest = next(iter(self._ended))
            self._store.side_delete(SIDE_ASKED, _KEY.pack(self._ended.pop(oldest).at))
        self._ended[request] = outcome
        self._put(request, outcome)

    def _put(self, request: int, outcome: Outcome) -> None:
        row = _ROW.pack(request, outcome.ts, outcome.result, outcome.open)
        self._store.side_put(SIDE_ASKED, _KEY.pack(outcome.at), row)
