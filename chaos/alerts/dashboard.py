"""The queries of the Grafana dashboard, as Grafana sends them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chaos.alerts.rules import DASHBOARD

VARIABLES = {"$instance": ".*", "$__rate_interval": "15s"}


def queries(path: Path = DASHBOARD) -> dict[str, str]:
    """The expressions by "panel: place", with the variables' values."""
    board: dict[str, Any] = json.loads(path.read_text())
    found = {}
    for panel in board["panels"]:
        for place, target in enumerate(panel.get("targets", ()), 1):
            found[f"{panel['title']}: {place}"] = _filled(target["expr"])
    return found


def _filled(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, f"an unknown variable: {expression}"
    return expression
