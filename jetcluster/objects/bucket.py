"""`Bucket`: the object service of one bucket, on its stream's leader."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from jetcluster.errors import NOT_AVAILABLE, OBJECT_NOT_FOUND, WRONG_LAST_SEQUENCE, ApiError, by_code
from jetcluster.objects.catalog import Catalog
from jetcluster.objects.host import BucketHost, BucketReplies
from jetcluster.objects.layout import Layout, layout_of
from jetcluster.objects.metadata import dump_error, invalid, parse_meta
from jetcluster.objects.upload import deletion
from jetcluster.objects.uploads import MAX_ATTEMPTS, Uploads
from jetcluster.protocol.bus import Origin
from jetcluster.records import NamedTuple
from jetcluster.store.api import DamagedError
from jetcluster.stream.apply.checks import WHOLE, PublishKind, refused_by
from jetcluster.stream.log.commands import named
from jetcluster.stream.rules import LIMITS, StreamRules

Respond = Callable[[bytes | None], None]
"""Takes the JSON answer to a request; None when its outcome is unknown."""

_KINDS: Final = (b"info", b"chunks", b"delete", b"upload")
SUCCESS: Final = b'{"success":true}'


class _Configured(NamedTuple):
    """A `checks.Ruled`."""

    rules: StreamRules


class _Service(Origin):
    """The origin of the service's own messages."""

    kind = "internal"
    account = ""


class Bucket:
    """The object service of a bucket. `begin` is called when this replica leads, `end` when it no longer does."""

    def __init__(self, host: BucketHost) -> None:
        self.host = host
        self.layout: Layout | None = None
        """None when the stream is no bucket, or this replica does not lead."""
        self.uploads: Uploads | None = None
        """None when this replica does not lead, or the layout is not the specification's."""
        self.catalog: Catalog
        self.replies = BucketReplies(host.bus, self._answered)
        self._refusal: ApiError | None = None
        """The error for every write; None when writes are taken."""

    # ---- life

    def begin(self, rules: StreamRules) -> None:
        """Begin to serve, when this replica leads. Raises DamagedError."""
        self.end()
        self.configure(rules)

    def end(self) -> None:
        self.layout = None
        if self.uploads is not None:
            self.uploads.close()
            self.uploads = None

    def configure(self, rules: StreamRules) -> None:
        """Apply the stream's current configuration, on the leader. Raises DamagedError."""
        layout = layout_of(rules.config) if not rules.restoring else None
        self._refusal = _refusal(rules, layout)
        if layout == self.layout:
            return
        self.end()
        self.layout = layout
        if layout is not None:
            self.catalog = Catalog(layout, self.host.store)
            if layout.own:
                self.uploads = Uploads(self.host, layout, self.catalog, self.replies, _Service())
                self.uploads.take_over()

    def tick(self) -> None:
        """Do periodic work, a few times per second. Raises DamagedError."""
        if self.uploads is not None:
            self.uploads.tick()

    def scan(self) -> None:
        """Do one step of `Uploads.scan`. Raises DamagedError."""
        if self.uploads is not None:
            self.uploads.scan()

    def _answered(self, token: bytes, headers: bytes, body: bytes) -> None:
        if self.uploads is not None:
            self.uploads.answered(token, headers, body)

    # ---- messages

    def on_message(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        """Serve a message to `$OBJ.<b>.>`, with or without an API prefix: a `Callback`."""
        try:
            self._on_message(subject, reply, headers, payload, origin)
        except ApiError as error:
            self.host.refuse(reply, error)
        except DamagedError as error:
            self.host.damaged(error)
            self.host.refuse(reply, by_code(NOT_AVAILABLE))

    def _on_message(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        layout = self.layout
        start = 0 if subject.startswith(b"$OBJ.") else subject.find(b".$OBJ.") + 1
        if layout is None or not subject.startswith(layout.prefix, start):
            return
        kind, _, rest = subject[start + len(layout.prefix) :].partition(b".")
        if not rest or kind not in _KINDS:
            if layout.own:
                self.host.publish(subject[start:], reply, headers, payload, origin)
        elif not start and origin.kind == "internal":
            return  # this service's message to the bucket's watchers
        elif kind == b"delete":
            self._delete_at(rest, self._responder(reply))
        elif self._refusal is not None:
            raise self._refusal
        elif kind == b"chunks":
            assert self.uploads is not None
            self.uploads.on_chunk(rest.decode("utf-8", "replace"), reply, headers, payload)
        elif kind == b"info":
            self._on_metadata(rest, reply, headers, payload)
        else:
            raise invalid("the subject is the service's own")

    def _on_metadata(self, rest: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        assert self.layout is not None
        assert self.uploads is not None
        meta = parse_meta(payload, self.layout.bucket, rest)
        if meta.deleted:
            self.delete(meta.name, self._responder(reply))
        else:
            self.uploads.on_metadata(meta, self.layout.info(rest), reply, headers, payload)

    # ---- deleting

    def delete(self, name: str, respond: Respond, attempts: int = 0, *, request: int = 0) -> None:
        """Replace the object by a tombstone and remove its chunks; only once if the `request` has a number
        (`stream.apply.asked`). Raises DamagedError, ApiError."""
        layout = self.layout
        assert layout is not None
        forms = self.catalog.forms(name)
        if not forms:
            raise by_code(OBJECT_NOT_FOUND)
        if self._refusal is not None:
            raise self._refusal
        if forms[-1].deleted:
            respond(SUCCESS)
            return
        command = deletion(layout, self.host.store, forms, self.host.clock.time_ns())
        if request:
            command = named(command, request)
        own = [form for form in forms if not form.real]
        told = (own[-1].subject, own[-1].tombstone()) if own else None
        if not self.host.propose(command, partial(self._delete_answered, name, told, respond, attempts, request)):
            raise by_code(NOT_AVAILABLE)

    def _delete_at(self, rest: bytes, respond: Respond) -> None:
        """Serve a request to `$OBJ.<b>.delete.<object>`."""
        assert self.layout is not None
        there = self.catalog.at(self.layout.info(rest))
        self.delete(there.name if there is not None else rest.decode("utf-8", "replace"), respond)

    def _delete_answered(
        self,
        name: str,
        told: tuple[bytes, bytes] | None,
        respond: Respond,
        attempts: int,
        request: int,
        result: int | ApiError | None,
    ) -> None:
        if result is None or self.layout is None:
            respond(None)
        elif not isinstance(result, ApiError):
            if told is not None:
                self.host.bus.publish(*told)  # for the bucket's watchers
            respond(SUCCESS)
        elif result.err_code == WRONG_LAST_SEQUENCE and attempts < MAX_ATTEMPTS:
            try:
                self.delete(name, respond, attempts + 1, request=request)
            except ApiError as error:
                respond(dump_error(error))
        else:
            respond(dump_error(result))

    def _responder(self, reply: bytes) -> Respond:
        def respond(answer: bytes | None) -> None:
            if answer is not None:
                self.host.tell(reply, answer)

        return respond


def _refusal(rules: StreamRules, layout: Layout | None) -> ApiError | None:
    if layout is not None and not layout.own:
        return invalid("bucket layout")
    refused = refused_by(WHOLE[PublishKind.REPLACING], _Configured(rules))
    if refused is not None:
        return refused
    if rules.no_ack or rules.subject_transform is not None:
        return invalid("the bucket's stream has no_ack or a subject transform")
    if rules.retention != LIMITS:
        return invalid("the bucket's stream does not keep its messages")
    return None
