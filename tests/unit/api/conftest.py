"""Fixtures of the tests of the API."""

from __future__ import annotations

import pytest

from tests.unit.api.fake_cluster import Client


@pytest.fixture
def client() -> Client:
    return Client()
