"""`Site`: `jetcluster backup` and `jetcluster restore` of some streams of a simulated cluster, to a destination in
memory, and what the streams had each time, as another client reads it."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from jetcluster.backup import plan, segment_writer
from jetcluster.backup.account import AccountReader
from jetcluster.backup.point import RestorePoint
from jetcluster.backup.restore import RestoredStream, RestoreRun
from jetcluster.backup.restore_options import RestoreOptions
from jetcluster.backup.run import BackupRun
from jetcluster.backup.segment import SEGMENT_BYTES
from jetcluster.backup.verify import StoredStream, check_point
from jetcluster.errors import JetclusterError
from jetcluster.model.times import parse_rfc3339
from testkit.sim.blocking import Blocking, WallClock
from testkit.sim.deployment import Violation
from testkit.sim.network import Address
from testkit.twins.backup_storage import MemoryStorage
from testkit.twins.time import SeededRng

T = TypeVar("T")
Stored = tuple[str, str, bytes, bytes]
"""Subject, time, header block and payload of a message."""
CONSUMER: Final = ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending")
_NEW: Final = re.compile(r"(\S+): (\d+) new messages, \d+ bytes read; (\d+) in it")


class Unsuccessful(Violation):
    """A run ends with an error."""

    def __init__(self, error: JetclusterError) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error


class Contents(NamedTuple):
    """A stream."""

    config: dict[str, Any]
    ends: tuple[int, int]
    """First and last sequence."""
    messages: dict[int, Stored]
    consumers: dict[str, dict[str, Any]]
    """By name: where each one stands."""


class Site:
    """One destination."""

    def __init__(self, name: str, addresses: Sequence[Address], now: Callable[[], float], rng: Random) -> None:
        self.storage = MemoryStorage()
        self.clock = WallClock(now)
        self.said: list[str] = []
        self._rng = rng
        self._system = Blocking(name, addresses, self.clock, rng)

    async def backup(self, *streams: str, keep: int = 0, verify: bool = False) -> RestorePoint:
        """Raises Unsuccessful and DiedError."""
        self.clock.skip(61.0)  # points are named by seconds
        self.said.clear()

        def work() -> RestorePoint:
            with AccountReader(self._system.options) as account:
                run = BackupRun(
                    account, self.storage, self.clock, self._drawn(), self.said.append, streams, self.clock.skip
                )
                return run.run(keep, verify=verify)

        return await self._run(work)

    async def restore(self, point: RestorePoint, *, dry: bool = False, **options: Any) -> list[RestoredStream]:
        """Raises Unsuccessful and DiedError."""

        def work() -> list[RestoredStream]:
            servers = self._system.options
            with AccountReader(servers) as account:
                run = RestoreRun(
                    servers, account, self.storage, point, RestoreOptions(**options), self.said.append, self.clock,
                    self._drawn(), self.clock.skip,
                )  # fmt: skip
                return run.run(dry=dry)

        return await self._run(work)

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await self._system.run(work)
        except JetclusterError as error:
            raise Unsuccessful(error) from error

    def _drawn(self) -> SeededRng:
        return SeededRng(self._rng.randrange(1 << 30))

    def wrong(self, point: RestorePoint) -> list[str]:
        """Says what `jetcluster backup verify` says."""
        return check_point(self.storage, point, lambda _: None)

    def held(self, point: RestorePoint, stream: str) -> dict[int, Stored]:
        """The messages of a stream in a point. Raises DamagedBackupError."""
        found = point.stream(stream)
        assert found is not None, stream
        stored = StoredStream(self.storage, found)
        messages = [message for one in found.segments for message in stored.messages(one)]
        return {one.seq: (one.subject.decode(), str(one.ts), one.headers, one.payload) for one in messages}

    def new(self) -> dict[str, tuple[int, int]]:
        """By stream: messages that the last run has read, and those of the stream."""
        return {found[1]: (int(found[2]), int(found[3])) for one in self.said if (found := _NEW.fullmatch(one))}


@contextlib.contextmanager
def small_segments(size: int) -> Iterator[None]:
    """Segments of so many bytes, so that a few messages fill several."""
    try:
        for module in (segment_writer, plan):
            setattr(module, "SEGMENT_BYTES", size)  # noqa: B010 - it is final
        yield
    finally:
        for module in (segment_writer, plan):
            setattr(module, "SEGMENT_BYTES", SEGMENT_BYTES)  # noqa: B010


def nanoseconds(time: str) -> str:
    """RFC 3339 as nanoseconds since 1970, in digits."""
    return str(parse_rfc3339(time))


def stored_of(answer: dict[str, Any]) -> Stored:
    """The message of an answer of MSG.GET."""
    message = answer["message"]
    return (
        message["subject"], nanoseconds(message["time"]), base64.b64decode(message.get("hdrs") or ""),
        base64.b64decode(message.get("data") or ""),
    )  # fmt: skip


def standing(info: dict[str, Any]) -> dict[str, Any]:
    """The progress of a consumer."""
    found = json.loads(json.dumps({key: info.get(key) for key in CONSUMER}))
    for key in ("delivered", "ack_floor"):
        found[key].pop("last_active", None)
    return dict(found)
