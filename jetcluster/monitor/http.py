"""The monitoring endpoints on aiohttp. Imported only after the server is ready (see `start`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from aiohttp import web

from jetcluster import REPORTED_VERSION
from jetcluster.budget import BusyError, Steps
from jetcluster.console.door import PATH
from jetcluster.console.files import WebFiles
from jetcluster.logs import get_logger
from jetcluster.model.codec import encoding
from jetcluster.monitor.exposition import CONTENT_TYPE
from jetcluster.monitor.machine import HEALTH, METRICS, STACKS, MachinePages, WorkerAbsentError
from jetcluster.monitor.metrics import Metrics
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.source import BUSY, Health, Json, Query, QueryError
from jetcluster.monitor.stacksz import stacksz

log = get_logger("monitor")

WORKER = "worker"
"""The query parameter that names one worker of the machine."""
ASKER = "http"
"""The asker in the node's time budget: all HTTP requests share one portion."""
_HEADERS = {"Access-Control-Allow-Origin": "*"}
CONSOLE_HEADERS = {
    # Nothing but the console's own files runs in it, and no other page may show it in a frame.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",  # by entity tag: a browser sees a new version at once
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
}
_PAGES = {
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
    "findingsz": "What is wrong, and what to do (?cluster=1: of all servers)",
    "historyz": "Figures of the last 24 hours, with a console",
    "debug/vars": "Process",
    "stacksz": "Threads and tasks",
    "metrics": "Metrics for Prometheus",
}
_OF_THEIR_OWN = frozenset({"healthz", "findingsz", "historyz", "debug/vars", "stacksz", "metrics"})
_JSON_PAGES = {
    **{name: name for name in _PAGES if name not in _OF_THEIR_OWN},
    "subscriptionsz": "subsz",
    "ipqueuesz": "ipqueuesz",
    "debug/vars": "expvarz",
}
"""Path -> name of the page."""
Handler = Callable[[web.Request], Awaitable[web.Response]]


def application(
    source: NodeSource, metrics: Metrics, base_path: str = "", machine: MachinePages | None = None,
    *, console: bool = False,
) -> web.Application:  # fmt: skip
    """Returns the application; `base_path` (`http_base_path`) precedes each path. `machine` answers on a worker."""
    prefix = "/" + base_path.strip("/") if base_path.strip("/") else ""
    app = web.Application()

    def add(path: str, handler: Handler, shown: str = "") -> None:
        # nats-server ignores the method
        app.router.add_route("*", path, _counted(source, shown or path, handler))

    add(prefix or "/", _index, "/")
    if prefix:
        add(prefix + "/", _index, "/")
    for path, name in _JSON_PAGES.items():
        add(f"{prefix}/{path}", _json(source, name) if machine is None else _machine_json(machine, name))
    add(f"{prefix}/metrics", _metrics(metrics) if machine is None else _machine_metrics(machine))
    add(f"{prefix}/healthz", _health(source) if machine is None else _machine_health(machine))
    add(f"{prefix}/findingsz", _awaited(source, source.findings))
    add(f"{prefix}/historyz", _awaited(source, source.history))
    add(f"{prefix}/stacksz", _stacks if machine is None else _machine_stacks(machine))
    if console:
        add(f"{prefix}/ui", _to_console, "/ui")
        add(f"{prefix}/ui/server.json", _welcome(source), "/ui")
        add(prefix + PATH, _no_door, "/ui")
        add(prefix + "/ui/{path:.*}", _console(), "/ui")
    app.router.add_route("*", "/{anything:.*}", _unknown)
    return app


def _counted(source: NodeSource, path: str, answer: Handler) -> Handler:
    """Wraps `answer`: counts its requests, and turns its errors into responses."""

    async def handle(request: web.Request) -> web.Response:
        source.count_request(path)
        try:
            return await answer(request)
        except QueryError as error:
            return _text(400, str(error))
        except WorkerAbsentError as error:
            return _text(503, str(error))
        except BusyError:
            return _text(503, BUSY)
        except web.HTTPException:
            raise
        except Exception:
            log.exception("monitoring request failed", path=request.path_qs)
            return _text(500, "internal error, see the log")

    return handle


async def _to_console(request: web.Request) -> web.Response:
    raise web.HTTPPermanentRedirect(request.path.rpartition("/")[2] + "/")  # relative: a proxy may have another prefix


async def _no_door(_request: web.Request) -> web.Response:
    """`console.door` has not taken this request."""
    text = "503 this server is going away, or the request is not GET without a query\n"
    return web.Response(status=503, text=text, headers={"Connection": "close"})


def _welcome(source: NodeSource) -> Handler:
    """Answers with the facts that the console needs before a login."""

    async def handle(_request: web.Request) -> web.Response:
        return web.json_response(source.welcome(), headers={"Cache-Control": "no-store"})

    return handle


def _console() -> Handler:
    files: WebFiles | None = None

    async def handle(request: web.Request) -> web.Response:
        nonlocal files
        if files is None:
            files = await asyncio.to_thread(WebFiles)
        found = files.get(request.match_info["path"])
        if found is None:
            return await _unknown(request)
        headers = {**CONSOLE_HEADERS, "ETag": found.tag}
        if found.tag in request.headers.get("If-None-Match", ""):  # a list; weak ones behind some proxies
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = found.type
        body = found.body
        if found.packed and "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            body = found.packed
        return web.Response(body=body, headers=headers)

    return handle


async def _unknown(request: web.Request) -> web.Response:
    return _text(404, "404 page not found\n")


def _rendered(page: Steps[Json]) -> Steps[bytes]:
    return (yield from encoding((yield from page), indent=2, ensure_ascii=False))


def _query(request: web.Request) -> Query:
    return {name: request.query.getall(name)[0] for name in request.query}


def _text(status: int, body: str) -> web.Response:
    return web.Response(status=status, text=body, headers=_HEADERS)


def _json_response(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", headers=_HEADERS)


def _json(source: NodeSource, name: str) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        steps = source.in_steps(name, _query(request))
        return _json_response(200, await source.run(ASKER, _rendered(steps)))

    return handle


def _health(source: NodeSource) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        health = await source.healthz(_query(request))
        body = json.dumps(health.body, separators=(",", ":"), ensure_ascii=False)
        return _json_response(health.status, body.encode())

    return handle


def _awaited(source: NodeSource, make: Callable[[str, Query], Awaitable[Json]]) -> Handler:
    """Answers with a page that waits for threads or other servers. On a worker it is the worker's own, too."""

    async def handle(request: web.Request) -> web.Response:
        page = await make(ASKER, _query(request))
        return _json_response(200, await source.run(ASKER, encoding(page, indent=2, ensure_ascii=False)))

    return handle


def _machine_json(machine: MachinePages, name: str) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        query = _query(request)
        if WORKER in query:
            page = json.loads(await machine.of_worker(name, query))
        else:
            page = await machine.page(name, query)
        return _json_response(200, await machine.render(page))

    return handle


def _machine_health(machine: MachinePages) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        query = _query(request)
        if WORKER in query:
            told = json.loads(await machine.of_worker(HEALTH, query))
            health = Health(told["status"], told["body"])
        else:
            health = await machine.health(query)
        body = json.dumps(health.body, separators=(",", ":"), ensure_ascii=False)
        return _json_response(health.status, body.encode())

    return handle


def _machine_metrics(machine: MachinePages) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        query = _query(request)
        body = await (machine.of_worker(METRICS, query) if WORKER in query else machine.metrics(query))
        return web.Response(body=body, headers={**_HEADERS, "Content-Type": CONTENT_TYPE})

    return handle


def _machine_stacks(machine: MachinePages) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        query = _query(request)
        return (
            _text(200, (await machine.of_worker(STACKS, query)).decode()) if WORKER in query else _text(200, stacksz())
        )

    return handle


async def _stacks(_request: web.Request) -> web.Response:
    return _text(200, stacksz())


def _metrics(metrics: Metrics) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        body = await metrics.scrape(_query(request))
        return web.Response(body=body, headers={**_HEADERS, "Content-Type": CONTENT_TYPE})

    return handle


async def _index(request: web.Request) -> web.Response:
    base = request.path.rstrip("/")
    links = "\n".join(f'<li><a href="{base}/{name}">{title}</a> /{name}</li>' for name, title in _PAGES.items())
    page = (
        "<!doctype html>\n<html lang=en><meta charset=utf-8><title>jetcluster</title>\n"
        f"<h1>jetcluster</h1><p>speaks NATS {REPORTED_VERSION}</p>\n<ul>\n{links}\n</ul></html>\n"
    )
    return web.Response(text=page, content_type="text/html", headers=_HEADERS)
