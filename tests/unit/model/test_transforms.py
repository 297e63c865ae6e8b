from __future__ import annotations

import itertools
import time
import tracemalloc

import pytest

from jetcluster.config.import_rules import strict_transform
from jetcluster.model.transforms import (
    MAX_DESTINATION_BYTES,
    MAX_INT32,
    MAX_MAPPED_BYTES,
    MAX_READ_TOKENS,
    TOO_LONG,
    SubjectTransform,
    TransformError,
    check_mapping,
    results_filter,
)
from jetcluster.store.batch import MAX_SUBJECT


@pytest.mark.parametrize(
    ("source", "destination", "subject", "expected"),
    [
        ("", "prefix.>", "foo", "prefix.foo"),
        ("foo", "", "foo", "foo"),
        ("foo", "bar", "foo", "bar"),
        (">", ">", "a.b", "a.b"),
        ("foo.*.bar.*.baz", "req.$2.$1", "foo.A.bar.B.baz", "req.B.A"),
        ("foo.*.bar.*.baz", "req.{{wildcard(2)}}.{{ Wildcard (1) }}", "foo.A.bar.B.baz", "req.B.A"),
        ("baz.>", "my.pre.>", "baz.1.2.3", "my.pre.1.2.3"),
        ("*.x.>", "t.$1.>", "a.x.1.2", "t.a.1.2"),
        ("$KV.b.>", "$KV.c.>", "$KV.b.k", "$KV.c.k"),
        ("*", "foo.bar.$1", "foo", "foo.bar.foo"),
        ("*", "{{splitfromleft(1,3)}}", "12345", "123.45"),
        ("*", "{{SplitFromRight(1,3)}}", "12345", "12.345"),
        ("*", "{{splitfromleft(1,5)}}", "12345", "12345"),
        ("*", "{{SliceFromLeft(1,3)}}", "1234567890", "123.456.789.0"),
        ("*", "{{SliceFromRight(1,3)}}", "1234567890", "1.234.567.890"),
        ("*", "{{SliceFromRight(1,5)}}", "1234567890", "12345.67890"),
        ("*", "{{split(1,-)}}", "-abc-def--ghi-", "abc.def.ghi"),
        ("*", "{{split(1,-)}}", "abc-def--ghi-", "abc.def.ghi"),
        ("*.*", "{{split(2,-)}}.{{splitfromleft(1,2)}}", "foo.-abc-def--ghij-", "abc.def.ghij.fo.o"),
        ("*", "{{right(1,1)}}", "1234", "4"),
        ("*", "{{right(1,6)}}", "1234", "1234"),
        ("*", "{{left(1,3)}}", "1234", "123"),
        ("*", "{{left(1,6)}}", "1234", "1234"),
        ("*", "bar.{{partition(0)}}", "baz", "bar.0"),
        ("*", "bar.{{partition(10, 0)}}", "foo", "bar.3"),
        ("*.*", "bar.{{partition(10)}}", "foo.bar", "bar.6"),
        ("*", "bar.{{partition(10)}}", "qux", "bar.9"),
        ("*.*", "{{partition(10,1,2)}}", "foo.bar", "0"),
        ("foo.bar", "baz.{{partition(10)}}", "foo.bar", "baz.6"),
        ("foo.baz", "qux.{{partition(10)}}", "foo.baz", "qux.4"),
        ("*", "bar.{{random(0)}}", "qux", "bar.0"),
        ("foo.*", "bar.$1", "fox.1", None),
        ("foo.*", "bar.$1", "foo", None),
        ("foo.*", "bar.$1", "foo.1.2", None),
        ("foo.>", "bar.>", "foo", None),
    ],
)
def test_mapping(source: str, destination: str, subject: str, expected: str | None) -> None:
    check_mapping(source.encode(), destination.encode())
    found = SubjectTransform(source.encode(), destination.encode()).match(subject.encode())
    assert found == (expected.encode() if expected is not None else None)


def test_random_takes_its_chance_from_the_caller() -> None:
    transform = SubjectTransform(b"*", b"bar.{{random(6)}}")
    assert {transform.match(b"q", chance) for chance in range(12)} == {b"bar.%d" % n for n in range(6)}
    assert SubjectTransform(b"a", b"b.{{random(%d)}}" % MAX_INT32).match(b"a", 7) == b"b.7"


@pytest.mark.parametrize(
    ("source", "destination", "text"),
    [
        ("foo..", "bar", "invalid subject"),
        ("foo.*", "bar.*", "invalid subject"),
        ("foo.*", "bar.$1.>", "invalid subject"),
        ("foo.>", "bar.baz", "invalid subject"),
        ("foo.*", "bar.$2", "invalid mapping destination: wildcard index out of range in $2: [2]"),
        ("foo.*", "foo.{{wildcard(2)}}", "wildcard index out of range in {{wildcard(2)}}: [2]"),
        ("foo", "bla.{{wildcard(1)}}", "wildcard index out of range"),
        ("foo.*", "foo.{{unimplemented(1)}}", "unknown function in {{unimplemented(1)}}"),
        ("foo.*", "foo.{{ wildcard5) }}", "invalid mapping destination"),
        ("foo.*", "foo.{{splitLeft(2,2}}", "unknown function"),
        ("foo.*", "foo.{{partition()}}", "function argument is invalid or in the wrong format"),
        ("foo.*", "foo.{{random()}}", "function argument is invalid"),
        ("foo.*", "foo.{{random(1,2)}}", "not enough arguments"),
        ("foo.*", "foo.{{wildcard(foo)}}", "function argument is invalid"),
        ("foo.*", "foo.{{wildcard()}}", "not enough arguments passed to the function in {{wildcard()}}"),
        ("foo.*", "foo.{{wildcard(1,2)}}", "too many arguments passed to the function"),
        ("foo.*", "foo.{{left(1)}}", "not enough arguments"),
        ("foo.*", "foo.{{left(1,2,3)}}", "too many arguments"),
        ("foo.*", "foo.{{split(1,a b)}}", "invalid"),
        ("foo.*", f"foo.{{{{partition({MAX_INT32 + 1})}}}}", "function argument is invalid"),
        ("foo.*", f"foo.{{{{random({MAX_INT32 + 1})}}}}", "function argument is invalid"),
        ("foo.*", "a..b", "invalid mapping destination: invalid transform"),
        ("foo.>", "a.>.b", "invalid mapping destination: invalid transform in b"),
    ],
)
def test_refused(source: str, destination: str, text: str) -> None:
    with pytest.raises(TransformError) as caught:
        check_mapping(source.encode(), destination.encode())
    assert text in str(caught.value)


PIECES = ("$1", "{{wildcard(1)}}", "{{slicefromleft(1,1)}}", "{{split(1,x)}}", "{{partition(7,1)}}", "{{partition(7)}}")


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("tail", [False, True])
def test_no_subject_grows_without_bound_whatever_was_stored(piece: str, tail: bool) -> None:
    """Configurations of before may hold any destination."""
    more = b".>" if tail else b""
    transform = SubjectTransform(b"a.*" + more, b".".join([piece.encode()] * 20_000) + more)
    subject = b"a." + b"x" * 4000 + (b".y.z" if tail else b"")
    tracemalloc.start()
    begun = time.process_time()
    assert transform.match(subject) is TOO_LONG
    spent, (_, peak) = time.process_time() - begun, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert spent < 2 and peak < 2_000_000


def test_one_function_that_names_a_token_often_is_bounded_too() -> None:
    transform = SubjectTransform(b"a.*", b"b.{{partition(7%b)}}" % (b",1" * 30_000))
    assert transform.match(b"a." + b"x" * 4000) is TOO_LONG
    assert transform.match(b"a.x") is not TOO_LONG


@pytest.mark.parametrize(("source", "destination"), [(b"a.*", b"b.$1.$1"), (b"a.*.>", b"b.$1.>"), (b"a.>", b"bb.>")])
def test_the_longest_subject_is_made_and_no_longer_one(source: bytes, destination: bytes) -> None:
    assert MAX_MAPPED_BYTES == MAX_SUBJECT
    transform = SubjectTransform(source, destination)
    for first, rest in itertools.product(
        (1, 2, 32_765, 32_766, 32_767), (None, 32_766, 65_529, 65_530, 65_531, 65_532)
    ):
        subject = b".".join([b"a", b"x" * first, *([b"y" * rest] if rest and source.endswith(b">") else [])])
        _, *tokens = subject.split(b".")
        wanted = {
            b"b.$1.$1": b"b.%b.%b" % (tokens[0], tokens[0]),
            b"b.$1.>": b".".join([b"b", *tokens]),
            b"bb.>": b".".join([b"bb", *tokens]),
        }[destination]
        made = transform.match(subject)
        if source == b"a.*.>" and len(tokens) == 1:
            assert made is None
        elif len(wanted) > MAX_MAPPED_BYTES:
            assert made is TOO_LONG
        else:
            assert made == wanted
    assert SubjectTransform(b"a", b"b" * (MAX_MAPPED_BYTES + 1)).match(b"a") is TOO_LONG


@pytest.mark.parametrize(
    "destination",
    [
        "b." + "x" * (MAX_DESTINATION_BYTES - 1),
        ".".join(["$1"] * (MAX_READ_TOKENS + 1)),
        ".".join(["{{left(1,2)}}"] * (MAX_READ_TOKENS + 1)),
        "b.{{partition(7" + ",1" * (MAX_READ_TOKENS + 1) + ")}}",
        "b." + ".".join([">"] * 30_000),
    ],
)
def test_a_new_destination_has_bounds(destination: str) -> None:
    begun = time.process_time()
    with pytest.raises(TransformError):
        check_mapping(b"a.*", destination.encode())
    assert time.process_time() - begun < 1
    if "{{" not in destination:
        with pytest.raises(TransformError):
            strict_transform(b"a.*", destination.encode())


def test_a_new_destination_may_be_as_long_as_a_subject() -> None:
    check_mapping(b"a", b"b" * MAX_DESTINATION_BYTES)
    check_mapping(b"a.*", b".".join([b"$1"] * MAX_READ_TOKENS))
    check_mapping(b"a.*", b"b.{{partition(7%b)}}" % (b",1" * MAX_READ_TOKENS))
    assert strict_transform(b"a.*", b".".join([b"$1"] * MAX_READ_TOKENS)).reads == MAX_READ_TOKENS


@pytest.mark.parametrize(
    ("destination", "wanted"),
    [
        ("a.b", "a.b"), ("a.>", "a.>"), (">", ">"), ("$KV.{{wildcard(1)}}.k", "$KV.*.k"), ("a.$1.$2", "a.*.*"),
        ("$JS.x.{{ Partition(3, 1) }}", "$JS.x.*"), ("a.{{split(1,-)}}.b", "a.>"), ("a.{{left(1,2)}}", "a.>"),
    ],
)  # fmt: skip
def test_the_filter_of_all_results(destination: str, wanted: str) -> None:
    assert results_filter(destination) == wanted
