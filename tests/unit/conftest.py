"""Fixtures for tests of more than one room."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from jetcluster import logs
from jetcluster.config.options import Options


@pytest.fixture
def restored_logs() -> Iterator[None]:
    """Logs are as before, when the test is over."""
    yield
    logs.configure(Options())
    logging.getLogger().removeHandler(logs._bridge)
    logging.getLogger("jetcluster").setLevel(logging.NOTSET)
