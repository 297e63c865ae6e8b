"""The model of transforms makes the subjects of ADR-30's examples, and draws what a server takes."""

from __future__ import annotations

from random import Random

import pytest

from jetcluster.model.transforms import SubjectTransform, check_mapping
from tests.sim.cluster.mapping import drawn, mapped, subjects

DRAWN = 400


@pytest.mark.parametrize(
    ("source", "target", "subject", "wanted"),
    [
        ("*", "{{splitfromleft(1,3)}}", "12345", "123.45"),
        ("*", "{{splitfromright(1,3)}}", "12345", "12.345"),
        ("*", "{{slicefromleft(1,3)}}", "1234567890", "123.456.789.0"),
        ("*", "{{slicefromright(1,3)}}", "1234567890", "1.234.567.890"),
        ("*", "{{split(1,-)}}", "-abc-def--ghi-", "abc.def.ghi"),
        ("foo.*.*", "bar.{{wildcard(2)}}.$1", "foo.a.b", "bar.b.a"),
        ("foo.*", "bar.{{left(1,2)}}.{{right(1,2)}}", "foo.abcd", "bar.ab.cd"),
        ("foo.>", "bar.>", "foo.a.b", "bar.a.b"),
        ("foo.>", "bar.>", "foo", None),
        ("foo.*", "bar.$1", "foo.a.b", None),
        ("*", "{{partition(10,1)}}", "foo", "3"),
        ("*", "{{left(1,9)}}", "short", "short"),
    ],
)
def test_examples(source: str, target: str, subject: str, wanted: str | None) -> None:
    assert mapped(source, target, subject) == wanted


def test_what_is_drawn_is_valid_and_mapped_alike() -> None:
    rng = Random(1)
    changed = 0
    for _ in range(DRAWN):
        source, target = drawn(rng, "root")
        check_mapping(source.encode(), target.encode())
        transform = SubjectTransform(source.encode(), target.encode())
        for subject in subjects(rng, "root", 8):
            made, wanted = transform.match(subject.encode()), mapped(source, target, subject)
            assert made == (None if wanted is None else wanted.encode()), (source, target, subject)
            changed += wanted is not None
    assert changed > DRAWN
