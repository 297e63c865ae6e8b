"""A leader splits publishes and acknowledges them as Python does."""

from __future__ import annotations

import random

import pytest

from jetcluster import native
from jetcluster.stream.lead.answers import PubAcks
from jetcluster.stream.ports import PublishResult
from testkit.native import python_alone
from tests.unit.native.others import KINDS

pytestmark = pytest.mark.skipif(native.split_bare is None, reason=f"no compiled loops: {native.why_pure}")


@pytest.mark.parametrize("kind", ["publishes to a leader", "acks of publishes"])
def test_random_ones_are_equal(kind: str) -> None:
    for seed in range(500):
        assert not KINDS[kind](random.Random(seed))[1], f"seed {seed}"


def test_acks_name_the_stream_and_their_sequence() -> None:
    acks = PubAcks("S%", "D")
    for pure in (False, True):
        with python_alone(pure=pure):
            assert acks.render(PublishResult(9, 3, None), [b"a", b"", b"b"]) == [
                (b"a", b'{"stream":"S%","domain":"D","seq":9}'),
                (b"b", b'{"stream":"S%","domain":"D","seq":11}'),
            ]


@pytest.mark.parametrize("wrong", [(b"a", b"", b""), (b"a", None, b"", b""), ("a", b"", b"", b""), None, [b"a"] * 4])
def test_what_is_no_message_is_an_error_and_no_crash(wrong: object) -> None:
    assert native.split_bare is not None and native.stored_acks is not None and native.bare_length is not None
    assert native.as_messages is not None
    with pytest.raises(TypeError):
        native.split_bare([wrong], 1, 100, b".")
    with pytest.raises(TypeError):
        native.bare_length([wrong], 0, 1)
    with pytest.raises(TypeError):
        native.stored_acks(b"{", 1, [wrong])
    with pytest.raises(TypeError):
        native.as_messages([wrong], 0, 1, 1)


def test_places_outside_of_the_list_are_refused() -> None:
    assert native.bare_length is not None and native.as_messages is not None and native.split_bare is not None
    for first, most in ((-1, 1), (0, -1)):
        with pytest.raises(ValueError):
            native.bare_length([(b"a", b"", b"", b"")], first, most)
        with pytest.raises(ValueError):
            native.as_messages([(b"a.b", b"x")], first, most, 1)
    assert native.bare_length([(b"a", b"", b"", b"")], 5, 9) == 0
    assert native.as_messages([(b"a.b", b"x")] * 3, 1, 1, 1) == ([(b"a.b", b"", b"", b"x")], 4)
    assert native.split_bare([(b"a", b"", b"", b"")], -1, 9, b".") == ([], [], [], 0)
