from __future__ import annotations

import gc
from pathlib import Path

import pytest

from jetcluster.health.usage import ProcessUsage


def test_what_the_process_takes() -> None:
    usage = ProcessUsage()
    before, began = usage.cpu_seconds(), usage.collections()[0]
    gc.collect()
    assert usage.cpu_seconds() > before
    assert usage.collections()[0] > began
    assert usage.cores() >= 1
    assert 1_000_000 < usage.memory_bytes() < 1 << 40


def test_memory_where_the_kernel_shows_no_statm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "")
    assert 1_000_000 < ProcessUsage().memory_bytes() < 1 << 40
