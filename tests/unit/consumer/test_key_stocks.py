"""Ready messages by member, against a plain list."""

from __future__ import annotations

from random import Random

import pytest

from jetcluster.consumer.owner.key_stocks import NOBODY, KeyStocks


@pytest.mark.parametrize("seed", range(5))
def test_each_member_gets_what_its_slots_have_in_order_also_when_slots_move(seed: int) -> None:
    rng = Random(seed)
    slots = [rng.randrange(1, 4) for _ in range(8)]
    stocks = KeyStocks(slots)
    there: dict[int, int] = {}
    for seq in range(1, 3000):
        match rng.randrange(3):
            case 0:
                slot = there[seq] = rng.randrange(8)
                stocks.push(slot, seq)
            case 1:
                member = rng.randrange(1, 4)
                mine = sorted(one for one, slot in there.items() if slots[slot] == member)
                assert stocks.has(member) == bool(mine)
                assert stocks.pop(member) == (mine[0] if mine else 0)
                if mine:
                    del there[mine[0]]
            case _ if rng.random() < 0.2:
                moved = rng.sample(range(8), 3)
                for slot in moved:
                    slots[slot] = rng.randrange(1, 4)
                stocks.moved(moved)
        assert sorted(stocks.all()) == sorted(there)
    assert {slots[slot] for slot in there.values()} <= set(stocks.members())


def test_a_slot_of_nobody_waits_for_its_member() -> None:
    slots = [NOBODY]
    stocks = KeyStocks(slots)
    stocks.push(0, 7)
    assert stocks.members() == []
    slots[0] = 3
    stocks.moved([0])
    assert stocks.pop(3) == 7 and stocks.pop(3) == 0 and stocks.all() == []
