"""The comparison of many random inputs: how it counts, and that it finds what differs."""

from __future__ import annotations

import pytest

from jetcluster import native
from testkit.native import LOOPS, python_alone
from tests.unit.native import fuzz

pytestmark = pytest.mark.skipif(native.publish_lines is None, reason=f"no compiled loops: {native.why_pure}")


def test_every_kind_is_counted_and_none_differs() -> None:
    total = fuzz.compare_block(range(3), cuts=False)
    assert total.difference == "" and total.seeds == 3
    assert set(total.commands) == {"commands of clients", *fuzz.KINDS} and min(total.commands.values()) > 0
    total = fuzz.compare_cuts(1)
    assert total.difference == "" and total.commands.total() > 20


def test_what_differs_ends_it_with_what_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "plain_get", lambda payload: 5)
    total = fuzz.compare_block(range(7, 9), cuts=False)
    assert " is 5\n" in total.difference
    assert total.seeds == 1 and "python -m tests.unit.native.fuzz --seed 7" in total.difference


def test_python_alone_is_without_any_loop() -> None:
    loops = {name for name, value in vars(native).items() if "cython" in type(value).__name__}
    assert loops == set(LOOPS)
    with python_alone():
        assert [getattr(native, name) for name in LOOPS] == [None] * len(LOOPS)
    with python_alone(pure=False):
        assert native.publish_lines is not None
