"""Service imports: a request of one account is delivered in another, and what is answered comes back.

The request travels on in the exporting account under the exported subject, with a reply subject made for it there,
`_R_.<account's>.<request's>`. What comes to that subject, on any node, goes to the requester's own reply subject in
its own account (`Responses`). Requests enter the other account on the node where they were published; its routes do
the rest (precedent: processServiceImport in nats-server's client.go).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from jetcluster.clock import TimerHandle
from jetcluster.config.account_options import DEFAULT_THRESHOLD, SINGLETON, ExportOptions
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
    tell_bad_request,
)
from jetcluster.server.accounts.router import Requesters, Router
from jetcluster.server.accounts.subscription import Passage
from jetcluster.server.permissions import REQUEST_INFO, of_another_account

REPLIES = b"_R_."
MAX_PENDING = 65_536
"""Requests of one exporting account that wait for an answer on this node; beyond it the oldest is given up."""
MAX_CHAIN = 32
"""Accounts that one request may go through."""
MAX_CACHED = 4096
"""Exported subjects that are remembered per import."""
LONGEST_CACHED = 512
"""Bytes of a subject and what it becomes: longer ones are made each time."""
_JETSTREAM = b"$JS."
_ACK = b"$JS.ACK."


class Response:
    """A response that is awaited in an exporting account, on behalf of a requester of another one."""

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
        """The import that it is a response by."""
        self.since = 0.0
        """When it was asked, or last answered; monotonic seconds."""
        self.measurement: Measurement | None = None
        self.end_watch: Callable[[], None] = _nothing

    @property
    def single(self) -> bool:
        return self.export is None or self.export.response_type == SINGLETON

    @property
    def patience(self) -> float:
        return self.export.patience if self.export is not None else DEFAULT_THRESHOLD

    def end(self, why: str = "") -> None:
        """`why` it was not answered: "no responders", "timeout", "interest lost"."""
        if self._replies.forget(self) and self.measurement is not None and why:
            self.measurement.failed(why)


class Replies(Passage):
    """The responses that requests of other accounts wait for in one account, on this node."""

    __slots__ = ("_all", "_context", "_due", "_prefix", "_router", "_timer", "pending")

    def __init__(self, context: ImportContext, all_of_them: Responses, router: Router) -> None:
        self._prefix = b"%b%b." % (REPLIES, context.rng.token(3).hex().encode())
        super().__init__(self._prefix + b"*")
        self._context = context
        self._all = all_of_them
        self._router = router
        self._timer: TimerHandle | None = None
        self._due = 0.0
        """When the timer goes off."""
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
        """False when it was gone already."""
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
        """Looks at all, and so not more often than four times in somebody's patience."""
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
        """A response may want an answer itself: that goes the other way in the same manner. Acks keep their subject:
        who may ack imports that as a service."""
        if not reply or reply.startswith(_ACK):
            return reply
        return self._all.of(response.importer).expect(self._router, reply, response.export, response.link).subject

    def _went(self, response: Response, taken: bool, *, empty: bool) -> None:
        if not taken or response.single or empty:
            response.end("" if taken else "no responders")
        else:
            response.since = self._context.clock.monotonic()

    # ---- questions about a requester's reply subject, asked in this account

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
        """Those of an account; made when it is first asked for something."""
        found = self._replies.get(router.account)
        if found is None:
            found = self._replies[router.account] = Replies(self._context, self, router)
            router.requesters = found.requesters
            router.add_passage(found, told=True)
        return found

    def awaited_in(self, account: str) -> dict[bytes, Response]:
        """By reply subject; empty where nobody has asked."""
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
            if len(subject) + len(found) > LONGEST_CACHED:
                return found
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            self._cached[subject] = found
        return found

    def take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> bool:
        context = self._context
        chain = context.chain_of(origin)
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
            tell_bad_request(context, exporter.publish, export, headers, requester)
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
        """A wildcard in a request to JetStream is a filter (Direct Get, CONSUMER.CREATE): as plain text `>` would pass
        for one token of what is imported, and reach more than that."""
        return subjects.is_literal(remote) or subjects.is_subset(remote, self._import.options.subject.encode())

    def _describe(self, origin: Origin, chain: tuple[Link, ...], share: bool) -> dict[str, Any]:
        """The requester, as `Nats-Request-Info` has it: its account, and all about it when it is shared."""
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
        """Messages that are routed by `target` are requests to it."""
        taken = False
        for _, reply, headers, payload in messages:
            taken = self.take(target, reply, headers, payload, origin)
        return taken
