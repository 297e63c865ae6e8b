from __future__ import annotations

import pytest

from jetcluster.doctor.words import names, share, size, span


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 50, "3.0 PiB")])
def test_size(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.25 s"), (12.4, "12 s"), (300, "5 min"), (7300, "2.0 h"), (259_200, "3.0 d")]
)
def test_span(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_share_and_names() -> None:
    assert share(93, 100) == "93 %"
    assert (names(["a", "b"]), names(["a", "b", "c"], 2)) == ("a, b", "a, b and 1 more")
