"""STREAM.RESTORE: takes a stream's archive in chunks and makes a stream of it.

The stream is assigned at once with `restoring` set, so that its name and subjects are taken, and becomes an ordinary
one with the last chunk. A restore that fails, or is not continued, deletes it again.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jetcluster import errors
from jetcluster.api import models, streams
from jetcluster.api.request import ApiContext, Request, check_letters, check_target
from jetcluster.api.restore_stream import RestoreStream, deleted
from jetcluster.api.snapshot import tell_transfer
from jetcluster.budget import BusyError, Steps
from jetcluster.cluster.restore_watch import ALIVE_SECONDS
from jetcluster.consumer.state import archived
from jetcluster.errors import ApiError, by_code
from jetcluster.meta.state import Assignment
from jetcluster.model import consumer_rules, json_steps, stream_rules
from jetcluster.model.advisory import stream_action
from jetcluster.model.codec import dumps
from jetcluster.protocol import headers, s2, stream_archive
from jetcluster.protocol.bus import Bus, Origin
from jetcluster.protocol.subjects import is_sendable
from jetcluster.store.api import Msg
from jetcluster.store.batch import MAX_SUBJECT
from jetcluster.stream.apply import restoring
from jetcluster.stream.log.bodies import LATEST_TIME, Run, encode_runs
from jetcluster.stream.rules import RESTORING

if TYPE_CHECKING:
    from jetcluster.api.restore_tar import TarRestore

Fields = dict[str, Any]
T = TypeVar("T")

IDLE_SECONDS: Final = 5.0
"""Seconds that a restore waits for its next chunk."""
MAX_WAITING_BYTES: Final = 32 << 20
"""Bytes of chunks that wait for their turn; a client that waits for the answers has one chunk."""
CHUNK_OVERHEAD_BYTES: Final = 512
"""Cost of a chunk that waits beside its bytes: there may be any number of empty ones."""
COMMAND_BYTES: Final = 1 << 20
COMMAND_RUNS: Final = 500
"""Bounds of the messages that go into one command (`stream.log.bodies` has the runs): each takes its time in apply."""
STEP_ENTRIES: Final = 64
"""Entries of an archive that are looked at in one step."""
MAX_RESTORES: Final = 32
MAX_HELD_BYTES: Final = 256 << 20
"""Restores under way on a node, and bytes that they hold together: more are refused, or ended."""
MAX_RATIO: Final = 256
ALLOWED_BYTES: Final = 64 << 20
"""Bounds of an archive's decompressed bytes: MAX_RATIO times the received ones and ALLOWED_BYTES more; and twice the
bytes that the stream has according to the request, which then have to be stored."""
MAX_STATE_BYTES: Final = 1 << 20
CONSUMER_SECONDS: Final = 20.0
"""Seconds for which the creation of each consumer of an archive is retried, as while the stream has no leader."""
AGAIN_SECONDS: Final = 0.25
MAX_IGNORED_ENTRIES: Final = 1000
MAX_IGNORED_BYTES: Final = 1 << 20
"""Entries of unknown kinds, and their bytes."""
MAX_BEGINNING_BYTES: Final = 8 << 20
"""Received bytes in which an archive must show its format: more than its first frame may have."""
_CREATE_TYPE: Final = "io.nats.jetstream.api.v1.stream_create_response"


async def restore(context: ApiContext, request: Request) -> Fields:
    config, declared = _wanted(context, request)
    room = context.restore_room
    if room.restores >= MAX_RESTORES:
        raise by_code(errors.INSUFFICIENT_RESOURCES)
    room.restores += 1
    try:
        receiver = await _begin(context, request, config, declared)
    except BaseException:
        room.restores -= 1
        raise
    request.follow = receiver.run
    return {"deliver_subject": receiver.subject.decode(), "success": True}


async def _begin(context: ApiContext, request: Request, config: Fields, declared: int) -> RestoreReceiver:
    """Assigns the stream and starts the receiver of its archive."""
    if await _exists(context, request):
        raise by_code(errors.STREAM_NAME_TAKEN)
    assignment = await _assign(context, request, config)
    receiver = RestoreReceiver(context, request, assignment, declared)
    receiver.listen()
    return receiver


async def _assign(context: ApiContext, request: Request, config: Fields) -> Assignment:
    """Raises ApiError."""
    limits = context.limits(request.account)
    stream_rules.check_config(config, limits.of(config["num_replicas"]))
    streams.check_republish(request, config)
    bounds = streams.new_limits(context, request.account, config)
    result = await streams.meta(context, "stream_create", request, config={**config, RESTORING: True}, **bounds)
    if not result["created"]:
        raise by_code(errors.STREAM_NAME_TAKEN)
    return Assignment.from_dict(result["assignment"])


def _adopted(context: ApiContext, request: Request, found: Fields) -> Fields:
    """The configuration in an archive, for the stream that the request names. Raises ApiError."""
    models.check_bounds(found)
    config = models.StreamConfig.from_object(found)
    config.name = request.stream
    limits = context.limits(request.account)
    return config.normalised(limits, auto_allow_direct=context.compat.auto_allow_direct).to_wire()


def _wanted(context: ApiContext, request: Request) -> tuple[Fields, int]:
    """The normalised configuration, and how many bytes the stream has had. An empty request gets the defaults
    until its archive says which one (`_adopted`)."""
    if not request.payload.strip():
        wanted = models.RestoreRequest(config=models.StreamConfig(name=request.stream), state=models.RestoreState())
    else:
        wanted = models.RestoreRequest.from_fields(request.fields, strict=request.strict)
    config = wanted.config
    if config is None or wanted.state is None or not config.name:
        raise by_code(errors.BAD_REQUEST)
    if config.name != request.stream:
        raise by_code(errors.STREAM_MISMATCH)
    stream_rules.check_name(config.name)
    limits = context.limits(request.account)
    normal = config.normalised(limits, auto_allow_direct=context.compat.auto_allow_direct)
    return normal.to_wire(), wanted.state.bytes


async def _exists(context: ApiContext, request: Request) -> bool:
    try:
        await streams.find(context, request)
    except ApiError as error:
        if error.err_code == errors.STREAM_NOT_FOUND:
            return False
        raise
    return True


@dataclass(slots=True)
class _Chunk:
    reply: bytes
    data: bytes


class RestoreReceiver:
    """A restore: the chunks of its client, in order, until the empty chunk, an error, or silence."""

    def __init__(self, context: ApiContext, request: Request, assignment: Assignment, declared: int) -> None:
        """`declared` is the number of bytes of the stream according to the client."""
        self._context = context
        self._room = context.restore_room
        self._declared = declared
        self._request = request
        self._bus: Bus = request.bus
        self._assignment = assignment
        self._stream = RestoreStream(context, request.account, assignment)
        self.subject = f"$JS.SNAPSHOT.RESTORE.{assignment.name}.{context.rng.token(4).hex()}".encode()
        self._waiting: asyncio.Queue[_Chunk] = asyncio.Queue()
        self._waiting_bytes = 0
        self._held = 0
        """The bytes that were last counted in the room."""
        self._received = 0
        self._decompressed = 0
        self._ignored = 0
        self._ignored_bytes = 0
        self._frames = s2.Decoder()
        self._beginning = bytearray()
        """All that was received before the format was known."""
        self._first = bytearray()
        """The archive's first bytes, until there are enough of them to tell its format."""
        self._format_known = False
        self._reader = stream_archive.ArchiveReader()
        self._tar: TarRestore | None = None
        """The archive, of format V1."""
        self._messages: list[Msg] = []
        self._messages_bytes = 0
        self._runs = 0
        """Runs that the messages make, at least."""
        self._last = (0, 0)
        """Sequence and time of the newest message."""
        self._subject = b""
        """The subject that was last checked."""
        self._state: Fields = {}
        self._settled = False
        """True once the configuration of the stream is known."""
        self._consumers: list[tuple[str, Callable[[], Steps[Fields]]]] = []
        """Name of each, and what reads its entry."""
        self._consumers_bytes = 0

    def listen(self) -> None:
        self._subscription = self._bus.subscribe(self.subject, self._on_chunk)

    def _on_chunk(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        self._waiting_bytes += len(payload) + CHUNK_OVERHEAD_BYTES
        self._waiting.put_nowait(_Chunk(reply, payload))
        self._count()
        if self._waiting_bytes > MAX_WAITING_BYTES or self._room.held > MAX_HELD_BYTES:
            self._bus.unsubscribe(self._subscription)

    def _count(self, *, over: bool = False) -> None:
        """Reports to the room the bytes that this restore holds now."""
        parts = (
            *(self._waiting_bytes, self._frames.held, self._reader.held, self._messages_bytes, self._consumers_bytes),
            *(len(self._beginning), self._tar.held if self._tar is not None else 0),
        )
        held = 0 if over else sum(parts)
        self._room.held += held - self._held
        self._held = held

    async def run(self) -> None:
        context, name = self._context, self._assignment.name
        client = self._request.client()
        advisories = context.advisories()
        start = context.clock.time_ns()
        tell_transfer(self._bus, name, "restore_create", advisories.restore_create(name, client))
        done = False
        beat = asyncio.get_running_loop().create_task(self._beat())
        try:
            done = await self._take_all()
        finally:
            beat.cancel()
            self._bus.unsubscribe(self._subscription)
            self._room.restores -= 1
            self._count(over=True)
            try:
                if not done:
                    await self._undo()
            finally:
                if self._tar is not None:
                    await self._tar.close()
        if done:
            event = advisories.restore_complete(name, start, self._received, client)
            tell_transfer(self._bus, name, "restore_complete", event)

    async def _beat(self) -> None:
        """Keeps the restore alive: without this the meta leader gives it up (`RestoreWatch`), as when this node
        dies."""
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            try:
                await self._context.cluster.meta_request("restore_alive", {"gid": self._assignment.gid})
            except ApiError as error:
                self._context.log.debug("nobody leads the cluster", error=str(error))

    async def _take_all(self) -> bool:
        """Returns True when the stream is complete. The client has its answer then, as after an error."""
        reply = b""
        try:
            # The replicas must know that the stream is being restored before its first message comes.
            await self._stream.ready()
            while True:
                try:
                    async with asyncio.timeout(IDLE_SECONDS):
                        chunk = await self._waiting.get()
                except TimeoutError:
                    self._context.log.warning("restore was not continued", stream=self._assignment.name)
                    return False
                reply = chunk.reply
                self._waiting_bytes -= len(chunk.data) + CHUNK_OVERHEAD_BYTES
                if not reply:
                    self._context.log.warning("restore chunk without a reply subject", stream=self._assignment.name)
                    return False
                if not chunk.data:
                    break
                self._stream.check()
                self._received += len(chunk.data)
                await self._take(chunk.data)
                self._bus.publish(reply)
            answer = await self._finish()
        except (s2.S2Error, stream_archive.ArchiveError) as error:
            self._refuse(reply, by_code(errors.RESTORE_FAILED, err=str(error)))
            return False
        except ApiError as error:
            self._refuse(reply, error)
            return False
        except Exception as error:  # noqa: BLE001 - the sender of any archive gets an answer
            self._context.log.error("restore failed", stream=self._assignment.name, error=repr(error))  # noqa: TRY400
            self._refuse(reply, by_code(errors.RESTORE_FAILED, err="the archive cannot be taken in"))
            return False
        self._bus.publish(reply, answer)
        return True

    async def _take(self, data: bytes) -> None:
        """Decodes in steps, as decoding is slow; complete commands are stored in between."""
        if not self._format_known:
            self._beginning += data
        decoding = self._decoding(data)
        while await self._in_steps(self._until_full(decoding)):
            await self._flush()
        await self._set_aside(data)
        self._check_held()

    def _check_held(self) -> None:
        self._count()
        if self._room.held > MAX_HELD_BYTES:
            raise stream_archive.ArchiveError("too much is being restored at the same time")

    async def _set_aside(self, data: bytes) -> None:
        """Keeps what was received of an archive of format V1, which is read a second time."""
        if not self._format_known:
            if len(self._beginning) > MAX_BEGINNING_BYTES:
                raise stream_archive.ArchiveError("unknown archive format")
            return
        if self._tar is not None:
            await self._tar.keep(bytes(self._beginning) or data)
        self._beginning.clear()

    async def _in_steps(self, steps: Steps[T]) -> T:
        """Raises ApiError when too many others wait."""
        try:
            return await self._context.budget.run(self._request.account, steps)
        except BusyError:
            raise by_code(errors.NOT_AVAILABLE) from None

    @property
    def _is_full(self) -> bool:
        """True when there is enough for a command."""
        return self._messages_bytes >= COMMAND_BYTES or self._runs >= COMMAND_RUNS

    def _until_full(self, decoding: Iterator[None]) -> Steps[bool]:
        """False when there was no more."""
        for _ in decoding:
            if self._is_full:
                return True
            yield
        return False

    def _decoding(self, data: bytes) -> Iterator[None]:
        for content in self._frames.steps(data):
            if content is not None:
                self._check_size(len(content))
                if not self._format_known:
                    content = self._told_format(content)
                if self._tar is not None:
                    yield from self._tar.survey(content)
                    continue
                for number, entry in enumerate(self._reader.feed(content)):
                    self._note(entry)
                    if self._is_full or number % STEP_ENTRIES == STEP_ENTRIES - 1:
                        yield
            yield

    def _told_format(self, content: bytes) -> bytes:
        """Returns what can be read by now: nothing before the format is known."""
        self._first += content
        if len(self._first) < len(stream_archive.MAGIC):
            return b""
        self._format_known = True
        if not self._first.startswith(stream_archive.MAGIC):
            if self._context.spool is None:
                raise stream_archive.ArchiveError("this server has no disk to set an archive of this format aside")
            from jetcluster.api.restore_tar import TarRestore  # few servers ever see one
            from jetcluster.api.spool_room import SpoolClaim

            claim = SpoolClaim(self._context, self._request.account, self._assignment)
            self._tar = TarRestore(self._context.spool(), claim)
        first = bytes(self._first)
        self._first.clear()
        return first

    def _check_size(self, more: int) -> None:
        self._decompressed += more
        allowed = MAX_RATIO * self._received + ALLOWED_BYTES
        idle = self._tar.idle if self._tar is not None else 0  # which is not stored, whatever was declared
        if self._decompressed > allowed + 2 * self._declared or idle > allowed:
            raise stream_archive.ArchiveError("the archive is larger than what was received can hold")

    def _note(self, entry: stream_archive.ArchiveEntry) -> None:
        if not entry.seq:
            self._note_other(entry)
            return
        seq, ts = self._last
        if entry.seq <= seq:
            raise stream_archive.ArchiveError("messages out of order")
        if entry.name != self._subject or not entry.name:
            _check_subject(entry)
            self._subject = entry.name
        at = entry.ts
        if (
            seq and -LATEST_TIME <= at < ts
        ):  # as clocks of nats-server's leaders differed; in a stream of ours times never go back
            at = ts + 1
        if entry.seq != seq + 1 or at != ts + 1 or not self._messages:
            self._runs += 1
        self._last = entry.seq, at
        block = entry.headers
        if block and not block.startswith(b"NATS/1.0\r\n"):  # a status is the server's word, also for a published one
            block = headers.without_status(block)
        self._messages.append(Msg(entry.seq, at, entry.name, block, entry.payload))
        self._messages_bytes += len(entry.name) + len(block) + len(entry.payload) + 64

    def _note_other(self, entry: stream_archive.ArchiveEntry) -> None:
        """Takes an entry of the archive that is no message."""
        size = len(entry.name) + len(entry.headers) + len(entry.payload)
        if entry.name == stream_archive.STATE_NAME and not self._state:
            if size > MAX_STATE_BYTES:
                raise stream_archive.ArchiveError(f"{stream_archive.STATE_NAME.decode()} of {size} bytes")
            self._state = _object(entry.payload)
        elif entry.name.startswith(stream_archive.CONSUMER_PREFIX):
            self._consumers_bytes += size + stream_archive.CONSUMER_OVERHEAD_BYTES
            total = self._consumers_bytes
            if size > stream_archive.MAX_CONSUMER_BYTES or total > stream_archive.MAX_CONSUMERS_BYTES:
                raise stream_archive.ArchiveError("too many consumers, or one of them is too large")
            name = entry.name[len(stream_archive.CONSUMER_PREFIX) :].decode("utf-8", "replace")
            self._consumers.append((name, partial(reading, entry.payload)))
        else:
            self._ignored += 1
            self._ignored_bytes += size
            if self._ignored > MAX_IGNORED_ENTRIES or self._ignored_bytes > MAX_IGNORED_BYTES:
                raise stream_archive.ArchiveError("too much in it that belongs to no stream")

    async def _flush(self) -> None:
        await self._settle_config()
        if self._messages:
            messages, self._messages = self._messages, []
            self._messages_bytes = self._runs = 0
            runs = await self._in_steps(_encoded(messages))
            await self._stream.ask("restore", {"runs": runs})

    async def _settle_config(self) -> None:
        """Replaces the stream of default configuration by one of the archive's, before anything is stored. Raises
        ApiError."""
        found, settled = self._state.get("config"), self._settled
        self._settled = True
        if not settled and isinstance(found, dict) and not self._request.payload.strip():
            await self._undo()
            context, request = self._context, self._request
            self._assignment = await _assign(context, request, _adopted(context, request, found))
            self._stream = RestoreStream(context, request.account, self._assignment)
            await self._stream.ready()

    async def _finish(self) -> bytes:
        """Makes the stream an ordinary one. Returns the reply to the last chunk."""
        complete = self._reader.finished or self._tar is not None
        if not (complete and self._frames.between_chunks):
            raise stream_archive.ArchiveError("the archive is not complete")
        if self._tar is not None:
            await self._take_again(self._tar)
        await self._flush()
        last_seq, last_ts = self._last
        declared = self._state.get("last_seq")
        if isinstance(declared, int) and last_seq < declared < 1 << 63:
            last_seq = declared
        await self._stream.ask("restore_end", {"last_seq": last_seq, "last_ts": last_ts})
        context, request = self._context, self._request
        assignment = self._assignment
        # Before the stream is an ordinary one: a message may be there for one of them only (interest retention).
        for name, content in self._consumers:
            await self._restore_consumer(assignment, name, content)
        try:
            result = await streams.meta(context, "stream_restored", request, name=assignment.name, gid=assignment.gid)
            assignment = Assignment.from_dict(result["assignment"])
            info = await self._stream.ready(assignment)
        except ApiError as error:
            self._stream.check()
            if error.err_code == errors.STREAM_NOT_FOUND:
                raise deleted() from error
            raise by_code(errors.NOT_AVAILABLE) from error  # it may be an ordinary stream all the same
        tell_created(context, request, assignment.name)
        return dumps({"type": _CREATE_TYPE, **streams.stream_info(context, assignment, info)})

    async def _take_again(self, tar: TarRestore) -> None:
        """Reads the archive a second time, now that it is known which of its messages are there."""
        self._state, consumers = await self._in_steps(tar.state())
        self._consumers += consumers
        async for entries in tar.messages():
            noting = self._noting(entries)
            while await self._in_steps(self._until_full(noting)):
                await self._flush()

    def _noting(self, entries: Iterator[stream_archive.ArchiveEntry | None]) -> Iterator[None]:
        for number, entry in enumerate(entries):
            if entry is not None:
                self._note(entry)
            if entry is None or self._is_full or number % STEP_ENTRIES == STEP_ENTRIES - 1:
                self._check_held()
                yield

    async def _restore_consumer(self, assignment: Assignment, name: str, reading: Callable[[], Steps[Fields]]) -> None:
        """Creates a consumer, with retries after transient errors. Raises ApiError: without one of its consumers, and
        what that had acknowledged, the stream is not the one of the archive."""
        request_id = self._context.request_id()
        end = self._context.clock.monotonic() + CONSUMER_SECONDS
        while True:
            try:
                await self._create_consumer(assignment, name, await self._in_steps(reading()), request_id)
            except ApiError as error:
                self._stream.check()
                if not error.retriable:
                    raise by_code(errors.RESTORE_FAILED, err=f"consumer {name}: {error}") from error
                if self._context.clock.monotonic() >= end:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
            except ValueError as error:
                raise by_code(errors.RESTORE_FAILED, err=f"consumer {name}: {error}") from error
            else:
                return

    async def _create_consumer(self, assignment: Assignment, name: str, found: Fields, request_id: str) -> None:
        """Raises ApiError or ValueError when such a consumer cannot exist here."""
        limits = self._context.limits(self._request.account).of(assignment.replicas)
        wish = {"stream_name": assignment.name, "config": found.get("config")}
        given = models.ConsumerCreateRequest.from_fields(wish, strict=False).config.to_wire()
        consumer_rules.check_name(name)
        retention = assignment.config["retention"]
        given["num_replicas"] = consumer_rules.replicas_within(
            given.get("num_replicas", 0), assignment.replicas, retention
        )
        check_target(self._request, given.get("deliver_subject") or "")
        config = consumer_rules.with_defaults({**given, "name": name}, assignment.config, limits, pedantic=False)
        consumer_rules.check_config(name, config, assignment.config, limits)
        check_letters(self._request, config)
        body: Fields = {
            "name": name,
            "config": config,
            "action": "create",
            "request": request_id,
            "restored": await self._in_steps(archived.decoding(found.get("state") or {})),
        }
        if (created := archived.created(found.get("state"))) is not None:
            body["created"] = created
        await self._stream.ask("consumer_create", body)

    def _refuse(self, reply: bytes, error: ApiError) -> None:
        if reply:
            self._bus.publish(reply, dumps({"type": _CREATE_TYPE, "error": error.to_dict()}))

    async def _undo(self) -> None:
        """Deletes the stream, unless it has become an ordinary one, which may hold more by now."""
        name, account = self._assignment.name, self._request.account
        try:
            found = await self._context.cluster.meta_request("lookup", {"account": account, "name": name})
            if not found["assignment"]["config"].get(RESTORING):
                return
            await streams.meta(self._context, "stream_delete", self._request, name=name, gid=self._assignment.gid)
        except ApiError as error:
            if error.err_code != errors.STREAM_NOT_FOUND:  # the meta leader will give it up (`RestoreWatch`)
                self._context.log.warning("a half restored stream is left for now", stream=name, error=str(error))


def _check_subject(entry: stream_archive.ArchiveEntry) -> None:
    """The subject goes to readers in a line of the protocol. One that can be published passes, whatever else is
    odd about it, and so does any header block: its length goes before it. Raises ArchiveError."""
    subject = entry.name
    if not is_sendable(subject) or len(subject) > MAX_SUBJECT:
        raise stream_archive.ArchiveError(f"nobody can publish to the subject of message {entry.seq}: {subject[:64]!r}")


def tell_created(context: ApiContext, request: Request, name: str) -> None:
    event = stream_action(name, "create")
    if request.bus.has_interest(event.subject):
        request.bus.publish(event.subject, context.advisories().render(event, request.client()))


def _encoded(messages: Sequence[Msg]) -> Steps[str]:
    """Their runs, for a request."""
    runs: list[Run] = []
    for found in restoring.each_run(messages):
        runs.append(found)
        if len(runs) % STEP_ENTRIES == 0:
            yield
    return base64.b64encode(encode_runs(runs)).decode()


def reading(raw: bytes) -> Steps[Fields]:
    """The object in the entry of a consumer, which may have millions of members. Raises ValueError."""
    try:
        found = yield from json_steps.decoding(raw.decode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("too deep") from error
    return found if isinstance(found, dict) else {}


def _object(raw: bytes) -> Fields:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise stream_archive.ArchiveError(f"{stream_archive.STATE_NAME.decode()} is no JSON") from error
    return found if isinstance(found, dict) else {}
