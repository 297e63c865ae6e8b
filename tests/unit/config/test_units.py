from __future__ import annotations

import pytest

from jetcluster.config.units import parse_duration, parse_storage_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10),
        ("2m", 120),
        ("100ms", 0.1),
        ("1h2m3.5s", 3723.5),
        ("-1s", -1),
        ("0", 0),
        ("1µs", 1e-6),
        ("5ns", 5e-9),
        (".5s", 0.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("2x", 'time: unknown unit "x" in duration "2x"'),
        ("2", 'time: missing unit in duration "2"'),
        ("", 'time: invalid duration ""'),
        ("s", 'time: invalid duration "s"'),
        ("1h-2m", 'time: invalid duration "1h-2m"'),
        ("-1h2", 'time: missing unit in duration "-1h2"'),
        ("2562048h", 'time: invalid duration "2562048h"'),
    ],
)
def test_bad_durations_are_worded_as_by_go(text: str, error: str) -> None:
    with pytest.raises(ValueError, match="time: ") as caught:
        parse_duration(text)
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("1G", 1 << 30),
        ("512M", 512 << 20),
        ("1k", 1024),
        ("2T", 2 << 40),
        ("1GB", 1 << 30),
        (77, 77),
        ("77", 77),
        ("-1", -1),
        (-1, -1),
        ("", 0),
    ],
)
def test_storage_sizes(value: object, size: int) -> None:
    assert parse_storage_size("max_file", value) == size


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("10X", "sizes defined as strings must end in K, M, G, T"),
        ("abc", "sizes defined as strings must end in K, M, G, T"),
        ("G", 'strconv.ParseInt: parsing "": invalid syntax'),
        ("1.5G", 'strconv.ParseInt: parsing "1.5": invalid syntax'),
        (1.5, "must be int64 or string"),
        (True, "must be int64 or string"),
    ],
)
def test_bad_storage_sizes(value: object, why: str) -> None:
    with pytest.raises(ValueError, match=f"^max_file {why}$"):
        parse_storage_size("max_file", value)
