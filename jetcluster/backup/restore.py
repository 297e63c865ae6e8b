"""`RestoreRun`: streams of a restore point, made again on servers by STREAM.RESTORE, and compared afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from jetcluster.backup import plan
from jetcluster.backup.account import AccountReader, StreamSeen
from jetcluster.backup.consumers import archived
from jetcluster.backup.point import RestorePoint, StreamPoint
from jetcluster.backup.segment import MessageSum
from jetcluster.backup.sequences import DamagedBackupError
from jetcluster.backup.storage import BackupStorage
from jetcluster.backup.verify import Difference, Renamed, StoredStream, compare
from jetcluster.client.restore_transfer import Consumers, RestoreTransfer, framed
from jetcluster.client.servers import ServerOptions
from jetcluster.errors import ApiError, CallerError, JetclusterError, PassingError
from jetcluster.model.subjects import overlap

Fields = dict[str, Any]
Say = Callable[[str], None]

BLOB_BYTES: Final = 512 * 1024
MAX_ATTEMPTS: Final = 5
NAME_TAKEN: Final = 10130
NAME_IN_USE: Final = 10058
GONE_SECONDS: Final = 25.0
"""The longest wait until the servers have removed the incomplete stream of an interrupted attempt."""
PAUSE_SECONDS: Final = 0.5
APPEAR_SECONDS: Final = 10.0
"""The longest wait until a restored stream and its consumers are told by every server."""
_BUCKET: Final = "KV_"
_UNBOUND: Final = {"max_age": 0, "max_msgs": -1, "max_bytes": -1}


class RestoreRefusedError(CallerError):
    """The restore would change a stream that exists, or its options do not fit the point."""


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """The streams to be restored, and their differences from the backup."""

    streams: tuple[str, ...] = ()
    """None: all."""
    name: str = ""
    """Another name, for one stream."""
    subjects: tuple[str, ...] = ()
    replicas: int = 0
    no_limits: bool = False
    overwrite: bool = False
    verify: bool = True
    no_consumers: bool = False

    def check(self, point: RestorePoint) -> None:
        """Raises RestoreRefusedError."""
        names = {one.name for one in point.streams}
        if missing := sorted(set(self.streams) - names):
            raise RestoreRefusedError(f"the point {point.name} has no stream {missing[0]}")
        if (self.name or self.subjects) and len(self.streams) != 1:
            raise RestoreRefusedError("another name, or other subjects, are for one stream: name it with --stream")
        if self.subjects and not self.name:
            raise RestoreRefusedError("other subjects are for a stream with another name: --as")

    def renamed(self, one: StreamPoint) -> Renamed | None:
        """The change of the messages' subjects: a key-value bucket is found by them."""
        if not (self.name.startswith(_BUCKET) and one.name.startswith(_BUCKET)) or self.name == one.name:
            return None
        old, new = (f"$KV.{name.removeprefix(_BUCKET)}.".encode() for name in (one.name, self.name))
        return Renamed(old, new)

    def config(self, one: StreamPoint) -> Fields:
        """The configuration of the new stream."""
        found = dict(one.config)
        if self.name:
            found["name"] = self.name
        if (renamed := self.renamed(one)) is not None:
            old, new = renamed.old.decode(), renamed.new.decode()
            found["subjects"] = [
                new + name.removeprefix(old) if name.startswith(old) else name for name in found.get("subjects") or []
            ]
        if self.subjects:
            found["subjects"] = list(self.subjects)
        if self.replicas:
            found["num_replicas"] = self.replicas
        if self.no_limits:
            found |= _UNBOUND
        return found


@dataclass(slots=True)
class RestoredStream:
    """The outcome for a stream."""

    name: str
    messages: int
    was_there: bool = False
    gone: int = 0
    """Messages that a limit or a consumer removed meanwhile."""
    consumers: int = 0


class RestoreRun:
    """One restore."""

    def __init__(
        self,
        servers: ServerOptions,
        account: AccountReader,
        storage: BackupStorage,
        point: RestorePoint,
        options: RestoreOptions,
        say: Say,
    ) -> None:
        """Raises RestoreRefusedError."""
        options.check(point)
        self._servers = servers
        self._account = account
        self._storage = storage
        self._options = options
        self._say = say
        self._wanted = plan.at_point(point.streams, options.streams)

    def run(self, *, dry: bool = False) -> list[RestoredStream]:
        """Makes the streams that are not there. Raises RestoreRefusedError, before anything is made, if one is there
        and differs; DamagedBackupError for damaged blobs and for a restored stream that differs; and the errors of the
        storage and the servers."""
        there = self._look()
        self._check_blobs()
        self._check_subjects(there)
        if dry:
            return [self._foretold(one, one.name in there) for one in self._wanted]
        for one in self._wanted:
            if one.name in there and not there[one.name][1]:
                self._check_replacement(one)
        return [self._one(one, there.get(one.name)) for one in self._wanted]

    def _look(self) -> dict[str, tuple[StreamSeen, bool]]:
        """Stream of the point -> (the one that is there, whether it is equal). Raises RestoreRefusedError."""
        found: dict[str, tuple[StreamSeen, bool]] = {}
        different: list[str] = []
        for one in self._wanted:
            seen = self._account.look(self._target(one))
            if seen is None:
                continue
            told = ("messages", "last_seq")
            equal = all(seen.state[key] == one.state[key] for key in told) and not self._compare(one, seen)
            if equal and not same_config(seen.config, self._options.config(one)):
                equal = not self._options.overwrite
                self._say(f"{seen.name}: its messages are those of the backup, its configuration is not")
            found[one.name] = seen, equal
            if not equal:
                different.append(seen.name)
        if different and not self._options.overwrite:
            names = ", ".join(different)
            raise RestoreRefusedError(
                f"already there, and not as in the backup: {names}. Restore under another name (--as), or delete "
                "what is there (--overwrite)"
            )
        return found

    def _check_blobs(self) -> None:
        """Raises DamagedBackupError if a blob is missing."""
        held = {file.path: file.size for file in self._storage.list("blobs")}
        for one in self._wanted:
            for blob in one.blobs:
                if held.get(blob.path) != blob.size:
                    raise DamagedBackupError(f"{one.name}: {self._storage.url}/{blob.path} is missing or cut off")

    def _check_subjects(self, there: Mapping[str, tuple[StreamSeen, bool]]) -> None:
        """Raises RestoreRefusedError if another stream has a subject of one that is to be made."""
        made = {self._target(one): one for one in self._wanted if one.name not in there or not there[one.name][1]}
        for name, config in self._account.configs().items() if made else ():
            if name in made:
                continue
            for target, one in made.items():
                for subject in self._options.config(one).get("subjects") or []:
                    if any(overlap(subject, taken) for taken in config.get("subjects") or []):
                        raise RestoreRefusedError(f"{target}: the stream {name} has its subject {subject}")

    def _check_replacement(self, one: StreamPoint) -> None:
        """Looks whether a stream could be made in place of the one that is there, before that is deleted: a restore
        under another name is begun with its limits, replicas and placement. Raises RestoreRefusedError,
        DamagedBackupError and TooManyConsumersError."""
        target = self._target(one)
        stored = StoredStream(self._storage, one)
        stored.check()
        archived(self._consumers(stored))
        config = trial(self._options.config(one))
        try:
            with self._servers.connect(0) as connection:
                self._begun(lambda: RestoreTransfer(connection, config, one.state), again=True)
        except ApiError as error:
            raise RestoreRefusedError(
                f"{target}: the servers would refuse it, so nothing was deleted: {error}"
            ) from error
        with contextlib.suppress(ApiError):  # the server removes it soon, too
            self._account.api(f"STREAM.DELETE.{config['name']}")

    def _consumers(self, stored: StoredStream) -> dict[str, Fields]:
        return {} if self._options.name or self._options.no_consumers else stored.consumers()

    def _target(self, one: StreamPoint) -> str:
        return self._options.name or one.name

    def _foretold(self, one: StreamPoint, there: bool) -> RestoredStream:
        what = "is there" if there else "would be made"
        self._say(f"{self._target(one)}: {what}; {one.messages} messages up to sequence {one.state['last_seq']}")
        return RestoredStream(self._target(one), one.messages, was_there=there)

    # ---- one stream

    def _one(self, one: StreamPoint, there: tuple[StreamSeen, bool] | None) -> RestoredStream:
        target = self._target(one)
        stored = StoredStream(self._storage, one)
        consumers = self._consumers(stored)
        entries, cut = archived(consumers)
        for name in cut:
            self._say(f"{target}: consumer {name} has too much pending: its ack floor alone is restored")
        if there is not None:
            if there[1]:
                self._say(f"{target}: is there already, as in the backup")
                return RestoredStream(target, one.messages, was_there=True)
            self._account.api(f"STREAM.DELETE.{target}")
            self._say(f"{target}: deleted, as asked")
        sending = _Sending(stored, self._options.renamed(one))
        answer = self._transfer(sending, self._options.config(one), list(entries.items()))
        result = RestoredStream(target, one.messages, consumers=len(consumers))
        if self._options.verify:
            self._verify(sending, answer, result, consumers)
        if one.config.get("sealed"):
            self._account.api(f"STREAM.UPDATE.{target}", self._options.config(one))
        extra = f", {result.gone} of them gone since by a limit or a consumer" if result.gone else ""
        self._say(f"{target}: {one.messages} messages{extra}, {len(consumers)} consumers restored")
        return result

    def _transfer(self, sending: _Sending, config: Fields, entries: Consumers) -> Fields:
        """Returns the answer to the restore."""
        config = {key: value for key, value in config.items() if key != "sealed"}  # messages could not be put into it
        state = {**sending.stored.point.state, "consumer_count": len(entries)}
        attempt = 0
        while True:
            attempt += 1
            try:
                with self._servers.connect(attempt - 1) as connection:
                    transfer = self._begun(lambda: RestoreTransfer(connection, config, state), again=attempt > 1)
                    return transfer.send(sending.blobs(), entries, sending.check)
            except (PassingError, ApiError) as error:
                if attempt >= MAX_ATTEMPTS or not _may_pass(error):
                    raise
                self._say(f"{config['name']}: the restore was interrupted ({error}); trying again")
                time.sleep(PAUSE_SECONDS)

    def _begun(self, begin: Callable[[], RestoreTransfer], *, again: bool) -> RestoreTransfer:
        """Begins; after an interrupted attempt, when the servers have removed its stream."""
        deadline = time.monotonic() + GONE_SECONDS
        while True:
            try:
                return begin()
            except ApiError as error:
                if not again or error.err_code not in (NAME_TAKEN, NAME_IN_USE) or time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _verify(self, sending: _Sending, answer: Fields, result: RestoredStream, consumers: dict[str, Fields]) -> None:
        """Raises DamagedBackupError."""
        point, name = sending.stored.point, result.name
        seen = self._seen(name)
        if seen.last < int(point.state["last_seq"]):
            raise DamagedBackupError(f"{name} ends at {seen.last}, in the backup at {point.state['last_seq']}")
        told = int(answer["state"]["messages"])
        if told != point.messages and not loses_at_once(seen.config):
            raise DamagedBackupError(f"{name} was made with {told} messages, the backup has {point.messages}")
        found = compare(self._account, seen, sending.stored, sending.digests, sending.renamed)
        if found.other or (found.missing and not loses(seen.config)):
            raise DamagedBackupError(f"{name} differs from the backup: {found}")
        result.gone = len(found.missing)
        for consumer, entry in consumers.items():
            self._verify_consumer(name, consumer, entry)

    def _seen(self, name: str) -> StreamSeen:
        deadline = time.monotonic() + APPEAR_SECONDS
        while (seen := self._account.look(name)) is None:
            if time.monotonic() > deadline:
                raise DamagedBackupError(f"{name} was made, and is not there")
            time.sleep(PAUSE_SECONDS)
        return seen

    def _verify_consumer(self, stream: str, name: str, entry: Fields) -> None:
        found = self._account.consumer(stream, name)
        if found is None:
            if entry["config"].get("durable_name"):  # others end by themselves
                raise DamagedBackupError(f"{stream}: consumer {name} is not there")
            return
        floor = int(entry["state"]["ack_floor"]["stream_seq"])
        if int(found["ack_floor"]["stream_seq"]) < floor:
            raise DamagedBackupError(
                f"{stream}: consumer {name} is at {found['ack_floor']['stream_seq']}, in the backup at {floor}"
            )

    def _compare(self, one: StreamPoint, seen: StreamSeen) -> Difference:
        return compare(
            self._account, seen, StoredStream(self._storage, one), renamed=self._options.renamed(one)
        )  # fmt: skip


class _Sending:
    """The messages of a stored stream on their way to the servers."""

    def __init__(self, stored: StoredStream, renamed: Renamed | None) -> None:
        self.stored = stored
        self.renamed = renamed
        self.digests: list[MessageSum] = []
        """By segment."""

    def blobs(self) -> Iterator[bytes]:
        """Yields the messages, as `RestoreTransfer` takes them. Raises DamagedBackupError."""
        self.digests = []
        entries: list[bytes] = []
        size = 0
        for one in self.stored.point.segments:
            digest = MessageSum()
            for message in self.stored.messages(one):
                entry = (self.renamed.message(message) if self.renamed else message).encoded()
                digest = digest.plus(entry)
                entries.append(entry)
                size += len(entry)
                if size >= BLOB_BYTES:
                    yield framed(b"".join(entries))
                    entries, size = [], 0
            self.digests.append(digest)
        if entries:
            yield framed(b"".join(entries))

    def check(self) -> None:
        """Raises DamagedBackupError."""
        self.stored.check_count(sum(one.messages for one in self.digests))


def _may_pass(error: JetclusterError) -> bool:
    """Returns whether a new attempt may succeed. An ApiError without an error code is a status in place of an answer:
    the server that took the restore is gone."""
    return error.retriable or (isinstance(error, ApiError) and error.err_code == 0)


def trial(config: Fields) -> Fields:
    """The configuration of a stream that asks as much of the servers, under another name and subject."""
    name = f"restore-{sha256(config['name'].encode()).hexdigest()[:16]}"
    left_out = ("sealed", "republish", "subject_transform", "subjects")
    found = {key: value for key, value in config.items() if key not in left_out}
    return {**found, "name": name, **({"subjects": [name]} if config.get("subjects") else {})}


def same_config(one: Fields, other: Fields) -> bool:
    """Compares configurations, without the metadata that servers add."""

    def told(config: Fields) -> Fields:
        metadata = config.get("metadata") or {}
        own = {key: value for key, value in metadata.items() if not key.startswith("_nats.")}
        return {**config, "metadata": own}

    return told(one) == told(other)


def loses_at_once(config: Fields) -> bool:
    """Returns whether a stream may lose messages at the moment it is restored, as they are too old, or wanted by
    nobody."""
    return bool(
        config.get("max_age") or config.get("allow_msg_ttl") or config.get("retention") in ("interest", "workqueue")
    )


def loses(config: Fields) -> bool:
    """Returns whether messages may have gone since the stream was restored."""
    limits: Sequence[str] = ("max_msgs", "max_bytes", "max_msgs_per_subject")
    return loses_at_once(config) or any(int(config.get(key) or -1) > 0 for key in limits) or bool(config.get("mirror"))
