from __future__ import annotations

import pytest

from jetcluster.model.machines import is_first, machine_of, tags_of


@pytest.mark.parametrize(
    ("tags", "machine", "first"),
    [
        (tags_of("N1", 0), "machine:n1", True),
        (["az:1", *tags_of("n1", 3)], "machine:n1", False),
        (tags_of("n1", 10), "machine:n1", False),
        (["machine:n1"], "alone", True),
        (["worker:1"], "alone", True),
        ([], "alone", True),
    ],
)
def test_a_worker_is_known_by_both_tags(tags: list[str], machine: str, first: bool) -> None:
    assert machine_of(tags, "alone") == machine
    assert is_first(tags) is first
