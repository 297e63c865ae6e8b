"""Public keys and seeds of every kind, as text."""

from __future__ import annotations

import pytest

from jetcluster.config.nkeys import decode_key, decode_seed, encode_key, encode_seed, is_key, kind_of


@pytest.mark.parametrize("kind", "OAUNCX")
def test_nkeys_of_every_kind(kind: str) -> None:
    raw = bytes(range(32))
    text, seed = encode_key(kind, raw), encode_seed(kind, raw)
    assert (text[0], len(text), seed[:2]) == (kind, 56, f"S{kind}")
    assert kind_of(text) == kind
    assert decode_key(kind, text) == decode_seed(kind, seed) == raw
    assert not any(is_key(other, text) for other in "OAUNCX" if other != kind)
    for broken in (
        text[:-1],
        text + "A",
        text[:-1] + ("A" if text[-1] != "A" else "B"),
        text.lower(),
        seed,
        "",
        "é" * 56,
    ):
        assert kind_of(broken) == ""
        with pytest.raises(ValueError, match=r"."):
            decode_key(kind, broken)
