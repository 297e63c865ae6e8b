"""Progress on stderr."""

from __future__ import annotations

import pytest

from jetcluster.pipeline import environment


def test_progress_is_no_part_of_the_result(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "is_submitted", lambda: False)
    environment.progress("half of it")
    assert capsys.readouterr() == ("", "half of it\n")
