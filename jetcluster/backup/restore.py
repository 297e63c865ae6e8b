"""`RestoreRun`: streams of a restore point, made again on servers by STREAM.RESTORE, and compared afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from jetcluster.backup import consumer_repair
from jetcluster.backup.account import AccountReader, StreamSeen
from jetcluster.backup.consumer_repair import floor_of
from jetcluster.backup.consumers import archived
from jetcluster.backup.journal import JournalEntry, RestoreJournal, lock_of, path_of
from jetcluster.backup.lock import RESTORE, BackupLock, refuse_beside_removal
from jetcluster.backup.point import RestorePoint, StreamPoint
from jetcluster.backup.restore_options import (
    RestoreOptions,
    RestoreRefusedError,
    expiring,
    loses,
    loses_at_once,
    same_config,
    trial,
)
from jetcluster.backup.sending import Sending
from jetcluster.backup.sequences import DamagedBackupError
from jetcluster.backup.standing import Found, StreamStanding, standing_of
from jetcluster.backup.storage import BackupStorage, BackupStorageError
from jetcluster.backup.verify import StoredStream, compare
from jetcluster.client.restore_transfer import Consumers, RestoreTransfer
from jetcluster.client.servers import ServerOptions
from jetcluster.clock import Clock, Rng
from jetcluster.errors import ApiError, JetclusterError, PassingError
from jetcluster.model.subjects import overlap

Fields = dict[str, Any]
Say = Callable[[str], None]
Prepared = list[tuple[StreamPoint, Found | None]]
"""The wanted streams, and what is there of them."""

MAX_ATTEMPTS: Final = 5
TAKEN: Final = (10130, 10058)
"""Errors that say that there is a stream of this name, complete or not."""
GONE_SECONDS: Final = 25.0
"""The longest wait until the servers have removed the incomplete stream of an interrupted attempt."""
PAUSE_SECONDS: Final = 0.5
APPEAR_SECONDS: Final = 10.0
"""The longest wait until a restored stream and its consumers are told by every server."""


@dataclass(slots=True)
class RestoredStream:
    """The outcome for a stream."""

    name: str
    messages: int
    was_there: bool = False
    left: bool = False
    """It was there, and need not be as in the backup."""
    gone: int = 0
    """Messages that a limit or a consumer removed meanwhile."""
    consumers: int = 0


class RestoreRun:
    """One restore."""

    def __init__(
        self, servers: ServerOptions, account: AccountReader, storage: BackupStorage, point: RestorePoint,
        options: RestoreOptions, say: Say, clock: Clock, rng: Rng, pause: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        """Raises RestoreRefusedError."""
        options.check(point)
        self._servers = servers
        self._account = account
        self._storage = storage
        self._point = point
        self._options = options
        self._say = say
        self._clock = clock
        self._rng = rng
        self._pause = pause
        self._wanted = options.wanted(point)
        self._older = clock.time_ns() - point.started
        self._journal = RestoreJournal(storage, "", point.name, say)
        self._lock: BackupLock | None = None
        self._wrong: list[str] = []

    def run(self, *, dry: bool = False) -> list[RestoredStream]:
        """Makes the streams that are not there. Raises RestoreRefusedError, before anything is made, if one is there
        and differs, and at the end for consumers that cannot be put right; BackupLockedError; DamagedBackupError for
        damaged blobs and for a restored stream that differs; and the errors of the storage and the servers."""
        account = self._account.info()
        if not self._options.anew:
            self._journal = RestoreJournal(self._storage, path_of(account), self._point.name, self._say)
            self._journal.load()
        if dry:
            return [self._foretold(one, found) for one, found in self._prepared()]
        with self._locked(account):
            prepared = self._prepared()
            self._check_replacements(prepared)
            self._journal.want(self._target(one) for one in self._wanted)
            made = [self._one(one, found) for one, found in prepared]
            self._journal.end()
        if self._wrong:
            raise RestoreRefusedError("; ".join(self._wrong) + ". --overwrite makes such a stream anew")
        return made

    @contextlib.contextmanager
    def _locked(self, account: Fields) -> Iterator[None]:
        """Keeps other restores out of the account, and blobs from being removed. A source that cannot be written, such
        as one that is mounted to be read, is no reason to restore nothing."""
        with contextlib.ExitStack() as stack:
            lock = BackupLock(
                self._storage, self._clock, self._rng, self._say, path=lock_of(account), work=RESTORE, pause=self._pause
            )
            try:
                self._lock = stack.enter_context(lock)
            except BackupStorageError as error:
                self._say(
                    f"no lock is held ({error}): nobody may remove points meanwhile, nor restore into the account"
                )
            refuse_beside_removal(self._storage, self._clock)
            yield

    # ---- what there is

    def _prepared(self) -> Prepared:
        """Raises RestoreRefusedError, DamagedBackupError."""
        found = [(one, self._look(one)) for one in self._wanted]
        different = [there for _, there in found if there is not None and there.standing is StreamStanding.OTHER]
        if different and not self._options.overwrite:
            names = "; ".join(f"{there.seen.name} ({there.why})" for there in different)
            raise RestoreRefusedError(
                f"already there, and not as in the backup: {names}. Restore under another name (--as), leave what is "
                "there (--missing), or delete it (--overwrite)"
            )
        made = [one for one, there in found if there is None or not there.standing.is_left]
        self._check_blobs([one for one, there in found if there is None or not there.settled])
        self._check_subjects(made)
        for one in made:
            if text := expiring(one, self._config(one), self._clock.time_ns()):
                self._say(f"{self._target(one)}: {text}")
        return found

    def _look(self, one: StreamPoint) -> Found | None:
        """Raises DamagedBackupError."""
        seen = self._account.look(self._target(one))
        if seen is None:
            return None
        stored = StoredStream(self._storage, one)
        entry = self._journal.entry(seen.name)
        found = self._standing(stored, seen, entry)
        if found.standing is StreamStanding.EQUAL and not same_config(seen.config, self._config(one), self._ignored):
            self._say(f"{seen.name}: its messages are those of the backup, its configuration is not")
        return found

    def _standing(self, stored: StoredStream, seen: StreamSeen, entry: JournalEntry | None) -> Found:
        config, consumers = self._config(stored.point), self._consumers(stored)
        return standing_of(self._account, stored, seen, self._options, entry, config, consumers)

    @property
    def _ignored(self) -> tuple[str, ...]:
        """Keys of a configuration that are put right, or are never twice the same."""
        return ("sealed", "max_age") if self._options.keep_age else ("sealed",)

    def _check_blobs(self, streams: list[StreamPoint]) -> None:
        """Raises DamagedBackupError if a blob is missing."""
        held = {file.path: file.size for file in self._storage.list("blobs")}
        for one in streams:
            for blob in one.blobs:
                if held.get(blob.path) != blob.size:
                    raise DamagedBackupError(f"{one.name}: {self._storage.url}/{blob.path} is missing or cut off")

    def _check_subjects(self, streams: list[StreamPoint]) -> None:
        """Raises RestoreRefusedError if another stream has a subject of one that is to be made."""
        made = {self._target(one): one for one in streams}
        for name, config in self._account.configs().items() if made else ():
            if name in made:
                continue
            for target, one in made.items():
                for subject in self._config(one).get("subjects") or []:
                    if any(overlap(subject, taken) for taken in config.get("subjects") or []):
                        raise RestoreRefusedError(f"{target}: the stream {name} has its subject {subject}")

    def _check_replacements(self, prepared: Prepared) -> None:
        """Looks whether streams could be made in place of those that are there, before one is deleted: a restore under
        another name is begun with its limits, replicas and placement. Raises RestoreRefusedError, DamagedBackupError
        and TooManyConsumersError."""
        for one, found in prepared:
            if found is not None and found.standing is StreamStanding.OTHER:
                self._check_replacement(one)

    def _check_replacement(self, one: StreamPoint) -> None:
        target = self._target(one)
        stored = StoredStream(self._storage, one)
        stored.check()
        archived(self._consumers(stored))
        config = trial(self._config(one))
        try:
            if self._account.look(config["name"]) is not None:
                self._account.api(f"STREAM.DELETE.{config['name']}")  # of a process that was killed
            with self._servers.connect(0) as connection:
                self._begun(lambda: RestoreTransfer(connection, config, one.state), config["name"])
        except ApiError as error:
            raise RestoreRefusedError(
                f"{target}: the servers would refuse it, so nothing was deleted: {error}"
            ) from error
        with contextlib.suppress(ApiError):  # the server removes it soon, too
            self._account.api(f"STREAM.DELETE.{config['name']}")

    def _consumers(self, stored: StoredStream) -> dict[str, Fields]:
        return {} if self._options.name else self._options.consumers(stored)

    def _target(self, one: StreamPoint) -> str:
        return self._options.name or one.name

    def _config(self, one: StreamPoint) -> Fields:
        return self._options.config(one, self._older)

    def _foretold(self, one: StreamPoint, found: Found | None) -> RestoredStream:
        what = "would be made" if found is None else found.standing.value
        if found is not None and found.standing is StreamStanding.OTHER:
            what += ": would be deleted and made anew"
        self._say(f"{self._target(one)}: {what}; {one.messages} messages up to sequence {one.state['last_seq']}")
        left = found is not None and found.standing in (StreamStanding.KEPT, StreamStanding.RESTORED)
        return RestoredStream(self._target(one), one.messages, was_there=found is not None, left=left)

    # ---- one stream

    def _one(self, one: StreamPoint, found: Found | None) -> RestoredStream:
        target = self._target(one)
        if found is not None and found.standing.is_left:
            return self._left(one, found)
        stored = StoredStream(self._storage, one)
        consumers = self._consumers(stored)
        entries, cut = archived(consumers)
        for name in cut:
            self._say(f"{target}: consumer {name} has too much pending: its ack floor alone is restored")
        self._hold()
        self._journal.begin(target, found.seen.created if found is not None else "")
        if found is not None:
            self._delete(found.seen)
        sending = Sending(stored, self._options.renamed(one))
        answer = self._transfer(sending, self._config(one), list(entries.items()))
        seen = self._seen(target)
        self._journal.made(target, seen.created)
        result = RestoredStream(target, one.messages, consumers=len(consumers))
        if self._options.verify:
            self._verify(sending, seen, answer, result, consumers)
        self._seal(one, seen)
        self._journal.done(target, seen.created)
        extra = f", {result.gone} of them gone since by a limit or a consumer" if result.gone else ""
        self._say(f"{target}: {one.messages} messages{extra}, {len(consumers)} consumers restored")
        if self._options.keep_age and seen.config.get("max_age"):
            self._say(f"{target}: its max_age is longer by the age of the point; set it back when these are gone")
        return result

    def _left(self, one: StreamPoint, found: Found) -> RestoredStream:
        """Puts right the consumers of a stream that has the messages, and seals it."""
        target, standing = found.seen.name, found.standing
        self._say(f"{target}: {standing.value}")
        if standing is not StreamStanding.KEPT and not found.settled:
            consumers = self._consumers(StoredStream(self._storage, one))
            self._wrong += consumer_repair.put_right(self._account, target, consumers, self._say)
            self._seal(one, found.seen)
        if standing is not StreamStanding.KEPT:
            self._journal.done(target, found.seen.created)
        return RestoredStream(target, one.messages, was_there=True, left=standing is not StreamStanding.EQUAL)

    def _seal(self, one: StreamPoint, seen: StreamSeen) -> None:
        if one.config.get("sealed") and not seen.config.get("sealed"):
            self._account.api(f"STREAM.UPDATE.{seen.name}", {**seen.config, "sealed": True})
            self._say(f"{seen.name}: sealed")

    def _hold(self) -> None:
        """Raises BackupLockedError."""
        if self._lock is not None:
            self._lock.hold()

    def _delete(self, seen: StreamSeen) -> None:
        """Raises RestoreRefusedError if somebody else made the stream anew meanwhile, such as another restore."""
        now = self._account.look(seen.name)
        if now is not None and now.created != seen.created:
            raise RestoreRefusedError(f"{seen.name}: somebody made it anew meanwhile, so it is not deleted")
        if now is not None:
            self._account.api(f"STREAM.DELETE.{seen.name}")
            self._say(f"{seen.name}: deleted")

    def _transfer(self, sending: Sending, config: Fields, entries: Consumers) -> Fields:
        """Returns the answer to the restore."""
        config = {key: value for key, value in config.items() if key != "sealed"}  # messages could not be put into it
        state = {**sending.stored.point.state, "consumer_count": len(entries)}
        name, attempt = config["name"], 0
        while True:
            attempt += 1
            try:
                with self._servers.connect(attempt - 1) as connection:
                    transfer = self._begun(lambda: RestoreTransfer(connection, config, state), name)
                    return transfer.send(sending.blobs(), entries, sending.check)
            except (PassingError, ApiError) as error:
                if attempt > 1 and isinstance(error, ApiError) and error.err_code in TAKEN:
                    if self._is_made(sending.stored, name):
                        return {"state": sending.stored.point.state}
                elif not _may_pass(error):
                    raise
                if attempt >= MAX_ATTEMPTS:
                    raise
                self._say(f"{name}: the restore was interrupted ({error}); trying again")
                time.sleep(PAUSE_SECONDS)

    def _is_made(self, stored: StoredStream, name: str) -> bool:
        """Returns whether the attempt before was successful, and its answer was lost. What it left of a stream is
        deleted. Raises RestoreRefusedError if somebody else made the stream."""
        if (seen := self._account.look(name)) is None:
            return False
        found = self._standing(stored, seen, JournalEntry())
        if found.standing is StreamStanding.TORN:
            self._delete(seen)
            return False
        if found.standing not in (StreamStanding.EQUAL, StreamStanding.RESTORED):
            raise RestoreRefusedError(f"{name}: somebody made it meanwhile, and not as in the backup ({found.why})")
        return True

    def _begun(self, begin: Callable[[], RestoreTransfer], name: str) -> RestoreTransfer:
        """Begins when the servers have removed the stream of an interrupted attempt, also of a killed process. One that
        they show is not removed by them."""
        deadline = time.monotonic() + GONE_SECONDS
        while True:
            try:
                return begin()
            except ApiError as error:
                if error.err_code not in TAKEN or time.monotonic() > deadline or self._account.look(name) is not None:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _verify(
        self, sending: Sending, seen: StreamSeen, answer: Fields, result: RestoredStream, consumers: dict[str, Fields]
    ) -> None:
        """Raises DamagedBackupError."""
        point, name = sending.stored.point, result.name
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
        floor = floor_of(entry["state"])
        if floor_of(found) < floor:
            raise DamagedBackupError(f"{stream}: consumer {name} is at {floor_of(found)}, in the backup at {floor}")


def _may_pass(error: JetclusterError) -> bool:
    """Returns whether a new attempt may succeed. An ApiError without an error code is a status in place of an answer:
    the server that took the restore is gone."""
    return error.retriable or (isinstance(error, ApiError) and error.err_code == 0)
