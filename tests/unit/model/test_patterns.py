"""`Patterns`, against comparing each with each."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from jetcluster.model.subjects import (
    MAX_SHAPES,
    Patterns,
    first_overlap,
    is_subset,
    one_within_another,
    overlap,
    too_various,
)

PARTS = ["a", "b", "c", "*"]


def some(rng: random.Random, count: int, most: int = 4) -> list[str]:
    made = [".".join(rng.choices(PARTS, k=rng.randint(1, most))) + rng.choice(["", "", ".>"]) for _ in range(count)]
    return [">" if rng.random() < 0.02 else subject for subject in made]


def first_of_all(subjects: list[str]) -> tuple[str, str] | None:
    """The search as it was before: each subject with each earlier one."""
    for i, later in enumerate(subjects):
        for earlier in subjects[:i]:
            if overlap(earlier, later):
                return earlier, later
    return None


def test_an_overlap_with_any_of_many_is_found() -> None:
    rng = random.Random(7)
    for _ in range(500):
        *known, asked = some(rng, 6)
        assert Patterns(known).overlap(asked) == any(overlap(one, asked) for one in known), (known, asked)
        assert Patterns(known).overlaps(asked) == sum(overlap(one, asked) for one in known), (known, asked)
    assert not Patterns().overlap(">")


def test_every_pair_of_short_patterns() -> None:
    patterns = [".".join(p) for n in (1, 2, 3) for p in itertools.product(["a", "b", "*"], repeat=n)]
    patterns += [">"] + [".".join((*p, ">")) for n in (1, 2) for p in itertools.product(["a", "b", "*"], repeat=n)]
    for one, other in itertools.product(patterns, repeat=2):
        assert Patterns([one]).overlap(other) == overlap(one, other), (one, other)


def test_what_was_asked_before_is_kept_up_to_date() -> None:
    rng = random.Random(11)
    for _ in range(100):
        patterns, there = Patterns(), list[str]()
        for subject in some(rng, 30):
            if there and rng.random() < 0.4:
                gone = there.pop(rng.randrange(len(there)))
                patterns.remove(gone)
            else:
                patterns.add(subject)
                there.append(subject)
            asked = some(rng, 1)[0]
            assert patterns.overlaps(asked) == sum(overlap(one, asked) for one in there), (there, asked)
        for subject in there:
            patterns.remove(subject)
        assert patterns.shapes == 0


def test_tables_are_made_anew_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetcluster.model.subjects.MAX_TABLE_ENTRIES", 5)
    monkeypatch.setattr("jetcluster.model.subjects.MAX_PLANS", 2)
    rng = random.Random(13)
    for _ in range(100):
        known = some(rng, 8)
        patterns = Patterns(known)
        for asked in some(rng, 8):
            assert patterns.overlap(asked) == any(overlap(one, asked) for one in known)
            patterns.add(asked)
            known.append(asked)


def test_one_within_another() -> None:
    rng = random.Random(19)
    seen = set()
    for _ in range(2000):
        listed = some(rng, rng.randint(0, 4), most=5)
        within = any(is_subset(a, b) for i, a in enumerate(listed) for j, b in enumerate(listed) if i != j)
        assert one_within_another(listed) == within, listed
        seen.add((within, first_overlap(listed) is not None))
    assert seen == {(False, False), (False, True), (True, True)}
    assert not one_within_another(["*.*.>", "a.>"]) and one_within_another(["*.>", "a.>"])


def test_the_first_pair_is_named() -> None:
    rng = random.Random(17)
    for _ in range(500):
        listed = some(rng, rng.randint(0, 7), most=5)
        assert first_overlap(listed) == first_of_all(listed), listed
    assert first_overlap(["a.1", "b.*", "b.2", "a.*"]) == ("b.*", "b.2")


@pytest.mark.parametrize(
    "subjects",
    [
        [f"t.{i}" for i in range(10_000)],
        [f"*.{i}" for i in range(10_000)],
        [f"a{i}.x.z" for i in range(5000)] + [f"*.y.{i}" for i in range(5000)],
        [f"t.*.{i}.>" for i in range(10_000)],
        [f"{i}.{'*.' * (i % 60)}{i}" for i in range(10_000)],
    ],
)
def test_ten_thousand_are_compared_quickly(subjects: list[str]) -> None:
    begun = time.process_time()
    assert first_overlap(subjects) is None
    assert first_overlap([*subjects, subjects[-1]]) == (subjects[-1], subjects[-1])
    assert time.process_time() - begun < 1.5  # each with each: a minute


def test_wildcards_at_very_many_places_are_recognised() -> None:
    various = [".".join("*" if i >> bit & 1 else "a" for bit in range(10)) for i in range(MAX_SHAPES + 1)]
    assert too_various(various)
    assert not too_various(various[:-1])
    assert not too_various([f"{i}.*.{j}" for i in range(40) for j in range(40)])
