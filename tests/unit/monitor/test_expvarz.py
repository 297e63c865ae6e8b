"""/debug/vars, as the runtime of Go shows it."""

from __future__ import annotations

import sys

import pytest

from jetcluster.health.usage import ProcessUsage
from jetcluster.monitor.expvarz import expvarz


def test_expvarz_keeps_the_command_line_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["serve", "--pass", "hunter2"])
    found = expvarz(ProcessUsage())
    assert found["memstats"]["Sys"] > 1_000_000
    assert "hunter2" not in str(found)
