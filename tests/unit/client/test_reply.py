"""Answers, and their header blocks."""

from __future__ import annotations

import pytest

from jetcluster.client.connection import block


def test_header_blocks():
    assert block([(b"A", b"1"), (b"A", b"2")]) == b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"
    assert block({}) == b"" and block(b"raw") == b"raw"
    for bad in ({"A": "1\r\nB: 2"}, {"": "x"}, {"A:B": "x"}):
        with pytest.raises(ValueError, match="not a header"):
            block(bad)
