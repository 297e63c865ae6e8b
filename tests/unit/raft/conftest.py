"""Fixtures of the tests of groups and journals."""

from __future__ import annotations

import pytest

from tests.unit.raft.journal_rig import Rig
from tests.unit.raft.loopback import Loopback


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def net() -> Loopback:
    return Loopback()
