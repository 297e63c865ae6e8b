"""Archives of a stream, made and restored by its leader.

The client's node speaks the chunk protocol (`api.snapshot`, `api.restore`); it pulls an archive from here, and brings
the archive of a restore, piece by piece. So nothing here waits for a slow client, and an archive is of one applied
index of one replica.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Generator, Iterator, Mapping
from typing import Any, TypeVar

from jetcluster.budget import LoopBudget, Steps
from jetcluster.clock import Clock, Rng, Timers
from jetcluster.consumer.state import archived
from jetcluster.consumer.state.creation import following
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.errors import by_code
from jetcluster.model import consumer_rules
from jetcluster.model.codec import dumps, encoding
from jetcluster.protocol import stream_archive
from jetcluster.raft.api import NotLeaderError
from jetcluster.records import dataclass
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.store import block_reader
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.stream.apply.counters import SOURCES_FIELD
from jetcluster.stream.log import commands
from jetcluster.stream.read.msg_get import state_object
from jetcluster.stream.rules import RESTORING, StreamRules

Body = dict[str, Any]
T = TypeVar("T")

MAX_OPEN = 16
"""Archives in progress on a node; each pins a view of its data store."""
IDLE_SECONDS = 30.0
"""Time without a request after which an archive is dropped: its asker may have died, or asks the next leader."""
PIECE_BYTES = 512 * 1024
MAX_EXACT_BYTES = stream_archive.MAX_CONSUMERS_BYTES // 4 * 3
"""Bytes of the consumers that are archived with what is pending; the rest of what a restore takes is for the others,
which begin at their ack floors."""
MIN_PENDING_BYTES = 40
"""Bytes of a pending message in an archive, at least, beside messages that wait for others of their key."""
PROPOSE_SECONDS = 4.0
_FAILED = 10064


@dataclass(slots=True)
class _Open:
    gid: int
    pieces: Iterator[bytes]
    used: float
    number: int = 0
    last: bytes = b""
    making: asyncio.Future[bytes] | None = None
    """The next piece, while it is being made."""


class StreamArchives:
    """The open archives of a node."""

    def __init__(self, kv: RocksKv, clock: Clock, timers: Timers, rng: Rng, budget: LoopBudget) -> None:
        self._kv = kv
        self._clock = clock
        self._timers = timers
        self._rng = rng
        self._budget = budget
        self._open: dict[str, _Open] = {}
        self._watched = False
        """A timer drops the archives that nobody reads."""

    async def snapshot(self, replica: StreamReplica, body: Body) -> Body:
        """Open an archive of the current state; `snapshot_next` reads it."""
        if not await replica.confirm_leadership():
            raise NotLeaderError(replica.group.leader)
        self._drop_idle()
        if len(self._open) >= MAX_OPEN:
            raise by_code(_FAILED, err="too many snapshots are under way")
        consumers = _consumers(replica)
        state = {**state_object(replica.store), "consumer_count": len(consumers)}
        if body.get("no_consumers"):
            consumers = []
        replica.store.touch()
        gid = replica.assignment.gid
        ts = self._clock.time_ns()
        messages = block_reader.messages(self._kv.snapshot(), gid)
        key = self._rng.token(8).hex()
        # nats-server ignores unknown fields; a restore without a configuration of its own takes this one.
        config = {name: value for name, value in replica.assignment.config.items() if name != RESTORING}
        parts = _parts({**state, "config": config}, consumers, replica.machine.rules, ts, messages)
        self._open[key] = _Open(gid, _pieces(parts), self._clock.monotonic())
        if not self._watched:
            self._watched = True
            self._timers.call_later(IDLE_SECONDS, self._look)
        return {"id": key, "state": state}

    async def snapshot_next(self, replica: StreamReplica, body: Body) -> Body:
        """Return piece `number` (from 1) of archive `id`: the next one, or the previous one again."""
        found = self._open.get(body["id"])
        if found is None or found.gid != replica.assignment.gid:
            raise by_code(_FAILED, err="the stream has another leader now")
        found.used = self._clock.monotonic()
        number = int(body["number"])
        if number == found.number + 1:
            await self._make(found, replica.assignment.account)
            found.used = self._clock.monotonic()
        elif number != found.number:
            raise by_code(_FAILED, err="snapshot pieces out of order")
        return {"data": base64.b64encode(found.last).decode()}

    async def _make(self, found: _Open, account: str) -> None:
        """Make the next piece; a caller that repeats its request meanwhile waits for the same one."""
        if found.making is None:
            found.making = asyncio.ensure_future(self._budget.run(account, _next_of(found.pieces)))
        making = found.making
        await asyncio.wait((making,))
        if found.making is making:
            found.making = None
            found.number, found.last = found.number + 1, making.result()

    def _look(self) -> None:
        self._drop_idle()
        self._watched = bool(self._open)
        if self._watched:
            self._timers.call_later(IDLE_SECONDS, self._look)

    def _drop_idle(self) -> None:
        oldest = self._clock.monotonic() - IDLE_SECONDS
        for key in [key for key, found in self._open.items() if found.used < oldest and found.making is None]:
            del self._open[key]

    async def snapshot_close(self, replica: StreamReplica, body: Body) -> Body:
        self._open.pop(body["id"], None)
        return {}

    async def restore(self, replica: StreamReplica, body: Body) -> Body:
        """Take messages, as `runs.encode_runs` makes them, into a stream with `restoring` set."""
        runs = base64.b64decode(body["runs"])
        command = commands.encode_restore(self._clock.time_ns(), runs, counted=SOURCES_FIELD in runs)
        return await self._apply(replica, command)

    async def restore_end(self, replica: StreamReplica, body: Body) -> Body:
        now = self._clock.time_ns()
        command = commands.encode_restore_end(now, int(body["last_seq"]), int(body["last_ts"]))
        return await self._apply(replica, command)

    async def _apply(self, replica: StreamReplica, command: bytes) -> Body:
        result = await replica.propose(command, PROPOSE_SECONDS)
        if isinstance(result, Exception):
            raise result
        return {"stored": result}


def _consumers(replica: StreamReplica) -> list[ConsumerState]:
    """The clients' consumers as they are now."""
    return [archived.frozen(state) for state in replica.consumers.table.by_cid.values() if not state.rules.direct]


def _next_of(pieces: Iterator[bytes]) -> Steps[bytes]:
    """The next piece that is not empty; b"" at the end."""
    for piece in pieces:
        if piece:
            return piece
        yield
    return b""


def _pieces(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the bytes of all parts in pieces of PIECE_BYTES, which fit an answer whatever the parts are; an empty one
    is a pause."""
    pending = bytearray()
    for part in parts:
        pending += part
        full = len(pending) // PIECE_BYTES * PIECE_BYTES
        for at in range(0, full, PIECE_BYTES):
            yield bytes(pending[at : at + PIECE_BYTES])
        del pending[:full]
        yield b""
    yield bytes(pending)


def _parts(
    state: Mapping[str, Any], consumers: list[ConsumerState], rules: StreamRules, ts: int, blocks: Iterator[list[Any]]
) -> Iterator[bytes]:
    """Yield the archive in parts, each of the work of a step."""
    encode = stream_archive.encode
    yield stream_archive.MAGIC + encode(stream_archive.STATE_NAME, ts, 0, b"", dumps(state))
    yield from _consumer_parts(consumers, rules, ts)
    for block in blocks:
        yield b"".join(encode(subject, at, seq, headers, payload) for seq, at, subject, headers, payload in block)
    yield stream_archive.END


def _consumer_parts(consumers: list[ConsumerState], rules: StreamRules, ts: int) -> Iterator[bytes]:
    """Yield an entry for each, none larger than restores take; those that have no room begin at their ack floor."""
    room = MAX_EXACT_BYTES
    for consumer in consumers:
        name = stream_archive.CONSUMER_PREFIX + consumer.name.encode()
        config = consumer_rules.shown(following(consumer.rules.config, rules), versions=False)
        entry = b""
        if len(consumer.pending) * MIN_PENDING_BYTES <= stream_archive.MAX_CONSUMER_BYTES:
            content = {"config": config, "state": (yield from _in_parts(archived.encoding(consumer)))}
            short = len(consumer.pending) <= archived.ENTRIES_PER_STEP
            entry = dumps(content) if short else (yield from _in_parts(encoding(content)))
        size = len(name) + len(entry) + stream_archive.CONSUMER_OVERHEAD_BYTES
        if not entry or size > min(room, stream_archive.MAX_CONSUMER_BYTES):
            entry = dumps({"config": config, "state": archived.at_floor(consumer)})
        else:
            room -= size
        yield stream_archive.encode(name, ts, 0, b"", entry)


def _in_parts(steps: Steps[T]) -> Generator[bytes, None, T]:
    """Yield an empty part for each step."""
    try:
        while True:
            next(steps)
            yield b""
    except StopIteration as stop:
        found: T = stop.value
        return found
