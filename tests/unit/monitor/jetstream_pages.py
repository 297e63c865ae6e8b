"""/jsz and /healthz, asked as over HTTP."""

from __future__ import annotations

from typing import Any

from jetcluster.monitor.healthz import healthz
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.source import Health


def ask(node: Any, **query: str) -> dict[str, Any]:
    return NodeSource(node).page("jsz", {name.replace("_", "-"): value for name, value in query.items()})


def health(node: Any, **query: str) -> Health:
    return healthz(node, {name.replace("_", "-"): value for name, value in query.items()})
