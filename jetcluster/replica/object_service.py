"""The object service of one bucket on the node that leads its stream: subscriptions and proposals.

Metadata that clients publish to `$OBJ.<b>.info.>` is caught where they are connected (`api.object_claims`) and arrives
on `$JS.API.$OBJ.<b>.>`; chunks arrive on the stream's own subjects; requests to `$OBJ.<b>` arrive through the API
(`cluster.stream_requests`). `objects.bucket` makes all decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jetcluster.errors import ApiError
from jetcluster.objects.bucket import Bucket
from jetcluster.objects.host import BucketHost, BucketReplies, Done
from jetcluster.protocol.bus import Callback, Subscription
from jetcluster.raft.api import RaftError
from jetcluster.replica.repair import Failures
from jetcluster.replica.replica_state import ReplicaState
from jetcluster.replica.services import Settings
from jetcluster.store.api import DamagedError

SCAN_PAUSE_SECONDS = 0.001
"""Pause between two steps of reading chunks again: publishes and reads go first."""


class ObjectService:
    """The object service of a replica whose stream has a bucket's name; it is idle unless the replica leads. `publish`
    takes a message into the stream."""

    def __init__(self, replica: ReplicaState, failures: Failures, publish: Callback, settings: Settings) -> None:
        self._timers, self._log = replica.runtime.timers, replica.runtime.log
        self._replica = replica
        self._failures = failures
        self._publish = publish
        host = BucketHost(
            replica.assignment.name,
            replica.store,
            replica.bus,
            replica.runtime.clock,
            self._timers.call_soon,
            publish,
            self._propose,
            replica.machine.seq_of_id,
            replica.report_damage,
            lambda: settings.object_limits,
            settings.domain,
        )
        self.bucket = Bucket(host)
        self._prefixes = [b"$JS.API."]
        if settings.domain:
            self._prefixes.append(b"$JS.%b.API." % settings.domain.encode())
        self._subscriptions: list[Subscription] = []
        self._proposed: dict[int, Done] = {}
        self._scanning = False

    @property
    def replies(self) -> BucketReplies:
        return self.bucket.replies

    @property
    def open_uploads(self) -> int:
        """Number of uploads in progress on this leader (monitoring)."""
        return len(self.bucket.uploads.by_nonce) if self.bucket.uploads is not None else 0

    def taker(self, subject: bytes) -> Callback:
        """The callback of the stream's subscription to one of its subjects."""
        return self.bucket.on_message if subject.startswith(b"$OBJ.") else self._publish

    # ---- life

    def begin(self) -> None:
        self._guarded(lambda: self.bucket.begin(self._replica.machine.rules))
        self._listen()

    def configure(self) -> None:
        """Follow a change of the configuration while this replica leads."""
        before = self.bucket.layout
        self._guarded(lambda: self.bucket.configure(self._replica.machine.rules))
        if self.bucket.layout != before:
            self._unlisten()
            self._listen()

    def end(self) -> None:
        self._unlisten()
        self.bucket.end()
        self.dropped(0)

    def tick(self) -> None:
        self._guarded(self.bucket.tick)
        self._scan_soon()

    def applied(self, index: int, result: object) -> None:
        """Note a result inside apply; the bucket handles it later."""
        done = self._proposed.pop(index, None)
        if done is not None:
            assert isinstance(result, int | ApiError)
            self._timers.call_soon(self._guarded, partial(done, result))

    def dropped(self, first_index: int) -> None:
        for index in [index for index in self._proposed if index >= first_index]:
            self._guarded(partial(self._proposed.pop(index), None))

    def _listen(self) -> None:
        """Subscribe, also to the `$OBJ.<b>.>` that a bucket of stock clients lacks: to refuse requests there."""
        layout = self.bucket.layout
        if layout is None:
            return
        subjects = [b"%b%b>" % (prefix, layout.prefix) for prefix in self._prefixes]
        if not layout.own:
            subjects.append(b"%bchunks.>" % layout.prefix)
        subscribe = self._replica.bus.subscribe
        self._subscriptions = [subscribe(subject, self.bucket.on_message) for subject in subjects]
        self._scan_soon()

    def _unlisten(self) -> None:
        for subscription in self._subscriptions:
            self._replica.bus.unsubscribe(subscription)
        self._subscriptions.clear()

    # ---- for the bucket

    def _propose(self, command: bytes, done: Done) -> bool:
        fitting = self._replica.understood(command)
        if fitting is None:
            return False
        try:
            index = self._replica.group.propose(fitting, reserve=True)
        except RaftError as error:
            self._log.debug("proposal refused", stream=self._replica.assignment.name, error=str(error))
            return False
        self._proposed[index] = done
        return True

    def _scan_soon(self) -> None:
        if not self._scanning and self.bucket.uploads is not None and self.bucket.uploads.scans:
            self._scanning = True
            self._timers.call_later(SCAN_PAUSE_SECONDS, self._scan)

    def _scan(self) -> None:
        self._scanning = False
        self._guarded(self.bucket.scan)
        self._scan_soon()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run `work`. After an unreadable record this replica steps aside; no error stops the stream."""
        try:
            work()
        except DamagedError as error:
            self._replica.report_damage(error)
        except Exception as error:  # noqa: BLE001 - clients write the contents of a bucket
            self._failures.failed("the object service failed", error)
