"""Fixtures of the tests of mirrors."""

from __future__ import annotations

import pytest

from tests.unit.mirror.rig import Rig, begun


@pytest.fixture
def rig() -> Rig:
    return begun()
