"""Asking the leader of a group, wherever it is by now.

The node that a client is connected to sends a request to the group's leader; during an election it waits, and it
asks again when the one asked turns out not to lead. So a client sees one answer, late, instead of an error it would
have to retry.

A question says how long its asker waits. One that comes late, because a process stood still or a network did, is not
answered: by the clocks of both sides if these agree about it, else the asker is asked back.

Nothing is begun for the asker of a request that does not wait for its answer any more. A client that was told
503 (10008) counts on it that what it asked for is not done much later. So a request carries how long its asker waits,
wherever it goes, and whoever proposes something looks at that once more right before (docs/mechanisms.md, "Requests
that change something").
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
from jetcluster.model.json_steps import WHOLE, decoding
from jetcluster.raft.api import RaftError, StorageFullError
from jetcluster.records import dataclass
from jetcluster.replica.leaders import Hint, LeaderTable
from jetcluster.replica.proposals import OutcomeUnknownError

if TYPE_CHECKING:
    from jetcluster.logs import Log

MARGIN: Final = 0.5
"""Seconds that must be left when something is proposed: its outcome is to be known in time as well."""
_ends: WeakKeyDictionary[asyncio.Task[Any], float] = WeakKeyDictionary()
"""By task, and not in its context: what a request sets off (timers, background work) outlives it."""


class GivenUpError(RaftError):
    """Nobody waits for the answer any more; nothing was begun."""


def wait_until(end: float) -> None:
    """The task at hand works for somebody who waits until `end` (monotonic seconds)."""
    task = asyncio.current_task()
    assert task is not None
    _ends[task] = end


def asked_until() -> float:
    """Monotonic seconds until which somebody waits for the task at hand; `math.inf` where nobody said so."""
    task = asyncio.current_task()
    return math.inf if task is None else _ends.get(task, math.inf)


def check_wanted(clock: Clock) -> None:
    """To be called right before something is proposed. Raises GivenUpError."""
    if clock.monotonic() > asked_until() - MARGIN:
        raise GivenUpError("its asker does not wait any more")


def left_for(clock: Clock, seconds: float) -> float:
    """At most `seconds`, and not so long that the asker would get no answer; 0 when that is so already."""
    return max(0.0, min(seconds, asked_until() - MARGIN / 2 - clock.monotonic()))


Body = dict[str, Any]
UnderWay = Callable[[], None] | None
Handler = Callable[[int, str, Body], Awaitable[Body]]
"""(gid, kind, body) -> result. Raises ApiError for a refusal; RaftError, OutcomeUnknownError or UnderWayError to be
asked again."""

REPEATED = "repeated"
"""Key of a body whose earlier attempt may have been carried out: finding its work done is then a success."""
ONCE = "once"
"""Key of a body: the request's number, the same in all attempts (`cluster.once`)."""
DEADLINE = 3.5
"""Seconds for one question; a request may ask two (`api.request.REQUEST_SECONDS` bounds it as a whole)."""
NO_PROGRESS = 30.0
"""Seconds after which a request that is under way is given up when it does not get on."""
MAX_LONG = 64
"""Requests of one node that may take longer than DEADLINE at a time."""
PAUSE = 0.03
WAIT_FOR_LEADER = 0.25
LAST_WORDS = 0.25
"""Time that the answer of a leader is waited for when another one leads already: it may be under way."""
NO_LEADER = 10008
STORAGE_FULL = 10047
STILL = ".still"
"""Behind the name of a method: does the asker of a question wait still?"""
LATE = 1.0
"""Seconds that a question may have been under way by the clocks of both sides, which differ by less where all is well.
One that seems older, or of the future, has its asker asked back."""
STILL_SECONDS = 1.0
_NUMBER = struct.Struct("<Q")
_LEFT = struct.Struct("<d")


class UnderWayError(PassingError):
    """The request is being carried out, and to be asked again for its outcome. `progress` changes as it goes on."""

    def __init__(self, progress: int) -> None:
        super().__init__(f"under way, {progress}")
        self.progress = progress


@dataclass(slots=True)
class _Attempt:
    """A question until it is answered."""

    number: int
    end: float
    repeated: bool = False
    """An earlier try may have been carried out."""
    long: bool = False
    """It was under way once."""
    progress: int | None = None


class LeaderRequests:
    """One method on the mesh; used for the meta group and, with another method, for streams."""

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
        """`budget`: long answers are encoded, and decoded, in its time."""
        self._budget = budget
        self._method = method
        self._mesh = mesh
        self._leaders = leaders
        self._clock = clock
        self._handler = handler
        self._log = log
        self._long = 0
        self._next = clock.time_ns()
        """Not the number of a question of an earlier life."""
        self._open: dict[int, _Attempt] = {}
        mesh.serve(method, self._serve)
        mesh.serve(method + STILL, self._serve_still)

    async def ask(
        self,
        gid: int,
        kind: str,
        body: Body,
        seconds: float = DEADLINE,
        under_way: UnderWay = None,
    ) -> Body:
        """Raises ApiError: the leader's refusal, or 503/10008 when no leader answered in time. A request that is under
        way has more time as long as it gets on; `under_way` is called once then."""
        end = min(self._clock.monotonic() + seconds, asked_until() - MARGIN / 2)
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
                await self._leaders.wait(gid, min(WAIT_FOR_LEADER, left))
                continue
            payload = self._encode(attempt, gid, kind, body)
            reply = await self._ask(gid, hint, payload, min(left, DEADLINE))
            if "error" in reply:
                raise ApiError.from_dict(reply["error"])
            if "result" in reply:
                result: Body = reply["result"]
                return result
            attempt.repeated |= bool(reply.get("unknown"))
            if "progress" in reply:
                self._goes_on(attempt, int(reply["progress"]), under_way)
                continue
            self._leaders.suspect(gid, hint)
            await asyncio.sleep(min(PAUSE, left))
        raise by_code(NO_LEADER)

    def _goes_on(self, attempt: _Attempt, progress: int, under_way: UnderWay) -> None:
        """Raises ApiError 503/10008 when too many requests take long already."""
        if not attempt.long:
            if self._long >= MAX_LONG:
                raise by_code(NO_LEADER)
            attempt.long = True
            self._long += 1
            if under_way is not None:
                under_way()
        if progress != attempt.progress:
            attempt.progress = progress
            attempt.end = self._clock.monotonic() + NO_PROGRESS

    async def _ask(self, gid: int, hint: Hint, payload: bytes, seconds: float) -> Body:
        """One attempt. A leader that hangs has another one elected in its place: its answer is not waited for then."""
        call = asyncio.ensure_future(self._mesh.call(hint.leader, self._method, payload, seconds))
        moved = asyncio.ensure_future(self._another_leads(gid, hint))
        try:
            await asyncio.wait((call, moved), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                await asyncio.wait((call,), timeout=LAST_WORDS)
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
        if self._budget is None or len(answer) <= WHOLE:
            reply: Body = json.loads(answer)
            return reply
        try:
            reply = await self._budget.run(("answer", gid), decoding(answer.decode()))
        except BusyError:
            raise by_code(NO_LEADER) from None
        return reply

    async def _another_leads(self, gid: int, hint: Hint) -> None:
        while self._leaders.get(gid) in (None, hint.leader):
            await self._leaders.wait(gid, DEADLINE)

    async def _wait(self, peer: str, request: Body) -> None:
        """Takes over how long the asker waits. Raises GivenUpError."""
        under_way = (self._clock.time_ns() - int(request["sent"])) / 1e9
        left = float(request["left"]) - max(under_way, 0.0)
        if not -LATE < under_way < LATE:
            left = await self._still(peer, int(request["number"]))
        if left <= 0:
            raise GivenUpError("its asker does not wait any more")
        wait_until(self._clock.monotonic() + left)

    async def _still(self, peer: str, number: int) -> float:
        """Seconds that the asker waits still, by its own word."""
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
        except StorageFullError:
            return json.dumps({"error": by_code(STORAGE_FULL).to_dict()}).encode()
        except UnderWayError as error:
            return json.dumps({"retry": str(error), "unknown": True, "progress": error.progress}).encode()
        except OutcomeUnknownError as error:
            return json.dumps({"retry": str(error), "unknown": True}).encode()
        except (BusyError, RaftError) as error:
            if error.retriable:
                return json.dumps({"retry": str(error)}).encode()
            return json.dumps({"error": by_code(STREAM_GENERAL, err=str(error)).to_dict()}).encode()
        except Exception as error:  # noqa: BLE001 - asking again would run into the same defect until time is up
            self._log.error("request failed", method=self._method, kind=request.get("kind"), error=repr(error))
            return json.dumps({"error": by_code(STREAM_GENERAL, err="internal error").to_dict()}).encode()
        return json.dumps({"result": result}, separators=(",", ":")).encode()
