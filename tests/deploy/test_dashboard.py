"""The Grafana dashboard (deploy/grafana): its parts fit together, as Grafana reads them. Queries: test_alerts.py."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).resolve().parents[2]
BOARD: dict[str, Any] = json.loads((TOP / "deploy" / "grafana" / "jetcluster.json").read_text())
PANELS: list[dict[str, Any]] = BOARD["panels"]
COLUMNS = 24
UNITS = {"none", "short", "s", "ops", "Bps", "bytes", "percent", "percentunit", "reqps"}
"""Those of Grafana's list that are used here."""


def test_panels_lie_beside_each_other() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["w"] > 0 and place["x"] + place["w"] <= COLUMNS and place["h"] > 0, panel["title"]
        cells = set(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells


@pytest.mark.parametrize(
    "panel", [panel for panel in PANELS if panel["type"] != "row"], ids=lambda panel: panel["title"]
)
def test_a_panel_shows_what_it_asks_for(panel: dict[str, Any]) -> None:
    assert panel["type"] in ("stat", "timeseries")
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    targets = panel["targets"]
    assert len({target["refId"] for target in targets}) == len(targets) > 0
    for target in targets:
        assert target["datasource"] == panel["datasource"]
        for label in re.findall(r"{{\s*(\w+)\s*}}", target["legendFormat"]):
            assert _keeps(target["expr"], label), f"{target['expr']} gives no label {label}"


def _keeps(expression: str, label: str) -> bool:
    """Aggregations keep what they name, other expressions all labels."""
    by = re.findall(r"\bby\s*\(([^)]*)\)", expression)
    return not by or any(label in re.split(r"\s*,\s*", names) for names in by)


def test_variables_are_there() -> None:
    known = {variable["name"] for variable in BOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(PANELS) + json.dumps(BOARD["templating"])))
    assert used - {"__rate_interval", "__all"} == known
    provided = (TOP / "deploy" / "grafana" / "provisioning" / "datasources" / "prometheus.yaml").read_text()
    assert "type: prometheus" in provided
