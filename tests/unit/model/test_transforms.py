from __future__ import annotations

import pytest

from jetcluster.model.transforms import MAX_INT32, SubjectTransform, TransformError, check_mapping


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
