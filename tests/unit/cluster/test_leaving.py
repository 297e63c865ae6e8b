"""Servers that are being removed get no places (cluster/leaving.py)."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.cluster.leaving import Leaving
from jetcluster.errors import ApiError

MOVE: dict[str, Any] = {"kind": "stream_peers", "peers": ["a", "b"], "from": ["a", "c"]}


def test_a_move_that_was_chosen_before_is_refused() -> None:
    leaving = Leaving()
    leaving.check(MOVE)
    with leaving.leaves("b"):
        with pytest.raises(ApiError) as refused:
            leaving.check(MOVE)
        assert refused.value.err_code == 10226
    leaving.check(MOVE)


@pytest.mark.parametrize("peer", ["a", "c"])
def test_what_a_server_has_is_no_new_place(peer: str) -> None:
    leaving = Leaving()
    with leaving.leaves(peer):
        leaving.check(MOVE)
        leaving.check({"kind": "stream_update", "config": {"name": "S"}})


def test_two_who_remove_one_server() -> None:
    leaving = Leaving()
    with leaving.leaves("b"):
        with leaving.leaves("b"):
            assert "b" in leaving
        assert "b" in leaving and "a" not in leaving
    assert "b" not in leaving
