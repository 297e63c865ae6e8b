"""Commits share the thorough tests: each run takes all, or its commit's part, and another commit another part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import rotation
from tests.rotation import SHARE, is_taken, leave_out, shares

KEYS = [f"tests/cluster/test_{at}.py" for at in range(200)]


def test_each_commit_takes_its_share_and_commits_differ() -> None:
    commits = [f"{at:040x}" for at in range(16)]
    taken = [{key for key in KEYS if is_taken(key, commit, 2)} for commit in commits]
    assert all(60 < len(some) < 140 for some in taken)
    assert len({frozenset(some) for some in taken}) == len(commits)
    assert set.union(*taken) == set(KEYS), "sixteen commits leave nothing out"


def test_all_of_one_share() -> None:
    assert all(is_taken(key, "", 1) for key in KEYS)
    assert shares({}) == 1
    assert shares({SHARE: "1/3"}) == 3


@pytest.mark.parametrize("text", ["", "2/3", "1/0", "1/x", "half", "1/21", "1/-2"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="1/N is wanted"):
        shares({SHARE: text})


class Item:
    """A collected test, as far as rotation looks at one."""

    def __init__(self, nodeid: str, marked: bool, whole: bool, shared: bool = True) -> None:
        self.nodeid = nodeid
        self.marked = marked
        self.mark = pytest.mark.thorough.mark if shared else pytest.mark.thorough(shared=False).mark
        self.module = SimpleNamespace(own_markers=[pytest.mark.thorough.mark] if whole else [])
        self.skipped = ""

    def get_closest_marker(self, name: str) -> object:
        return self.mark if self.marked else None

    def getparent(self, kind: object) -> object:
        return self.module

    def add_marker(self, marker: Any) -> None:
        self.skipped = marker.kwargs["reason"]


def test_a_marked_file_stays_whole_and_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "_commit", lambda: "c0ffee")
    files = [f"t/test_{at}.py" for at in range(20)]
    whole = [Item(f"{file}::test_{at}", True, True) for file in files for at in range(3)]
    single = [Item(f"t/test_single.py::test_{at}", True, False) for at in range(20)]
    plain = [Item(f"t/test_plain.py::test_{at}", False, False) for at in range(20)]
    leave_out(cast("list[pytest.Item]", whole + single + plain), {SHARE: "1/2"})
    assert not any(item.skipped for item in plain)
    assert 0 < sum(bool(item.skipped) for item in single) < 20
    of_a_file = [{bool(item.skipped) for item in whole if item.nodeid.startswith(file)} for file in files]
    assert all(len(seen) == 1 for seen in of_a_file)
    assert {True, False} == set.union(*of_a_file)
    assert next(item.skipped for item in single if item.skipped).endswith("`make test` runs it")


def test_no_share_has_what_takes_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "_commit", lambda: "c0ffee")
    long = [Item(f"t/test_long.py::test_{at}", True, False, shared=False) for at in range(20)]
    leave_out(cast("list[pytest.Item]", long), {SHARE: "1/2"})
    assert all("too long" in item.skipped for item in long)
    whole = Item("t/test_long.py::test", True, False, shared=False)
    leave_out(cast("list[pytest.Item]", [whole]), {})
    assert not whole.skipped


def test_without_a_share_nothing_is_left_out() -> None:
    item = Item("t/test_x.py::test", True, False)
    leave_out(cast("list[pytest.Item]", [item]), {})
    assert item.skipped == ""


def test_the_number_of_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one for each commit, and the same at each run."""
    numbers = []
    for commit in ("c0ffee", "c0ffef", "", "c0ffee"):
        monkeypatch.setattr(rotation, "_commit", lambda commit=commit: commit)
        numbers.append(rotation.number_of_commit())
    assert len(set(numbers)) == 3 and numbers[0] == numbers[3]
    assert all(0 <= number < 1 << 64 for number in numbers)
