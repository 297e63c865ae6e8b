from __future__ import annotations

import pytest

from jetcluster.store import view
from jetcluster.store.search import kept_filters, queries


@pytest.fixture(params=["small steps", "as it is"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small steps":
        monkeypatch.setattr(kept_filters, "SUBJECTS_PER_STEP", 2)
        monkeypatch.setattr(kept_filters, "MAX_SKIP_PAUSES", 0)
        monkeypatch.setattr(kept_filters, "MIN_KEPT_WIDTH", 0)
        monkeypatch.setattr(view, "SEEKS_PER_STEP", 1)
        monkeypatch.setattr(view, "LOOKUPS_PER_STEP", 1)
        monkeypatch.setattr(queries, "LONG_MICROSECONDS", 0.0)
        monkeypatch.setattr(queries, "BLOCKS_PER_STEP", 1)
        monkeypatch.setattr(queries, "SUBJECTS_PER_STEP", 1)
