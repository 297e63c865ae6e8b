from __future__ import annotations

from jetcluster.arrow.lookup_cache import ENTRY_BYTES, KeyEntry, LookupCache


def test_those_used_last_stay() -> None:
    cache = LookupCache(10.0, 2, 1 << 20, lambda: 0.0)
    for key in ("a", "b"):
        cache.put(key, KeyEntry(b"x"), 0.0)
    assert cache.get("a") == KeyEntry(b"x")
    cache.put("c", KeyEntry(), 0.0)
    assert cache.get("b") is None and cache.get("a") and cache.get("c") == KeyEntry() and len(cache) == 2


def test_age_counts_from_the_question_on() -> None:
    now = [9.9]
    cache = LookupCache(10.0, 5, 1 << 20, lambda: now[0])
    cache.put("a", KeyEntry(b"x"), 0.0)
    assert cache.get("a")
    now[0] = 10.0
    assert cache.get("a") is None and len(cache) == 0 and cache.size == 0


def test_bytes_are_limited_and_counted_once() -> None:
    cache = LookupCache(10.0, 100, 3 * ENTRY_BYTES, lambda: 0.0)
    for _ in range(3):
        cache.put("a", KeyEntry(b"x" * 50), 0.0)
    assert cache.size == ENTRY_BYTES + 51
    cache.put("b", KeyEntry(b"y" * 4 * ENTRY_BYTES), 0.0)
    assert len(cache) == 0 and cache.size == 0, "one that is larger than all room is not kept"
