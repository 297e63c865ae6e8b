"""A flat hash table against a dict."""

from __future__ import annotations

from random import Random

import pytest

from jetcluster.consumer.owner.key_table import MIN_PLACES, KeyTable


def test_a_key_has_what_was_set_until_that_is_zero() -> None:
    table = KeyTable()
    assert table.get(7) == (0, 0)
    table.set(7, 2, 0)
    table.set(7 + MIN_PLACES, 1, 9)
    assert table.get(7) == (2, 0) and table.get(7 + MIN_PLACES) == (1, 9) and len(table) == 2
    assert table.waiting() == [7 + MIN_PLACES]
    table.set(7, 0, 0)
    table.set(7, 0, 0)
    assert table.get(7) == (0, 0) and table.get(7 + MIN_PLACES) == (1, 9) and len(table) == 1


@pytest.mark.parametrize("seed", range(5))
def test_it_is_a_dict_also_where_many_keys_belong_to_one_place(seed: int) -> None:
    rng = Random(seed)
    table = KeyTable()
    plain: dict[int, tuple[int, int]] = {}
    keys = [rng.choice((1, 63, 64, 1 << 63)) + 64 * rng.randrange(40) for _ in range(300)]
    keys += [rng.getrandbits(64) or 1 for _ in range(300)]
    for number in range(3000):
        key = rng.choice(keys)
        grows = number % 1500 < 750
        value = (rng.randrange(1, 5), rng.randrange(3)) if rng.random() < (0.7 if grows else 0.2) else (0, 0)
        table.set(key, *value)
        plain.pop(key, None)
        plain |= {key: value} if value != (0, 0) else {}
        assert len(table) == len(plain)
        if not number % 500:
            assert {key: table.get(key) for key in keys} == {key: plain.get(key, (0, 0)) for key in keys}
            assert sorted(table.waiting()) == sorted(key for key, (_, last) in plain.items() if last)


def test_it_gives_memory_back() -> None:
    rng = Random(1)
    table = KeyTable()
    keys = [rng.getrandbits(64) or 1 for _ in range(10_000)]
    for key in keys:
        table.set(key, 1, 0)
    large = table.places
    for key in keys:
        table.set(key, 0, 0)
    assert large >= 15_000 and table.places == MIN_PLACES


@pytest.mark.parametrize("seed", range(3))
def test_with_holders_it_keeps_who_has_a_key(seed: int) -> None:
    rng = Random(seed)
    table = KeyTable(holders=True)
    plain: dict[int, int] = {}
    keys = [rng.choice((1, 63, 64)) + 64 * rng.randrange(200) for _ in range(500)]
    for number in range(4000):
        key = rng.choice(keys)
        if rng.random() < (0.7 if number % 2000 < 1000 else 0.2):
            table.set(key, 1, 0)
            if rng.random() < 0.7:
                table.hold(key, plain.setdefault(key, rng.randrange(1, 9)))
            plain.setdefault(key, 0)
        else:
            table.set(key, 0, 0)
            plain.pop(key, None)
        if not number % 500:
            assert {key: table.holder(key) for key in keys} == {key: plain.get(key, 0) for key in keys}
    assert KeyTable().holder(7) == 0
