"""Service imports: a request of one account is delivered in another, and what is answered comes back.

The request travels on in the exporting account under the exported subject, with a reply subject made for it there,
`_R_.<account's>.<request's>` (`responses`). What comes to that subject, on any node, goes to the requester's own
reply subject in its own account. Requests enter the other account on the node where they were published; its routes do
the rest (precedent: processServiceImport in nats-server's client.go).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jetcluster.config.import_rules import ServiceImport
from jetcluster.model.transforms import TOO_LONG
from jetcluster.protocol import subjects
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.protocol.headers import set_header
from jetcluster.server.import_context import ImportContext, Link, describe
from jetcluster.server.permissions import REQUEST_INFO
from jetcluster.server.responses import Response, Responses
from jetcluster.server.router import Router
from jetcluster.server.service_latency import begin_measurement, tell_bad_request
from jetcluster.server.subscription import Passage

MAX_CHAIN = 32
"""Accounts that one request may go through."""
MAX_CACHED = 4096
"""Exported subjects that are remembered per import."""
LONGEST_CACHED = 512
"""Bytes of a subject and what it becomes: longer ones are made each time."""

_JETSTREAM = b"$JS."
_ACK = b"$JS.ACK."


class ServiceEntry(Passage):
    """One service import, in the index of the importing account."""

    __slots__ = ("_cached", "_context", "_exporter", "_import", "_importer", "_is_system", "_key", "_responses")

    leads_away = True

    def __init__(
        self,
        context: ImportContext,
        responses: Responses,
        imported: ServiceImport,
        importer: Router,
        exporter: Router,
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
