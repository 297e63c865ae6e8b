"""Requests to the leader of a group, whichever node that is.

The node that a client is connected to sends a request to the group's leader. It waits during an election, and asks
again when the node asked does not lead, so a client sees one late answer instead of an error to retry.

A question states how long its asker waits. A question that arrives late, because a process or the network stood still,
is not answered. The clocks of both sides decide that where they agree; otherwise the asker is asked back.

Nothing is begun for a request whose asker no longer waits: a client that got 503 (10008) relies on its request not
being carried out much later. The request carries its time limit wherever it goes, and the limit is checked again right
before a proposal (docs/mechanisms/requests.md).
"""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from jetcluster.budget import BusyError, LoopBudget
from jetcluster.clock import Clock
from jetcluster.errors import STREAM_GENERAL, ApiError, PassingError, by_code
from jetcluster.mesh.api import MeshError
from jetcluster.mesh.core import MeshCore
from jetcluster.model.codec import encoding, is_long
from jetcluster.model.json_steps import WHOLE_CHARS, decoding
from jetcluster.raft.api import RaftError, StorageFullError
from jetcluster.records import dataclass
from jetcluster.replica.leaders import Hint, LeaderTable
from jetcluster.replica.proposals import OutcomeUnknownError
from jetcluster.store.kv import KvFullError

if TYPE_CHECKING:
    from jetcluster.logs import Log

MARGIN_SECONDS: Final = 0.5
"""Time that must be left for a proposal, so that its outcome is known before the asker gives up."""
LIST_BYTES: Final = 4 << 20
LIST_STEP_BYTES: Final = 128 << 10
"""Bytes of configurations in a page of a list, which has to fit into a frame between nodes, and of those that are
encoded before the loop yields."""
_ends: WeakKeyDictionary[asyncio.Task[Any], float] = WeakKeyDictionary()
"""By task, and not in its context, because timers and background work that a request starts outlive it."""


class GivenUpError(RaftError):
    """The asker of a request no longer waits; nothing was begun."""


def wait_until(end: float) -> None:
    """Sets how long the current task's asker waits: until `end` (monotonic seconds)."""
    task = asyncio.current_task()
    assert task is not None
    _ends[task] = end


def asked_until() -> float:
    """Returns the monotonic time until which the current task's asker waits; `math.inf` without a limit."""
    task = asyncio.current_task()
    return math.inf if task is None else _ends.get(task, math.inf)


def check_wanted(clock: Clock) -> None:
    """Raises GivenUpError when too little time is left; must be called right before a proposal."""
    if clock.monotonic() > asked_until() - MARGIN_SECONDS:
        raise GivenUpError("its asker does not wait any more")


def left_for(clock: Clock, seconds: float) -> float:
    """Returns at most `seconds`, and no more than leaves time for the answer; 0 when there is none."""
    return max(0.0, min(seconds, asked_until() - MARGIN_SECONDS / 2 - clock.monotonic()))


Body = dict[str, Any]
UnderWay = Callable[[], None] | None
Handler = Callable[[int, str, Body], Awaitable[Body]]
"""(gid, kind, body) -> result. Raises ApiError: refused; RaftError, OutcomeUnknownError, UnderWayError: ask again."""

REPEATED = "repeated"
"""Key of a body whose earlier attempt may have been carried out: work that is found done is then a success."""
ONCE = "once"
"""Key of the request's number, the same in all attempts (`cluster.once`)."""
DEADLINE_SECONDS = 3.5
"""Time for one question; a request may ask two (`api.request.REQUEST_SECONDS` bounds it as a whole)."""
NO_PROGRESS_SECONDS = 30.0
"""Time without progress after which a request under way is given up."""
MAX_LONG_REQUESTS = 64
"""Requests of one node that may take longer than DEADLINE_SECONDS at the same time."""
RETRY_SECONDS = 0.03
LEADER_WAIT_SECONDS = 0.25
LAST_ANSWER_SECONDS = 0.25
"""Wait for the answer of a leader that was replaced: it may be in transit."""
NO_LEADER = 10008
STORAGE_FULL = 10047
STILL = ".still"
"""Suffix of the method that asks whether a question's asker still waits."""
MAX_TRANSIT_SECONDS = 1.0
"""Transit time of a question that is plausible by both clocks, which differ by less in a healthy cluster. For one that
seems older, or from the future, the asker is asked back."""
STILL_SECONDS = 1.0
_NUMBER = struct.Struct("<Q")
_LEFT = struct.Struct("<d")


class UnderWayError(PassingError):
    """The request is under way; asking again gets its outcome. `progress` changes as it proceeds."""

    def __init__(self, progress: int) -> None:
        super().__init__(f"under way, {progress}")
        self.progress = progress


@dataclass(slots=True)
class _Attempt:
    """A question until it is answered."""

    number: int
    end: float
    repeated: bool = False
    """True when an earlier attempt may have been carried out."""
    long: bool = False
    """True when it was under way once."""
    progress: int | None = None


class LeaderRequests:
    """Requests by one method on the mesh: one for the meta group, another for streams."""

    def __init__(
        self,
        method: str,
        mesh: MeshCore,
        leaders: LeaderTable,
        clock: Clock,
        handler: Handler,
        log: Log,
        budget: LoopBudget | None = None,
    ) -> None:
        """`budget` is the loop time in which long answers are encoded and decoded."""
        self._budget = budget
        self._method = method
        self._mesh = mesh
        self._leaders = leaders
        self._clock = clock
        self._handler = handler
        self._log = log
        self._long = 0
        self._next = clock.time_ns()
        """Begins at the time, so that numbers of a previous run do not return."""
        self._open: dict[int, _Attempt] = {}
        mesh.serve(method, self._serve)
        mesh.serve(method + STILL, self._serve_still)

    async def ask(
        self,
        gid: int,
        kind: str,
        body: Body,
        seconds: float = DEADLINE_SECONDS,
        under_way: UnderWay = None,
    ) -> Body:
        """Returns the leader's result. Raises ApiError: the leader's refusal, or 503/10008 when no leader answered in
        time. A request under way has more time while it progresses; `under_way` is called once then."""
        end = min(self._clock.monotonic() + seconds, asked_until() - MARGIN_SECONDS / 2)
        self._next += 1
        attempt = self._open[self._next] = _Attempt(self._next, end)
        try:
            return await self._ask_on(attempt, gid, kind, body, under_way)
        finally:
            del self._open[attempt.number]
            self._long -= attempt.long

    async def _ask_on(self, attempt: _Attempt, gid: int, kind: str, body: Body, under_way: UnderWay) -> Body:
        while (left := attempt.end - self._clock.monotonic()) > 0:
            hint = self._leaders.hint(gid)
            if hint is None:
                await self._leaders.wait(gid, min(LEADER_WAIT_SECONDS, left))
                continue
            payload = self._encode(attempt, gid, kind, body)
            reply = await self._ask(gid, hint, payload, min(left, DEADLINE_SECONDS))
            if "error" in reply:
                raise ApiError.from_dict(reply["error"])
            if "result" in reply:
                result: Body = reply["result"]
                return result
            attempt.repeated |= bool(reply.get("unknown"))
            if "progress" in reply:
                self._extend(attempt, int(reply["progress"]), under_way)
                continue
            self._leaders.suspect(gid, hint)
            await asyncio.sleep(min(RETRY_SECONDS, left))
        raise by_code(NO_LEADER)

    def _extend(self, attempt: _Attempt, progress: int, under_way: UnderWay) -> None:
        """Extends a request under way that progresses. Raises ApiError 503/10008 when too many take long."""
        if not attempt.long:
            if self._long >= MAX_LONG_REQUESTS:
                raise by_code(NO_LEADER)
            attempt.long = True
            self._long += 1
            if under_way is not None:
                under_way()
        if progress != attempt.progress:
            attempt.progress = progress
            attempt.end = self._clock.monotonic() + NO_PROGRESS_SECONDS

    async def _ask(self, gid: int, hint: Hint, payload: bytes, seconds: float) -> Body:
        """Makes one attempt; stops waiting soon after another leader is elected in place of one that hangs."""
        call = asyncio.ensure_future(self._mesh.call(hint.leader, self._method, payload, seconds))
        moved = asyncio.ensure_future(self._another_leads(gid, hint))
        try:
            await asyncio.wait((call, moved), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                await asyncio.wait((call,), timeout=LAST_ANSWER_SECONDS)
            if not call.done():
                return {"retry": "another one leads", "unknown": True}
            answer = call.result()
        except MeshError as error:
            return {"retry": str(error), "unknown": True}
        finally:
            call.cancel()
            moved.cancel()
        return await self._decoded(gid, answer)

    async def _decoded(self, gid: int, answer: bytes) -> Body:
        if self._budget is None or len(answer) <= WHOLE_CHARS:
            reply: Body = json.loads(answer)
            return reply
        try:
            reply = await self._budget.run(("answer", gid), decoding(answer.decode()))
        except BusyError:
            raise by_code(NO_LEADER) from None
        return reply

    async def _another_leads(self, gid: int, hint: Hint) -> None:
        while self._leaders.get(gid) in (None, hint.leader):
            await self._leaders.wait(gid, DEADLINE_SECONDS)

    async def _wait(self, peer: str, request: Body) -> None:
        """Applies the asker's time limit to this task. Raises GivenUpError."""
        under_way = (self._clock.time_ns() - int(request["sent"])) / 1e9
        left = float(request["left"]) - max(under_way, 0.0)
        if not -MAX_TRANSIT_SECONDS < under_way < MAX_TRANSIT_SECONDS:
            left = await self._remaining(peer, int(request["number"]))
        if left <= 0:
            raise GivenUpError("its asker does not wait any more")
        wait_until(self._clock.monotonic() + left)

    async def _remaining(self, peer: str, number: int) -> float:
        """Returns the seconds that the asker still waits, by its own answer."""
        try:
            answer = await self._mesh.call(peer, self._method + STILL, _NUMBER.pack(number), STILL_SECONDS)
            (left,) = _LEFT.unpack(answer)
        except (MeshError, struct.error):
            return 0.0
        return float(left)

    async def _serve_still(self, peer: str, payload: bytes) -> bytes:
        attempt = self._open.get(*_NUMBER.unpack(payload))
        return _LEFT.pack(0.0 if attempt is None else attempt.end - self._clock.monotonic())

    def _encode(self, attempt: _Attempt, gid: int, kind: str, body: Body) -> bytes:
        if attempt.repeated:
            body = {**body, REPEATED: True}
        question = {
            "gid": gid,
            "kind": kind,
            "number": attempt.number,
            "sent": self._clock.time_ns(),
            "left": round(attempt.end - self._clock.monotonic(), 3),
            "body": body,
        }
        return json.dumps(question, separators=(",", ":")).encode()

    async def _serve(self, peer: str, payload: bytes) -> bytes:
        request = json.loads(payload)
        try:
            await self._wait(peer, request)
            result = await self._handler(int(request["gid"]), str(request["kind"]), request["body"])
            if self._budget is not None and is_long(result):
                return await self._budget.run(("answers", peer), encoding({"result": result}))
        except ApiError as error:
            return json.dumps({"error": error.to_dict()}).encode()
        except (StorageFullError, KvFullError):
            return json.dumps({"error": by_code(STORAGE_FULL).to_dict()}).encode()
        except UnderWayError as error:
            return json.dumps({"retry": str(error), "unknown": True, "progress": error.progress}).encode()
        except OutcomeUnknownError as error:
            return json.dumps({"retry": str(error), "unknown": True}).encode()
        except (BusyError, RaftError) as error:
            if error.retriable:
                return json.dumps({"retry": str(error)}).encode()
            return json.dumps({"error": by_code(STREAM_GENERAL, err=str(error)).to_dict()}).encode()
        except Exception as error:  # noqa: BLE001 - a retry would meet the same defect until the time is up
            self._log.error("request failed", method=self._method, kind=request.get("kind"), error=repr(error))
            return json.dumps({"error": by_code(STREAM_GENERAL, err="internal error").to_dict()}).encode()
        return json.dumps({"result": result}, separators=(",", ":")).encode()
