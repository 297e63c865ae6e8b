"""The last sequences of wildcards, against a look at every message."""

from __future__ import annotations

import random

import pytest

from jetcluster.store import kept_filters

from .model import matches
from .searches import ASKED, change, filled

pytestmark = pytest.mark.usefixtures("steps")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("most", [3, 8192])
def test_the_last_sequences_of_many_wildcards_are_those_of_one_by_one(
    monkeypatch: pytest.MonkeyPatch, seed: int, most: int
) -> None:
    """Whatever comes and goes after they were looked for."""
    monkeypatch.setattr(kept_filters, "MAX_RECENT", most)
    rng = random.Random(seed)
    store = filled(rng)
    for _ in range(6):
        asked = [one for one in (*ASKED, b"*.*.w", b"s.b.*", b"*.c.*", b"*.*.*") if b"*" in one]
        store.find_lasts(rng.sample(asked, rng.randint(0, len(asked))))
        for _ in range(8):
            for one in rng.sample(asked, 4):
                last = max((m.seq for m in store.scan(b">", 0) if matches(one, m.subject)), default=0)
                assert store.last_seq_matching(one) == last
                found = store.last_by_subject(one)
                assert (found.seq if found else 0) == last
            change(store, rng)
