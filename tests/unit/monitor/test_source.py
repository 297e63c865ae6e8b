"""Senseless parameters of monitoring pages, and the texts that refuse them."""

from __future__ import annotations

import pytest

from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.source import QueryError


@pytest.mark.parametrize(
    ("page", "query", "text"),
    [
        ("connz", {"limit": "abc"}, "Error decoding int for 'limit': strconv.Atoi: parsing \"abc\": invalid syntax"),
        ("connz", {"subs": "x"}, "Error decoding boolean for 'subs': strconv.ParseBool: parsing \"x\": invalid syntax"),
        ("connz", {"sort": "foo"}, "invalid sorting option: foo"),
        ("connz", {"state": "foo"}, "Error decoding state for foo"),
        ("connz", {"sort": "stop"}, "sort by stop only valid on closed connections"),
        ("connz", {"cid": "-1"}, "Error decoding uint64 for 'cid': strconv.ParseUint: parsing \"-1\": invalid syntax"),
        ("connz", {"state": "1"}, "Error decoding state for 1"),
        ("connz", {"filter_subject": "a"}, "filter by subject only valid with account filtering"),
        ("subsz", {"test": "a..b"}, "invalid test subject, must be valid publish subject: a..b"),
        ("subsz", {"limit": "x"}, "Error decoding int for 'limit': strconv.Atoi: parsing \"x\": invalid syntax"),
    ],
)  # fmt: skip
async def test_senseless_parameters(source: NodeSource, page: str, query: dict[str, str], text: str) -> None:
    with pytest.raises(QueryError) as caught:
        source.page(page, query)
    assert str(caught.value) == text
