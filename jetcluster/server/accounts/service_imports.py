"""Service imports: a request of one account is delivered in another, and the response comes back.

In the exporting account the request has the exported subject, and a reply subject made for it,
`_R_.<account's token>.<request's token>`. A response to that subject, on any node, goes to the requester's own reply
subject in its own account (`Responses`). A request enters the exporting account on the node where it was published
(precedent: processServiceImport in nats-server's client.go).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from jetcluster.clock import TimerHandle
from jetcluster.config.account_options import DEFAULT_THRESHOLD_SECONDS, SINGLETON, ExportOptions
from jetcluster.config.import_rules import ServiceImport
from jetcluster.model.transforms import TOO_LONG
from jetcluster.protocol import subjects
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.protocol.headers import set_header
from jetcluster.server.accounts.import_context import (
    ImportContext,
    Link,
    Measurement,
    begin_measurement,
    describe,
    publish_bad_request,
)
from jetcluster.server.accounts.router import Requesters, Router
from jetcluster.server.accounts.shared_routes import cache
from jetcluster.server.accounts.subscription import Passage
from jetcluster.server.permissions import REQUEST_INFO, of_another_account

REPLIES = b"_R_."
MAX_PENDING = 65_536
"""Requests to one exporting account that wait for a response on this node; beyond it the oldest is dropped."""
MAX_CHAIN = 32
"""Service imports on the path of one request."""
_JETSTREAM = b"$JS."
_ACK = b"$JS.ACK."


class Response:
    """A response awaited in an exporting account for a requester of another one."""

    __slots__ = ("_replies", "end_watch", "export", "importer", "link", "measurement", "reply", "since", "subject")

    def __init__(
        self, replies: Replies, subject: bytes, importer: Router, reply: bytes, export: ExportOptions | None, link: Link
    ) -> None:
        self._replies = replies
        self.subject = subject
        self.importer = importer
        self.reply = reply
        self.export = export
        self.link = link
        """The request's service import."""
        self.since = 0.0
        """Monotonic seconds of the request or the last response."""
        self.measurement: Measurement | None = None
        self.end_watch: Callable[[], None] = _nothing

    @property
    def single(self) -> bool:
        return self.export is None or self.export.response_type == SINGLETON

    @property
    def patience(self) -> float:
        return self.export.patience if self.export is not None else DEFAULT_THRESHOLD_SECONDS

    def end(self, why: str = "") -> None:
        """Stops waiting. `why` there was no response: "no responders", "timeout", "interest lost"; "" if there was."""
        if self._replies.forget(self) and self.measurement is not None and why:
            self.measurement.failed(why)


class Replies(Passage):
    """The responses awaited in one exporting account on this node, and the taker of their subjects."""

    __slots__ = ("_all", "_context", "_due", "_prefix", "_router", "_timer", "pending")

    def __init__(self, context: ImportContext, all_of_them: Responses, router: Router) -> None:
        self._prefix = b"%b%b." % (REPLIES, context.rng.token(3).hex().encode())
        super().__init__(self._prefix + b"*")
        self._context = context
        self._all = all_of_them
        self._router = router
        self._timer: TimerHandle | None = None
        self._due = 0.0
        """Monotonic seconds at which the timer is due."""
        self.pending: dict[bytes, Response] = {}

    def expect(self, importer: Router, reply: bytes, export: ExportOptions | None, link: Link) -> Response:
        pending = self.pending
        if len(pending) >= MAX_PENDING:
            next(iter(pending.values())).end("timeout")
        subject = self._prefix + self._context.rng.token(8).hex().encode()
        response = pending[subject] = Response(self, subject, importer, reply, export, link)
        response.since = self._context.clock.monotonic()
        response.end_watch = importer.local.await_end(reply, lambda: self._interest_changed(response))
        self._sweep_in(response.patience)
        return response

    def forget(self, response: Response) -> bool:
        """Removes an awaited response; False if it was removed before."""
        response.end_watch()
        return self.pending.pop(response.subject, None) is not None

    def _interest_changed(self, response: Response) -> None:
        if not response.importer.has_interest(response.reply):
            response.end("interest lost")

    def _sweep_in(self, seconds: float) -> None:
        due = self._context.clock.monotonic() + seconds
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._context.timers.call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        """Ends all responses that are overdue. As it scans all, it runs at most four times within `patience`."""
        self._timer = None
        now = self._context.clock.monotonic()
        for response in [r for r in self.pending.values() if now - r.since >= r.patience]:
            response.end("timeout")
        if self.pending:
            soonest = min(self.pending.values(), key=_end_of_patience)
            self._sweep_in(max(_end_of_patience(soonest) - now, soonest.patience / 4))

    # ---- responses

    def take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> bool:
        response = self.pending.get(subject)
        if response is None:
            return False
        if response.measurement is not None:
            response.measurement.answered(origin)
        back = self._back(response, reply)
        known, self._context.way = self._context.way, (origin, (response.link,))
        try:
            taken = response.importer.enter(response.reply, back, of_another_account(headers), payload, origin)
        finally:
            self._context.way = known
        self._went(response, bool(taken), empty=not (headers or payload))
        return taken > 0

    def take_many(self, messages: Sequence[Outgoing], origin: Origin, target: bytes) -> int:
        response = self.pending.get(target)
        if response is None:
            return 0
        if response.measurement is not None:
            response.measurement.answered(origin)
        moved = [
            (
                response.reply if shown == target else shown,
                self._back(response, reply),
                of_another_account(headers),
                payload,
            )
            for shown, reply, headers, payload in (messages[:1] if response.single else messages)
        ]
        known, self._context.way = self._context.way, (origin, (response.link,))
        try:
            taken = response.importer.enter_many(response.reply, moved, origin)
        finally:
            self._context.way = known
        self._went(response, bool(taken), empty=not (messages[-1][2] or messages[-1][3]))
        return taken

    def _back(self, response: Response, reply: bytes) -> bytes:
        """Returns the reply subject of a response: a response that is itself a request gets one made in the importing
        account. Ack subjects stay: an account that may ack imports them as a service."""
        if not reply or reply.startswith(_ACK):
            return reply
        return self._all.of(response.importer).expect(self._router, reply, response.export, response.link).subject

    def _went(self, response: Response, taken: bool, *, empty: bool) -> None:
        if not taken or response.single or empty:
            response.end("" if taken else "no responders")
        else:
            response.since = self._context.clock.monotonic()

    # ---- interest and backlog of requesters

    @property
    def requesters(self) -> Requesters:
        return Requesters(self._prefix, self._requester)

    def _requester(self, subject: bytes) -> tuple[Router, bytes] | None:
        response = self.pending.get(subject)
        return None if response is None else (response.importer, response.reply)

    @property
    def backlog(self) -> int:
        return 0


class Responses:
    """The responses awaited on this node, by exporting account."""

    def __init__(self, context: ImportContext) -> None:
        self._context = context
        self._replies: dict[str, Replies] = {}

    def of(self, router: Router) -> Replies:
        """Returns the awaited responses of an account, made at its first request."""
        found = self._replies.get(router.account)
        if found is None:
            found = self._replies[router.account] = Replies(self._context, self, router)
            router.requesters = found.requesters
            router.add_passage(found, announced=True)
        return found

    def awaited_in(self, account: str) -> dict[bytes, Response]:
        """Returns the awaited responses of an account by reply subject, without making any."""
        found = self._replies.get(account)
        return {} if found is None else found.pending


def _end_of_patience(response: Response) -> float:
    return response.since + response.patience


def _nothing() -> None:
    pass


class ServiceEntry(Passage):
    """One service import, in the index of the importing account."""

    __slots__ = ("_cached", "_context", "_exporter", "_import", "_importer", "_is_system", "_key", "_responses")

    leads_away = True

    def __init__(
        self, context: ImportContext, responses: Responses, imported: ServiceImport, importer: Router, exporter: Router
    ) -> None:
        super().__init__(imported.local)
        self._context = context
        self._responses = responses
        self._import = imported
        self._importer = importer
        self._exporter = exporter
        self._is_system = exporter.account == context.system_account
        export = imported.export
        self._key = (exporter.account, export.subject if export is not None else imported.options.subject)
        self._cached: dict[bytes, bytes] = {}

    def _remote(self, subject: bytes) -> bytes:
        imported = self._import
        if imported.same:
            return subject
        if imported.transform is None:
            return imported.remote
        found = self._cached.get(subject)
        if found is None:
            found = imported.transform.match(subject) or imported.remote
            cache(self._cached, subject, found)
        return found

    def take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> bool:
        context = self._context
        chain = context.chain_of(origin)
        # A peer's message entered the exporting account on its own node.
        if origin.kind == "peer" or len(chain) >= MAX_CHAIN or any(key == self._key for key, _, _ in chain):
            return False
        remote = self._remote(subject)
        if remote is TOO_LONG:
            return False
        if remote.startswith(_JETSTREAM) and not self._covers(remote):
            return False
        exporter, export = self._exporter, self._import.export
        share = chain[-1][2] if chain else self._import.options.share
        requester = self._describe(origin, chain, share)
        response: Response | None = None
        if reply and not reply.startswith(_ACK):
            link = self._key, None, share
            response = self._responses.of(exporter).expect(self._importer, reply, export, link)
            if export is not None and export.latency is not None:
                response.measurement = begin_measurement(context, exporter.publish, export, headers, requester)
        elif not reply and export is not None and export.latency is not None:
            publish_bad_request(context, exporter.publish, export, headers, requester)
        back = response.subject if response is not None else reply
        headers = set_header(headers, REQUEST_INFO, json.dumps(requester, separators=(",", ":")).encode())
        known, context.way = context.way, (origin, (*chain, (self._key, requester, share)))
        try:
            taken = exporter.enter(remote, back, headers, payload, origin)
        finally:
            context.way = known
        if not taken and response is not None:
            response.end("no responders")
        return taken > 0

    def _covers(self, remote: bytes) -> bool:
        """Returns True unless a wildcard in a request to JetStream exceeds the import. There a wildcard is a filter
        (Direct Get, CONSUMER.CREATE), but `>` would match one token of the import as plain text."""
        return subjects.is_literal(remote) or subjects.is_subset(remote, self._import.options.subject.encode())

    def _describe(self, origin: Origin, chain: tuple[Link, ...], share: bool) -> dict[str, Any]:
        """Returns `Nats-Request-Info`: the requester's account, or its whole info if that is shared."""
        context = self._context
        first = chain[-1][1] if chain else None
        if first is not None:
            found: dict[str, Any] = {}
            for key, value in first.items():
                found[key] = value
                if key == "acc":
                    found["svc"] = self._importer.account
            found.setdefault("svc", self._importer.account)
            place = not share and (self._import.options.share or self._is_system)
        else:
            found = describe(origin, share)
            place = not share and self._is_system
        if place:
            found["server"] = context.server_name
            if context.cluster:
                found["cluster"] = context.cluster
        return found

    def take_many(self, messages: Sequence[Outgoing], origin: Origin, target: bytes) -> int:
        """Takes each message as a request to `target`, which routed it."""
        taken = False
        for _, reply, headers, payload in messages:
            taken = self.take(target, reply, headers, payload, origin)
        return taken
