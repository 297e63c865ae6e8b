"""Audits in which a copy disappears while differences are compared."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[spark]'")

from jetcluster.errors import JetclusterError
from jetcluster.pipeline import audit
from jetcluster.pipeline.audit import MESSAGE, Audit, Comparison
from jetcluster.pipeline.copies import Copy

PLACES = [(1, 10, 100), (2, 20, 200)]


def test_a_copy_that_dies_among_the_differences_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_of(copy: Copy, low: int, high: int, columns: str) -> list[tuple[Any, ...]]:
        if copy.name == "n3" or (copy.name == "n2" and columns == MESSAGE):
            raise JetclusterError(f"{copy.name} is gone")
        return [(10, "s", b"", b"x")] if columns == MESSAGE else PLACES

    monkeypatch.setattr(audit, "rows_of", rows_of)
    parser = argparse.ArgumentParser()
    audit.add_arguments(parser)
    args = parser.parse_args(["--server", "nats://127.0.0.1:1", "--stream", "S"])
    job = Comparison("S", [Copy(name, "S", name) for name in ("n1", "n2", "n3")], 1, 2)
    at: Any = Audit(None, args)  # type: ignore[arg-type]
    assert at._read_places(job, 1, 2) == {name: {1: (10, 100), 2: (20, 200)} for name in ("n1", "n2")}
    assert [copy.name for copy in job.copies] == ["n1", "n2"] and job.unreadable == {"n3": "n3 is gone"}
    finding = at._finding(job, 1, 2, {2: {"n1": (20, 200), "n2": (20, 201)}})
    assert finding["sequences"] == [2] and set(finding["copies"]) == {"n1"}
    assert job.unreadable == {"n3": "n3 is gone", "n2": "n2 is gone"}
