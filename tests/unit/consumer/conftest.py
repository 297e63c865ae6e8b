"""Fixtures of the tests of consumers."""

from __future__ import annotations

import pytest

from tests.unit.consumer.replica_rig import Node
from tests.unit.consumer.rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def n() -> Node:
    return Node()
