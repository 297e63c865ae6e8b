"""The monitoring endpoints by their paths: from a path and a query to an answer, without sockets."""

from __future__ import annotations

import html
import json
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from jetcluster import REPORTED_VERSION
from jetcluster.logs import get_logger
from jetcluster.monitor.exposition import CONTENT_TYPE
from jetcluster.monitor.expvarz import expvarz
from jetcluster.monitor.metrics import Metrics
from jetcluster.monitor.source import Json, MonitorSource, Query, QueryError, flag
from jetcluster.monitor.stacksz import stacksz

log = get_logger("monitor")

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
_TITLES = {
    "varz": "General",
    "jsz": "JetStream",
    "connz": "Connections",
    "subsz": "Subscriptions",
    "routez": "Routes",
    "leafz": "Leafs",
    "gatewayz": "Gateways",
    "accountz": "Accounts",
    "accstatz": "Account statistics",
    "raftz": "Raft groups",
    "healthz": "Health",
    "debug/vars": "Process",
    "stacksz": "Threads and tasks",
    "metrics": "Metrics for Prometheus",
}


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes


Page = Callable[[Query], Awaitable[Answer]]
"""Raises QueryError."""


class Pages:
    """Paths get `base_path` in front (`http_base_path`)."""

    def __init__(self, source: MonitorSource, metrics: Metrics, base_path: str = "") -> None:
        self._source = source
        self._metrics = metrics
        self._prefix = "/" + base_path.strip("/") if base_path.strip("/") else ""
        plain: dict[str, Callable[[Query], Json]] = {
            "varz": source.varz,
            "connz": source.connz,
            "routez": source.routez,
            "leafz": source.leafz,
            "gatewayz": source.gatewayz,
            "accountz": source.accountz,
            "accstatz": source.accstatz,
            "raftz": source.raftz,
            "ipqueuesz": _ipqueuesz,
            "debug/vars": lambda _: expvarz(),
            "subsz": source.subsz,
            "subscriptionsz": source.subsz,
            "jsz": source.jsz,
        }
        pages: dict[str, Page] = {name: _json(answer) for name, answer in plain.items()}
        pages |= {"metrics": self._scrape, "healthz": self._health, "stacksz": _stacks, "": self._index}
        self._pages = {f"{self._prefix}/{name}": page for name, page in pages.items()}
        if self._prefix:
            self._pages[self._prefix] = self._index

    async def answer(self, path: str, query: Query) -> Answer:
        """Never raises but for cancellation. The method of a request makes no difference, as in nats-server."""
        page = self._pages.get(path)
        if page is None:
            return _text(404, "404 page not found\n")
        self._source.count_request(path if page != self._index else "/")
        try:
            return await page(query)
        except QueryError as error:
            return _text(400, str(error))
        except Exception:
            log.exception("monitoring request failed", path=path)
            return _text(500, "internal error, see the log")

    async def _health(self, query: Query) -> Answer:
        health = await self._source.healthz(query)
        body = json.dumps(health.body, separators=(",", ":"), ensure_ascii=False)
        return Answer(health.status, JSON, body.encode())

    async def _scrape(self, query: Query) -> Answer:
        return Answer(200, CONTENT_TYPE, await self._metrics.scrape(query))

    async def _index(self, query: Query) -> Answer:
        base = html.escape(self._prefix)
        links = "\n".join(f'<li><a href="{base}/{name}">{title}</a> /{name}</li>' for name, title in _TITLES.items())
        page = (
            "<!doctype html>\n<html lang=en><meta charset=utf-8><title>jetcluster</title>\n"
            f"<h1>jetcluster</h1><p>speaks NATS {REPORTED_VERSION}</p>\n<ul>\n{links}\n</ul></html>\n"
        )
        return Answer(200, HTML, page.encode())


def _json(answer: Callable[[Query], Json]) -> Page:
    async def page(query: Query) -> Answer:
        return Answer(200, JSON, json.dumps(answer(query), indent=2, ensure_ascii=False).encode())

    return page


async def _stacks(query: Query) -> Answer:
    return _text(200, stacksz())


def _ipqueuesz(query: Query) -> Json:
    """Queues between goroutines: there are none. Raises QueryError."""
    flag(query, "all")
    return {}


def _text(status: int, body: str) -> Answer:
    return Answer(status, TEXT, body.encode())
