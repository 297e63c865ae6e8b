"""Fixtures of the tests of nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.node.stopped import Stopped


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    stopped = Stopped(tmp_path)
    stopped.stream("S", "n1", "n2", "n3")
    stopped.stream("ONE", "n3")
    return stopped
