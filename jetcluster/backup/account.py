"""`AccountReader`: an account's streams, consumers and messages, read by requests that stock servers answer."""

from __future__ import annotations

import base64
import heapq
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from jetcluster.backup.segment import StoredMessage
from jetcluster.backup.sequences import Sequences
from jetcluster.backup.snapshot_reader import SnapshotEndedError, consumers_in, entries
from jetcluster.client.connection import Connection, Gather
from jetcluster.client.listing import UnansweredError, listed
from jetcluster.client.reply import ConnectionLostError, NoRespondersError, Reply, ServerError, api_error
from jetcluster.client.servers import PATIENCE_SECONDS, ServerOptions
from jetcluster.client.survey import whoami
from jetcluster.errors import ApiError, JetclusterError, PassingError
from jetcluster.model.times import parse_rfc3339
from jetcluster.protocol.stream_archive import ArchiveError

T = TypeVar("T")
Fields = dict[str, Any]

MAX_DELETED: Final = 1_000_000
"""Deleted messages between a stream's first and last one that are asked for by number, some 8 MB of JSON."""
BATCH: Final = 1000
BATCH_BYTES: Final = 4 << 20
"""Messages, and bytes, of one answer."""
REQUESTS: Final = 64
SINGLES_BYTES: Final = 64 << 20
"""Single messages that are asked for at the same time, and the most bytes that these may be."""
ANSWER_SECONDS: Final = 15.0
LAG_SECONDS: Final = 3.0
"""Time for a replica that does not have the last messages yet."""
RETRY_SECONDS: Final = 0.1
SINGLE_GETS: Final = 1000
"""Missing messages that are asked of the leader at once; with more, the stream's list of deleted ones is read first."""
_STATE_FIELDS: Final = ("messages", "bytes", "first_seq", "first_ts", "last_seq", "last_ts")
_OWN_FIELDS: Final = b"\r\nNats-Stream: "
_NO_MESSAGE: Final = 10037
_NO_CONSUMER: Final = 10014


@dataclass(frozen=True, slots=True)
class StreamSeen:
    """A stream as its leader describes it."""

    name: str
    created: str
    config: Fields
    state: Fields
    consumers: int
    live: Sequences | None = field(repr=False, default=None)
    """The stored sequences; None if they are too many to be listed."""

    @property
    def last(self) -> int:
        return int(self.state["last_seq"])

    @property
    def direct(self) -> bool:
        return bool(self.config.get("allow_direct"))


class AccountReader:
    """Requests to any server of a cluster, repeated at the next one for `patience` seconds while errors are of the kind
    that passes. A context, which closes the connection."""

    def __init__(self, options: ServerOptions, patience: float = PATIENCE_SECONDS) -> None:
        self._options = options
        self._patience = patience
        self._connection: Connection | None = None
        self._tried = 0
        self._reached = False
        self._closed_bytes = 0

    def __enter__(self) -> AccountReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    @property
    def read_bytes(self) -> int:
        """Bytes that came from the servers."""
        return self._closed_bytes + (self._connection.received_bytes if self._connection is not None else 0)

    def connection(self) -> Connection:
        """Raises as `Connection`; ServerError when no server was ever reached."""
        if self._connection is None:
            try:
                self._connection = self._options.connect(self._tried)
            except ConnectionLostError as error:
                if not self._reached:
                    raise ServerError(str(error)) from error  # most likely the URL is wrong: no patience
                raise
            self._reached = True
        return self._connection

    def drop(self) -> None:
        """Closes the connection; the next request goes to another server."""
        if self._connection is not None:
            self._closed_bytes += self._connection.received_bytes
            self._connection.close()
            self._connection = None
            self._tried += 1

    def ask(self, question: Callable[[Connection], T]) -> T:
        """Returns the answer to `question`. Raises the last error when the patience is over, others at once."""
        deadline = time.monotonic() + self._patience
        pause = RETRY_SECONDS
        while True:
            try:
                return question(self.connection())
            except (PassingError, ApiError) as error:
                if not error.retriable or time.monotonic() + pause > deadline:
                    raise
                if not isinstance(error, (NoRespondersError, SnapshotEndedError, UnansweredError, ApiError)):
                    self.drop()
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def api(self, subject: str, body: object = None) -> Fields:
        return self.ask(lambda connection: connection.api(subject, body, timeout=ANSWER_SECONDS))

    # ---- what there is

    def info(self) -> Fields:
        """Limits and usage, and the names of cluster and account, "" where they are not told."""
        found = self.api("INFO")
        found.pop("type", None)
        cluster = self.ask(lambda connection: str(connection.info.get("cluster") or ""))
        return {**found, "cluster": cluster, "account": self._account_name()}

    def _account_name(self) -> str:
        """ "" where the user may not ask: a refusal ends the use of a connection, so it has one of its own."""
        try:
            with self._options.connect(self._tried + 1) as connection:
                return str((whoami(connection) or {}).get("account") or "")
        except PassingError:
            return ""

    def configs(self) -> dict[str, Fields]:
        """Stream -> configuration, of all streams. Raises UnansweredError for one without a leader: a backup without
        it would look whole."""
        return self.ask(lambda _: self._configs())

    def _configs(self) -> dict[str, Fields]:
        names = listed(self.api, "STREAM.NAMES", "streams").entries
        found = listed(self.api, "STREAM.LIST", "streams")
        left = sorted(found.missing | (names.keys() - found.entries.keys()))
        if silent := [name for name in left if self.look(name) is not None]:
            raise UnansweredError(f"STREAM.LIST lacks {', '.join(silent[:5])}")
        return {name: one["config"] for name, one in found.entries.items()}

    def look(self, name: str) -> StreamSeen | None:
        """Returns the stream as it is now; None if there is none."""
        try:
            told = self.api(f"STREAM.INFO.{name}")
            if int(told["state"].get("num_deleted") or 0) <= MAX_DELETED:
                told = self.api(f"STREAM.INFO.{name}", {"deleted_details": True})
        except ApiError as error:
            if error.is_stream_not_found:
                return None
            raise
        state = told["state"]
        gone, listed = int(state.get("num_deleted") or 0), state.get("deleted") or []
        live = None
        if gone == len(listed):
            live = Sequences.stored(int(state["first_seq"]), int(state["last_seq"]), listed)
            if len(live) != int(state["messages"]):
                live = None
        kept = {key: state[key] for key in _STATE_FIELDS}
        return StreamSeen(name, str(told["created"]), told["config"], kept, int(state.get("consumer_count") or 0), live)

    def consumers(self, name: str) -> dict[str, Fields]:
        """Consumer -> its entry of an archive, with its ack floor and what is pending. A server that has no archives of
        format V2 tells the ack floors alone."""
        try:
            return self.ask(lambda connection: consumers_in(connection, name, ANSWER_SECONDS))
        except ArchiveError:
            return self.ask(lambda _: self._consumers_by_info(name))

    def _consumers_by_info(self, name: str) -> dict[str, Fields]:
        listing = listed(self.api, f"CONSUMER.LIST.{name}", "consumers")
        if listing.missing:
            raise UnansweredError(f"{name}: consumers that do not answer: {', '.join(sorted(listing.missing)[:5])}")
        found: dict[str, Fields] = {}
        for consumer, one in listing.entries.items():
            floor = {key: int(one["ack_floor"][key]) for key in ("consumer_seq", "stream_seq")}
            found[consumer] = {"config": one["config"], "state": {"delivered": floor, "ack_floor": floor}}
        return found

    def consumer(self, stream: str, name: str) -> Fields | None:
        """Returns a consumer's info; None if there is none."""
        try:
            return self.api(f"CONSUMER.INFO.{stream}.{name}")
        except ApiError as error:
            if error.err_code == _NO_CONSUMER:
                return None
            raise

    # ---- messages

    def whole(self, name: str) -> Iterator[StoredMessage]:
        """Yields all messages, by a snapshot of the leader. Raises SnapshotEndedError if it is not continued."""
        for entry in entries(self.connection(), name, ANSWER_SECONDS, consumers=False):
            if entry.seq:
                yield StoredMessage(entry.seq, entry.ts, entry.name, entry.headers, entry.payload)

    def messages(self, stream: StreamSeen, wanted: Sequences) -> Iterator[StoredMessage]:
        """Yields the wanted messages, ascending; those that are not there any more are left out."""
        if not stream.direct:
            yield from self.singles(stream.name, wanted)
            return
        while wanted:
            found = self._batch(stream.name, wanted)
            up_to = found[-1].seq if found else wanted.last
            missing = wanted.within(wanted.first, up_to).without(Sequences.of(one.seq for one in found))
            yield from heapq.merge(found, self._missing(stream.name, missing), key=lambda one: one.seq)
            wanted = wanted.after(up_to)

    def _batch(self, name: str, wanted: Sequences) -> list[StoredMessage]:
        """Returns the first of the wanted messages by a Direct Get; none if no replica has any."""
        body = json.dumps({"seq": wanted.first, "batch": BATCH, "max_bytes": BATCH_BYTES}).encode()
        deadline = time.monotonic() + LAG_SECONDS

        def question(connection: Connection) -> Gather:
            subject = f"{connection.api_prefix}DIRECT.GET.{name}"
            gather = connection.gather(subject, body, timeout=ANSWER_SECONDS)
            end = gather.wait()
            if end.status == 503:
                raise NoRespondersError(f"no replica of {name} answers Direct Gets")
            if end.status not in (204, 404):
                raise ApiError(end.status, 0, f"{name}: Direct Get was answered with {end.description}")
            return gather

        # A mirror may have answered: its messages are another stream's.
        origin = _OWN_FIELDS + name.encode() + b"\r\n"
        while True:
            frames = [(head, payload) for head, payload in self.ask(question).frames() if origin in head]
            found = [message for message in (_direct(*frame) for frame in frames) if message.seq in wanted]
            if found or time.monotonic() > deadline:
                return found
            time.sleep(RETRY_SECONDS)

    def _missing(self, name: str, missing: Sequences) -> Iterator[StoredMessage]:
        """Asks the leader for messages that a replica does not have, as they are deleted, or as it is behind."""
        if len(missing) > SINGLE_GETS:
            seen = self.look(name)
            if seen is None:
                return
            if seen.live is not None:
                missing = missing.common(seen.live)
        yield from self.singles(name, missing)

    def singles(self, name: str, wanted: Sequences) -> Iterator[StoredMessage]:
        """Yields single messages, as the leader has them, ascending; as many are asked for at the same time as are
        SINGLES_BYTES if each is as large as servers let it be."""
        if not wanted:
            return
        largest = self.ask(lambda connection: connection.max_payload)
        for part in wanted.slices(max(1, min(REQUESTS, SINGLES_BYTES // largest))):
            yield from self.ask(partial(_singles, name, part))


def _singles(name: str, wanted: Sequences, connection: Connection) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    subject = f"{connection.api_prefix}STREAM.MSG.GET.{name}"
    failure: JetclusterError | None = None
    for seq in wanted:
        connection.publish_acked(subject, b'{"seq":%d}' % seq)
    for _, reply in connection.acks(0, ANSWER_SECONDS):
        try:
            if (message := _single(reply)) is not None:
                found.append(message)
        except JetclusterError as error:
            failure = error
    if failure is not None:
        raise failure
    return sorted(found, key=lambda one: one.seq)


def _single(reply: Reply) -> StoredMessage | None:
    """Decodes the answer to a STREAM.MSG.GET; None for a message that is not there."""
    if reply.status == 503:
        raise NoRespondersError("nobody answers STREAM.MSG.GET")
    answer = json.loads(reply.data.decode("utf-8", "surrogateescape"))
    if error := answer.get("error"):
        failed = api_error(error)
        if failed.err_code == _NO_MESSAGE:
            return None
        raise failed
    found = answer["message"]
    return StoredMessage(
        int(found["seq"]), parse_rfc3339(found["time"]), found["subject"].encode("utf-8", "surrogateescape"),
        base64.b64decode(found.get("hdrs") or ""), base64.b64decode(found.get("data") or ""),
    )  # fmt: skip


def _direct(head: bytes, payload: bytes) -> StoredMessage:
    """Decodes a frame of a Direct Get, whose last fields are the server's own."""
    at = head.rfind(_OWN_FIELDS)
    own = dict(line.split(b": ", 1) for line in head[at + 2 : -4].split(b"\r\n"))
    block = head[: at + 2] + b"\r\n" if at > len(b"NATS/1.0") else b""
    ts = parse_rfc3339(own[b"Nats-Time-Stamp"].decode())
    return StoredMessage(int(own[b"Nats-Sequence"]), ts, own[b"Nats-Subject"], block, payload)
