"""Progress on stderr."""

from __future__ import annotations

import pytest

from jetcluster.pipeline import console


def test_progress_is_no_part_of_the_result(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "is_submitted", lambda: False)
    console.progress("half of it")
    assert capsys.readouterr() == ("", "half of it\n")
