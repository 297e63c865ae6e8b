"""Fixtures of the tests of configurations."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a test are in the working directory."""
    monkeypatch.chdir(tmp_path)
