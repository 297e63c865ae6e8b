"""`UserPermissions`: the subjects that a user may publish to, subscribe to and be delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jetcluster.config.account_options import PermissionOptions
from jetcluster.protocol import subjects

_DIRECT_GET = b"$JS.API.DIRECT.GET."
_JETSTREAM = b"$JS."
_LAST = b"$JS.API.DIRECT.GET.LAST."
"""An alias of the form with the subject appended: the stream and the subject follow."""
_ADDRESSED = b"$JS.API.DIRECT.PEER."
"""Direct Gets that name a replica: the stream and the server's name follow (docs/compatibility.md)."""
_API = b"$JS.API."
_OBJECTS = b"$JS.API.$OBJ."
"""An alias of `$OBJ.`: the bucket follows."""


class SubjectSet:
    """Subjects and filters as a set that answers "is it in there"; literals by hash, filters one by one."""

    __slots__ = ("_filters", "_literals")

    def __init__(self, entries: Sequence[bytes]) -> None:
        self._literals = frozenset(entry for entry in entries if subjects.is_literal(entry))
        self._filters = tuple(entry for entry in entries if not subjects.is_literal(entry))

    def __bool__(self) -> bool:
        return bool(self._literals or self._filters)

    def takes(self, subject: bytes) -> bool:
        """True when some entry matches `subject`, whose own wildcards are plain text."""
        return subject in self._literals or any(subjects.matches(subject, entry) for entry in self._filters)

    def covers(self, subject: bytes) -> bool:
        """True when one entry takes everything that `subject`, which may hold wildcards, takes."""
        return subject in self._literals or any(subjects.is_subset(subject, entry) for entry in self._filters)

    def meets(self, subject: bytes) -> bool:
        """True when some entry takes something that `subject`, which may hold wildcards, takes."""
        return any(subjects.collide(subject, entry) for entry in (*self._literals, *self._filters))


class _SubscribeList:
    """A subscribe list: plain entries, and "subject queue" entries that speak about queue subscriptions only."""

    __slots__ = ("_queued", "plain")

    def __init__(self, entries: Sequence[str]) -> None:
        parts = [entry.encode().split() for entry in entries]
        self.plain = SubjectSet([part[0] for part in parts if len(part) == 1])
        self._queued = [(part[0], part[1]) for part in parts if len(part) == 2]

    def __bool__(self) -> bool:
        return bool(self.plain or self._queued)

    def allows(self, subject: bytes, queue: bytes | None) -> bool:
        """A queue subscription is decided by "subject queue" entries where some match its subject."""
        names = self._queues_for(subject) if queue is not None else []
        if not (_queue_in(queue, names) if names else self.plain.takes(subject)):
            return False
        # nats-server stops here. But `a.*` matches the text `a.>`, which takes more: that would be a way around.
        if not subject.endswith(b">") or self.plain.covers(subject):
            return True
        return any(
            _queue_in(queue, [name]) and (entry == subject or subjects.is_subset(subject, entry))
            for entry, name in self._queued
        )

    def denies(self, subject: bytes, queue: bytes | None) -> bool:
        """True when a `deny` entry takes a subscription, or a delivery to one."""
        return self.plain.takes(subject) or (queue is not None and _queue_in(queue, self._queues_for(subject)))

    def _queues_for(self, subject: bytes) -> list[bytes]:
        """The queue names and filters of the entries that match `subject`."""
        return [queue for entry, queue in self._queued if subjects.matches(subject, entry)]


class UserPermissions:
    """Rules of one user. Answers depend on the arguments alone, so callers may cache them."""

    def __init__(self, options: PermissionOptions) -> None:
        self.options = options
        """The options that these permissions are made of; users may see their own (`$SYS.REQ.USER.INFO`)."""
        publish, subscribe, responses = options.publish, options.subscribe, options.responses
        allow = publish.allow
        if allow is None and responses is not None:
            allow = []  # allow_responses alone means: nothing but responses
        self._publish_allow = None if allow is None else SubjectSet([entry.encode() for entry in allow])
        self._publish_deny = SubjectSet([entry.encode() for entry in publish.deny or ()])
        self._subscribe_allow = None if subscribe.allow is None else _SubscribeList(subscribe.allow)
        self._subscribe_deny = _SubscribeList(subscribe.deny or ())
        self.allow_responses: tuple[int, float] | None = None
        """(messages, seconds) that the reply subject of a delivered message is open for; negative: any number."""
        if responses is not None:
            self.allow_responses = (responses.max_messages, responses.expires)
        self.can_deliver: Callable[[bytes, bytes | None], bool] | None = None
        """Set when something is denied: a subscription wider than that is allowed, but its deliveries are filtered.
        Asked with the message's subject and the subscription's queue."""
        if self._subscribe_deny:
            self.can_deliver = self._is_not_denied

    def denies_publish(self, subject: bytes) -> bool:
        """True when a `deny` entry takes `subject`; it wins over `allow`."""
        return self._publish_deny.takes(subject)

    def can_publish(self, subject: bytes) -> bool:
        if subject.startswith(_OBJECTS):  # the bucket is what must be allowed, by each of its names
            if self._publish_deny.takes(subject):
                return False
            subject = subject[len(_API) :]
        if subject.startswith(_ADDRESSED):  # Direct Get, of one replica: who may do the one may do the other
            subject = _DIRECT_GET + subject[len(_ADDRESSED) :].split(b".", 1)[0]
        names = [subject]
        if subject.startswith(_LAST):  # another name of a request: not a way around what is denied under its own
            names.append(_DIRECT_GET + subject[len(_LAST) :])
        if subject.startswith(_JETSTREAM) and not subjects.is_literal(subject):
            # A filter: Direct Get and CONSUMER.CREATE take what it matches. As plain text `>` would pass for one token.
            return self._can_publish_all(names)
        if any(self._publish_deny.takes(name) for name in names):
            return False
        return self._publish_allow is None or any(self._publish_allow.takes(name) for name in names)

    def can_publish_all(self, filter: bytes) -> bool:
        """As `can_publish`, of everything that `filter`, which may hold wildcards, takes."""
        return self.can_publish(filter) if subjects.is_literal(filter) else self._can_publish_all([filter])

    def _can_publish_all(self, names: Sequence[bytes]) -> bool:
        if any(self._publish_deny.meets(name) for name in names):
            return False
        return self._publish_allow is None or any(self._publish_allow.covers(name) for name in names)

    def can_subscribe(self, subject: bytes, queue: bytes | None) -> bool:
        if self._subscribe_allow is not None and not self._subscribe_allow.allows(subject, queue):
            return False
        return not self._subscribe_deny.denies(subject, queue)

    def _is_not_denied(self, subject: bytes, queue: bytes | None = None) -> bool:
        return not self._subscribe_deny.denies(subject, queue)


def _queue_in(queue: bytes | None, names: list[bytes]) -> bool:
    return queue is not None and any(name == queue or subjects.is_subset(queue, name) for name in names)
