"""Archives of a stream, made and restored by its leader.

The client's node speaks the chunk protocol (`api.snapshot`, `api.restore`); it pulls an archive from here, and brings
the archive of a restore, piece by piece. So nothing here waits for a slow client, and an archive is of one applied
index of one replica.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Mapping
from typing import Any

from jetcluster.budget import LoopBudget, Steps
from jetcluster.clock import Clock, Rng, Timers
from jetcluster.consumer.state import archived
from jetcluster.consumer.state.creation import following
from jetcluster.errors import by_code
from jetcluster.model import consumer_rules
from jetcluster.model.codec import dumps
from jetcluster.protocol import stream_archive
from jetcluster.raft.api import NotLeaderError
from jetcluster.records import dataclass
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.store import block_reader
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.stream.log import commands
from jetcluster.stream.read.msg_get import state_object
from jetcluster.stream.rules import RESTORING

Body = dict[str, Any]

MAX_OPEN = 16
"""Archives in progress on a node; each pins a view of its data store."""
IDLE_SECONDS = 30.0
"""Time without a request after which an archive is dropped: its asker may have died, or asks the next leader."""
PIECE_BYTES = 512 * 1024
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
        pieces = _pieces({**state, "config": config}, consumers, ts, messages)
        self._open[key] = _Open(gid, pieces, self._clock.monotonic())
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
        command = commands.encode_restore(self._clock.time_ns(), base64.b64decode(body["runs"]))
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


def _consumers(replica: StreamReplica) -> list[tuple[bytes, Body]]:
    """The clients' consumers as entries of an archive: (name, content)."""
    rules = replica.machine.rules
    return [
        (
            stream_archive.CONSUMER_PREFIX + state.name.encode(),
            {
                "config": consumer_rules.shown(following(state.rules.config, rules), versions=False),
                "state": archived.encode(state),
            },
        )
        for state in replica.consumers.table.by_cid.values()
        if not state.rules.direct
    ]


def _next_of(pieces: Iterator[bytes]) -> Steps[bytes]:
    """The next piece that is not empty; b"" at the end."""
    for piece in pieces:
        if piece:
            return piece
        yield
    return b""


def _pieces(
    state: Mapping[str, Any], consumers: list[tuple[bytes, Body]], ts: int, blocks: Iterator[list[Any]]
) -> Iterator[bytes]:
    """Yield the archive in pieces of about PIECE_BYTES; an empty one is a pause."""
    encode = stream_archive.encode
    pending = [stream_archive.MAGIC, encode(stream_archive.STATE_NAME, ts, 0, b"", dumps(state))]
    pending += [encode(name, ts, 0, b"", dumps(content)) for name, content in consumers]
    size = 0
    for block in blocks:
        for seq, at, subject, headers, payload in block:
            entry = encode(subject, at, seq, headers, payload)
            pending.append(entry)
            size += len(entry)
        if size >= PIECE_BYTES:
            yield b"".join(pending)
            pending, size = [], 0
        else:
            yield b""
    pending.append(stream_archive.END)
    yield b"".join(pending)
