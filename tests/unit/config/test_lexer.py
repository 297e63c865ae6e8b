"""Positions in a configuration file, for errors."""

from __future__ import annotations

from jetcluster.config.parser import parse_text


def test_positions_count_from_zero_on_line_one_and_from_one_later() -> None:
    pairs = parse_text("a: 1, b: 2\nc: 3\n  d: 4\n", "c.conf", {})
    assert [pairs[key].where for key in "abcd"] == ["c.conf:1:0", "c.conf:1:6", "c.conf:2:1", "c.conf:3:3"]
