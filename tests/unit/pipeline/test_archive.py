"""Arguments of an archive."""

from __future__ import annotations

import pytest

from jetcluster.pipeline.archive import pause_of
from jetcluster.pipeline.result import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"), [("10 seconds", 10), ("1 minute", 60), ("250ms", 0.25), ("2h", 7200), ("1.5 S", 1.5)]
)
def test_pauses(text: str, seconds: float) -> None:
    assert pause_of(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "ten seconds", "1 fortnight"])
def test_other_pauses(text: str) -> None:
    with pytest.raises(UsageError, match="--every"):
        pause_of(text)
