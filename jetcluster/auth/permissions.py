"""`UserPermissions`: the subjects that a user may publish to, subscribe to and be delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jetcluster.config.account_options import PermissionOptions
from jetcluster.protocol import subjects

_DIRECT_GET = b"$JS.API.DIRECT.GET."
_JETSTREAM = b"$JS."
_LAST = b"$JS.API.DIRECT.GET.LAST."
"""Prefix of an alias of the Direct Get with the subject appended; the stream and the subject follow."""
_BY_LEADER = b"$JS.API.DIRECT_LEADER.GET."
"""Prefix of Direct Gets to the stream's leader, as an alias."""
_ADDRESSED = b"$JS.API.DIRECT.PEER."
"""Prefix of Direct Gets to one replica; the stream and the server's name follow (docs/compatibility.md)."""
_API = b"$JS.API."
_OBJECTS = b"$JS.API.$OBJ."
"""Prefix of an alias of `$OBJ.`; the bucket follows."""


class SubjectSet:
    """A set of subjects and filters. Literals are found by hash, filters are compared one by one."""

    __slots__ = ("_filters", "_literals")

    def __init__(self, entries: Sequence[bytes]) -> None:
        self._literals = frozenset(entry for entry in entries if subjects.is_literal(entry))
        self._filters = tuple(entry for entry in entries if not subjects.is_literal(entry))

    def __bool__(self) -> bool:
        return bool(self._literals or self._filters)

    def takes(self, subject: bytes) -> bool:
        """Returns True when an entry matches `subject`, whose own wildcards count as literal tokens."""
        return subject in self._literals or any(subjects.matches(subject, entry) for entry in self._filters)

    def covers(self, subject: bytes) -> bool:
        """Returns True when one entry matches all that `subject`, which may have wildcards, matches."""
        return subject in self._literals or any(subjects.is_subset(subject, entry) for entry in self._filters)

    def meets(self, subject: bytes) -> bool:
        """Returns True when an entry matches anything that `subject`, which may have wildcards, matches."""
        return any(subjects.collide(subject, entry) for entry in (*self._literals, *self._filters))


class _SubscribeList:
    """A subscribe list: plain entries, and "subject queue" entries, which apply to queue subscriptions only."""

    __slots__ = ("_queued", "plain")

    def __init__(self, entries: Sequence[str]) -> None:
        parts = [entry.encode().split() for entry in entries]
        self.plain = SubjectSet([part[0] for part in parts if len(part) == 1])
        self._queued = [(part[0], part[1]) for part in parts if len(part) == 2]

    def __bool__(self) -> bool:
        return bool(self.plain or self._queued)

    def allows(self, subject: bytes, queue: bytes | None) -> bool:
        """Returns True when it allows a subscription; matching "subject queue" entries decide queue subscriptions."""
        names = self._queues_for(subject) if queue is not None else []
        if not (_queue_in(queue, names) if names else self.plain.takes(subject)):
            return False
        # nats-server stops here. But `a.*` matches the text `a.>`, which as a subscription would receive more.
        if not subject.endswith(b">") or self.plain.covers(subject):
            return True
        return any(
            _queue_in(queue, [name]) and (entry == subject or subjects.is_subset(subject, entry))
            for entry, name in self._queued
        )

    def denies(self, subject: bytes, queue: bytes | None) -> bool:
        """Returns True when a `deny` entry matches a subscription, or a delivery to one."""
        return self.plain.takes(subject) or (queue is not None and _queue_in(queue, self._queues_for(subject)))

    def _queues_for(self, subject: bytes) -> list[bytes]:
        """Returns the queue names and filters of the entries that match `subject`."""
        return [queue for entry, queue in self._queued if subjects.matches(subject, entry)]


class UserPermissions:
    """Permissions of one user. Results depend on the arguments alone, so callers may cache them."""

    def __init__(self, options: PermissionOptions) -> None:
        self.options = options
        """The options from which these permissions are made; `$SYS.REQ.USER.INFO` shows them to the user."""
        publish, subscribe, responses = options.publish, options.subscribe, options.responses
        allow = publish.allow
        if allow is None and responses is not None:
            allow = []  # allow_responses alone allows only responses
        self._publish_allow = None if allow is None else SubjectSet([entry.encode() for entry in allow])
        self._publish_deny = SubjectSet([entry.encode() for entry in publish.deny or ()])
        self._subscribe_allow = None if subscribe.allow is None else _SubscribeList(subscribe.allow)
        self._subscribe_deny = _SubscribeList(subscribe.deny or ())
        self.allow_responses: tuple[int, float] | None = None
        """(messages, seconds) for which the reply subject of a delivered message is allowed; negative: unlimited."""
        if responses is not None:
            self.allow_responses = (responses.max_messages, responses.expires)
        self.can_deliver: Callable[[bytes, bytes | None], bool] | None = None
        """Filter of deliveries, called with the message's subject and the subscription's queue; None: no subject is
        denied. A subscription wider than a denied subject is allowed, so its deliveries must be filtered."""
        if self._subscribe_deny:
            self.can_deliver = self._is_not_denied

    def denies_publish(self, subject: bytes) -> bool:
        """Returns True when a `deny` entry matches `subject`; it overrides `allow`."""
        return self._publish_deny.takes(subject)

    def can_publish(self, subject: bytes) -> bool:
        if subject.startswith(_OBJECTS):  # the alias must not be denied, and the bucket's own subject must be allowed
            if self._publish_deny.takes(subject):
                return False
            subject = subject[len(_API) :]
        if subject.startswith(_ADDRESSED):  # allowed if the Direct Get is
            subject = _DIRECT_GET + subject[len(_ADDRESSED) :].split(b".", 1)[0]
        names = [subject]
        if subject.startswith(_LAST):  # an alias must not circumvent a denied subject
            names.append(_DIRECT_GET + subject[len(_LAST) :])
        elif subject.startswith(_BY_LEADER):
            names.append(_DIRECT_GET + subject[len(_BY_LEADER) :])
        if subject.startswith(_JETSTREAM) and not subjects.is_literal(subject):
            # Direct Get and CONSUMER.CREATE read all that the filter matches; as literal text, `>` would be one token.
            return self._can_publish_all(names)
        if any(self._publish_deny.takes(name) for name in names):
            return False
        return self._publish_allow is None or any(self._publish_allow.takes(name) for name in names)

    def can_publish_all(self, filter: bytes) -> bool:
        """Returns True when the user may publish to all subjects that `filter`, which may have wildcards, matches."""
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
