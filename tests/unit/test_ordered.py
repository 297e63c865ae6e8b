from __future__ import annotations

from jetcluster.ordered import OrderedSet


def test_it_is_gone_through_in_the_order_in_which_it_was_filled() -> None:
    words = [b"w%d" % number for number in range(100)]
    found: OrderedSet[bytes] = OrderedSet(words[:50])
    for word in (*words[50:], words[3]):
        found.add(word)
    assert list(found) == words
    found.discard(words[0])
    found.discard(b"never there")
    assert list(found) == words[1:] and words[0] not in found
