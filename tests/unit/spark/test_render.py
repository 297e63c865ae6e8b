"""Columns of messages as the protocol's lines, and cut into parts."""

from __future__ import annotations

import itertools
import random

import pyarrow as pa
import pytest

from jetcluster.protocol.parser import Parser
from jetcluster.spark.message import PublishError
from jetcluster.spark.render import OVERHEAD_BYTES, Cutter, Rows, render, together

BLOCK = b"NATS/1.0\r\nA: \xff\r\n\r\n"


def binary(values: list[bytes]) -> pa.Array:
    return pa.array(values, pa.binary())


def rows(payloads: list[bytes], blocks: list[bytes] | None = None) -> Rows:
    subjects = binary([b"s.%d" % n for n in range(len(payloads))])
    return Rows(subjects, None if blocks is None else binary(blocks), binary(payloads))


def sent(found: memoryview) -> list[tuple[bytes, bytes, bytes, bytes]]:
    return [(a, b, c, d) for _, a, b, c, d in Parser().feed(bytes(found))]


@pytest.mark.parametrize("reply", [b"", b"_INBOX.a.1"])
@pytest.mark.parametrize("added", [None, [b"I: 0\r\n", b"I: 1\r\nJ: 2\r\n", b""]])
@pytest.mark.parametrize("blocks", [None, [b"", BLOCK, b""], [BLOCK] * 3])
def test_lines(reply: bytes, added: list[bytes] | None, blocks: list[bytes] | None) -> None:
    payloads = [b"one", b"", b"\r\n\x00\xff"]
    found = sent(render(rows(payloads, blocks), reply, 100, None if added is None else binary(added)))
    heads = [b""] * 3 if blocks is None else blocks
    if added is not None:
        heads = [(head or b"NATS/1.0\r\n\r\n")[:-2] + line + b"\r\n" for head, line in zip(heads, added, strict=True)]
    assert found == [(b"s.%d" % n, reply, heads[n], payloads[n]) for n in range(3)]


def test_parts_of_columns_are_rendered_alone() -> None:
    part = rows([b"a", b"b", b"c", b"d"], [b"", BLOCK, b"", BLOCK]).part(1, 3)
    assert sent(render(part, b"", 100)) == [(b"s.1", b"", BLOCK, b"b"), (b"s.2", b"", b"", b"c")]


def test_what_the_server_does_not_take_is_named() -> None:
    with pytest.raises(
        PublishError, match=r"s.1: a payload of 90 bytes with 27 of headers \(9 of them the sink's own\)"
    ):
        render(rows([b"", bytes(90)], [b"", BLOCK]), b"", 100, binary([b"I: 1234\r\n"] * 2))


def test_columns_that_some_lack() -> None:
    found = together([rows([b"a"]), rows([b"b"], [BLOCK]), rows([])])
    assert [tuple(message) for message in found.messages()] == [(b"s.0", b"", b"a"), (b"s.0", BLOCK, b"b")]
    assert together([rows([b"a"]), rows([b"b"])]).blocks is None


@pytest.mark.parametrize("seed", range(20))
def test_parts_depend_on_the_rows_alone(seed: int) -> None:
    fate = random.Random(seed)
    payloads = [bytes([n]) * fate.choice([0, 5, 50, 700]) for n in range(60)]
    limit, most = 1000, fate.randrange(1, 12)

    def parts(portions: list[int]) -> list[list[bytes]]:
        cutter, found = Cutter(most, limit), []
        for start, stop in itertools.pairwise(portions):
            found += [part.payloads.to_pylist() for part in cutter.add(rows(payloads[start:stop]))]
        return found + [part.payloads.to_pylist() for part in cutter.rest()]

    whole = parts([0, 60])
    assert list(itertools.chain.from_iterable(whole)) == payloads
    assert parts([0, *sorted(fate.sample(range(60), 7)), 60]) == whole
    sizes = [sum(len(one) + 3 + OVERHEAD_BYTES for one in part) for part in whole]
    assert all(len(part) <= most and (size <= limit + 1 * len(part) or len(part) == 1)
               for part, size in zip(whole, sizes, strict=True))  # fmt: skip
