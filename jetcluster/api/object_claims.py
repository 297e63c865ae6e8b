"""`ObjectClaims`: hands messages that clients of this node publish to `$OBJ.<b>.info.>` and its like to the object
service instead of subscribers, which see only the results of the service: finished objects.

There is one exclusive subscription per subject and account. The bucket is looked up for each message; a message of no
bucket goes on to all subscribers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetcluster.objects.layout import STREAM_PREFIX, layout_of

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.protocol.bus import Bus, Origin, Subscription

SUBJECTS = (b"$OBJ.*.info.>", b"$OBJ.*.upload.>", b"$OBJ.*.delete.>")
SERVICE = b"$JS.API."
"""The subject below which the leader of a bucket's stream listens for them (`replica.object_service`)."""

NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"


class ObjectClaims:
    """The subscriptions that claim the object API's subjects (`$OBJ`) on each node."""

    def __init__(self, cluster: JetStream, bus: Bus) -> None:
        self._cluster = cluster
        self._bus = bus
        self._subscriptions: list[Subscription] = []

    def start(self) -> None:
        subscribe = self._bus.subscribe
        self._subscriptions = [subscribe(s, self._claim, local_only=True, exclusive=True) for s in SUBJECTS]

    def stop(self) -> None:
        for subscription in self._subscriptions:
            self._bus.unsubscribe(subscription)
        self._subscriptions = []

    def _claim(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        target = SERVICE + subject if self._is_bucket(subject) else subject
        if not self._bus.publish(target, payload, reply, headers) and reply:
            self._bus.publish(reply, b"", b"", NO_RESPONDERS)

    def _is_bucket(self, subject: bytes) -> bool:
        bucket = subject.split(b".", 2)[1].decode("utf-8", "replace")
        assignment = self._cluster.assignment(self._bus.account, STREAM_PREFIX + bucket)
        return assignment is not None and layout_of(assignment.config) is not None
