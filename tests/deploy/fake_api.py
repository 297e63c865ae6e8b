"""The part of a Kubernetes API server that helm's `lookup` asks: discovery, and objects by name."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RESOURCES = {"v1": [("secrets", "Secret")], "apps/v1": [("statefulsets", "StatefulSet")]}
Objects = dict[str, dict[str, Any]]
"""By path behind the API's version: `namespaces/default/secrets/x`."""


def _answer(path: str, objects: Objects) -> dict[str, Any] | None:
    """Returns the body for a path; None: there is no such thing."""
    if path == "/version":
        return {"major": "1", "minor": "31", "gitVersion": "v1.31.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        version = {"groupVersion": "apps/v1", "version": "v1"}
        group = {"name": "apps", "versions": [version], "preferredVersion": version}
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
    for group, kinds in RESOURCES.items():
        base = f"/api/{group}" if group == "v1" else f"/apis/{group}"
        if path == base:
            listed = [
                {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get", "list"]}
                for name, kind in kinds
            ]
            return {"kind": "APIResourceList", "groupVersion": group, "resources": listed}
        if path.startswith(f"{base}/"):
            return objects.get(path.removeprefix(f"{base}/"))
    return None


@contextmanager
def api_server(objects: Objects) -> Iterator[str]:
    """Serves `objects` on loopback; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = _answer(self.path.partition("?")[0], objects)
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(missing if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
