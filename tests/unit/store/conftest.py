from __future__ import annotations

import pytest

from jetcluster.store import view
from jetcluster.store.search import kept_filters, queries


@pytest.fixture(params=["small steps", "as it is"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small steps":
        monkeypatch.setattr(kept_filters, "STEP", 2)
        monkeypatch.setattr(kept_filters, "PAUSES", 0)
        monkeypatch.setattr(kept_filters, "WIDE", 0)
        monkeypatch.setattr(view, "SEEKS", 1)
        monkeypatch.setattr(view, "LOOKS", 1)
        monkeypatch.setattr(queries, "LONG", 0.0)
        monkeypatch.setattr(queries, "BLOCKS_PER_STEP", 1)
        monkeypatch.setattr(queries, "PAUSE_EVERY", 1)
