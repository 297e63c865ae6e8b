"""`ImportContext`: the state shared by the service imports of all accounts, with a message's path through them; and
`Measurement`: latency metrics of exported services (`io.nats.server.metric.v1.service_latency`).

All times are nanoseconds. Round trips of connections count as network time: the service's time is the rest between
request and response (precedent: sendTrackingLatency in nats-server's accounts.go). The requester's node measures, and
leaves out a responder on another node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetcluster.clock import Clock, Rng, Timers
from jetcluster.config.account_options import ExportOptions
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.bus import Origin

Link = tuple[tuple[str, str], dict[str, Any] | None, bool]
"""One service import on a message's path: ((exporting account, subject), requester, whether the requester is shared in
full). The requester is None for a response."""

Publish = Callable[[bytes, bytes], int]
"""Publishes (subject, payload) in one account."""
METRIC_KIND = "io.nats.server.metric.v1.service_latency"
MAX_HEADER_BYTES = 4096
"""Bytes of a request's headers that are searched for tracing headers."""
_FAILURES = {
    "no responders": (503, "Service Unavailable"),
    "interest lost": (408, "Request Timeout"),
    "timeout": (504, "Service Timeout"),
}


class ImportContext:
    """The context of a server's service imports. The names are those of the options at the start."""

    def __init__(
        self, clock: Clock, timers: Timers, rng: Rng, *, server_name: str, cluster: str, system_account: str
    ) -> None:
        self.clock = clock
        self.timers = timers
        self.rng = rng
        self.server_name = server_name
        self.cluster = cluster
        self.system_account = system_account
        self.way: tuple[Origin | None, tuple[Link, ...]] = None, ()
        """The origin of the message being routed, and the service imports on its path. Messages that a callback
        publishes meanwhile have another origin, and so no path."""

    def chain_of(self, origin: Origin) -> tuple[Link, ...]:
        """Returns the path of the message being routed, if it is from `origin`."""
        return self.way[1] if self.way[0] is origin else ()

    def publish_metric(self, publish: Publish, subject: bytes, kind: str, fields: dict[str, Any]) -> None:
        """Publishes a metric of type `kind`."""
        from jetcluster.model.advisory import Advisories, Event

        publish(subject, Advisories(self.clock, self.rng).render(Event(subject, kind, fields)))


def describe(origin: Origin, share: bool) -> dict[str, Any]:
    """Describes a requester: with `share` the whole client info, else its account and round-trip time."""
    if share and (info := origin.client_info()):
        return _without_zero_rtt(info)
    found: dict[str, Any] = {"acc": origin.account}
    rtt = int(origin.rtt * 1e9)
    if rtt:
        found["rtt"] = rtt
    return found


def responder(origin: Origin) -> dict[str, Any]:
    """Returns the info of the client that answered; {} if it is not a client of this node."""
    return _without_zero_rtt(origin.client_info())


def _without_zero_rtt(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key != "rtt" or value}


class Measurement:
    """The measurement of one sampled request, published once, by `publish` in the exporting account."""

    def __init__(
        self,
        context: ImportContext,
        publish: Publish,
        export: ExportOptions,
        requester: dict[str, Any],
        header: dict[str, list[str]],
    ) -> None:
        self._context = context
        self._publish = publish
        self._export = export
        self._requester = requester
        self._header = header
        self._start_ns = context.clock.time_ns()
        self._published = False

    def answered(self, origin: Origin) -> None:
        if self._published:
            return
        now = self._context.clock.time_ns()
        taken = now - self._start_ns
        who = responder(origin)
        there, here = int(who.get("rtt", 0)), int(self._requester.get("rtt", 0))
        fields: dict[str, Any] = {"status": 200, "requestor": self._requester}
        if who:
            fields["responder"] = who
        service = max(taken - there, 0)
        self._publish_metric(fields, service=service, total=here + taken)

    def failed(self, why: str) -> None:
        if not self._published:
            status, text = _FAILURES[why]
            self._publish_metric({"status": status, "description": text, "requestor": self._requester})

    def bad_request(self) -> None:
        self._publish_metric({"status": 400, "description": "Bad Request", "requestor": self._requester})

    def _publish_metric(self, fields: dict[str, Any], service: int = 0, total: int = 0) -> None:
        from jetcluster.model.times import rfc3339

        self._published = True
        if self._header:
            fields["header"] = self._header
        fields["start"] = rfc3339(self._start_ns - int(self._requester.get("rtt", 0)))
        fields |= {"service": service, "system": 0, "total": total}
        latency = self._export.latency
        assert latency is not None
        self._context.publish_metric(self._publish, latency.subject.encode(), METRIC_KIND, fields)


def begin_measurement(
    context: ImportContext, publish: Publish, export: ExportOptions, headers: bytes, requester: dict[str, Any]
) -> Measurement | None:
    """Returns a measurement if this request is sampled, else None."""
    wanted, header = _sampled(context, export, headers)
    return Measurement(context, publish, export, requester, header) if wanted else None


def publish_bad_request(
    context: ImportContext, publish: Publish, export: ExportOptions, headers: bytes, requester: dict[str, Any]
) -> None:
    """Publishes the metric of a request without a reply subject, if it is sampled."""
    measurement = begin_measurement(context, publish, export, headers, requester)
    if measurement is not None:
        measurement.bad_request()


def _sampled(context: ImportContext, export: ExportOptions, headers: bytes) -> tuple[bool, dict[str, list[str]]]:
    """Returns (True to measure, the tracing headers that requested it)."""
    assert export.latency is not None
    percent = export.latency.sampling
    if percent >= 100 or (percent and context.rng.random() * 100 < percent):
        return True, {}
    return _asked_by(headers) if headers else (False, {})


def _asked_by(headers: bytes) -> tuple[bool, dict[str, list[str]]]:
    """Returns whether Uber (Jaeger), B3 (Zipkin) or W3C trace headers request sampling, and those headers."""
    given: dict[str, list[str]] = {}
    for key, value in header_block.parse(header_block.beginning(headers, MAX_HEADER_BYTES)):
        given.setdefault(key.decode("utf-8", "replace").title(), []).append(value.decode("utf-8", "replace"))

    def pick(*names: str) -> dict[str, list[str]]:
        return {name: given[name] for name in names if name in given}

    if "Uber-Trace-Id" in given:
        parts = given["Uber-Trace-Id"][0].split(":")
        wanted = len(parts) == 4 and 0 < len(parts[3]) <= 2 and _is_odd(parts[3])
        names = ["Uber-Trace-Id", *(name for name in given if name.startswith("Uberctx-"))]
        return wanted, pick(*names) if wanted else {}
    zipkin = pick("X-B3-Sampled", "X-B3-Traceid", "X-B3-Parentspanid", "X-B3-Spanid")
    if "X-B3-Sampled" in given:
        wanted = given["X-B3-Sampled"][0] == "1"
        return wanted, zipkin if wanted else {}
    if "X-B3-Traceid" in given:
        return True, zipkin
    if "B3" in given:
        parts = given["B3"][0].split("-")
        wanted = not (parts[0] == "0" and len(parts) == 1) and not (len(parts) > 2 and parts[2] == "0")
        return wanted, pick("B3") if wanted else {}
    if "Traceparent" in given:
        parts = given["Traceparent"][0].split("-")
        wanted = len(parts) == 4 and len(parts[3]) == 2 and _is_odd(parts[3])
        return wanted, pick("Traceparent", "Tracestate") if wanted else {}
    return False, {}


def _is_odd(text: str) -> bool:
    try:
        return int(text, 16) & 1 == 1
    except ValueError:
        return False
