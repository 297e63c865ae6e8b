from __future__ import annotations

import pytest

from jetcluster.client.stream_state import StreamError
from jetcluster.spark.bounds import StreamBounds, bounds
from jetcluster.spark.options import OptionError
from tests.unit.arrow.fake_server import T0, StreamPeer, numbered, store_of


def of(peer: StreamPeer, **given: str) -> StreamBounds:
    return bounds({"servers": peer.url, "stream": "S", **given})["S"]


def test_of_a_stream_with_gaps() -> None:
    with StreamPeer(store_of(numbered(30), gaps=[1, 2, 15])) as peer:
        assert of(peer) == StreamBounds(27, 3, 30, T0 + 2000, T0 + 29_000)
        assert of(peer, subjects="a.x") == StreamBounds(9, 4, 28, T0 + 3000, T0 + 27_000)
        assert of(peer, subjects="*.x") == StreamBounds(18, 3, 30, T0 + 2000, T0 + 29_000)
        assert of(peer, subjects="none.>") == StreamBounds(0)


def test_the_count_is_of_all_pages() -> None:
    rows = [(f"k.{n}", b"", b"") for n in range(7)] * 2
    with StreamPeer(store_of(rows)) as peer:
        assert of(peer, subjects="k.*").count == 14, "the server has two subjects per page"


def test_of_nothing() -> None:
    with StreamPeer(store_of([])) as peer:
        assert of(peer) == of(peer, subjects="a.x") == StreamBounds(0)


def test_a_leader_that_was_deposed_does_not_count() -> None:
    with StreamPeer(store_of(numbered(30))) as peer:
        peer.deposed = store_of(numbered(10))
        assert of(peer).count == 30


def test_options_that_would_mean_nothing() -> None:
    with StreamPeer(store_of(numbered(3))) as peer:
        for name, value in (("startingOffsets", "2"), ("asOfSeq", "2"), ("archive", "/a"), ("columns", "seq")):
            with pytest.raises(OptionError, match=name):
                of(peer, **{name: value})
        with pytest.raises(OptionError, match="one filter"):
            of(peer, subjects="a.x,a.y")
        with pytest.raises((OptionError, StreamError), match="stream"):
            bounds({"servers": peer.url})
