"""Fixtures of the tests of nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.node.stopped import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.stream("S", "n1", "n2", "n3")
    site.stream("ONE", "n3")
    return site
