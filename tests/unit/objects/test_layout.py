from __future__ import annotations

import pytest

from jetcluster.objects.layout import Layout, layout_of, remainders


@pytest.mark.parametrize(
    ("name", "subjects", "expected"),
    [
        ("OBJ_b", ["$OBJ.b.>"], Layout("b", True, False)),
        ("OBJ_b", ["x", "$OBJ.b.>", "$O.b.C.>", "$O.b.M.>"], Layout("b", True, True)),
        ("OBJ_b", ["$O.b.M.>", "$O.b.C.>"], Layout("b", False, True)),
        ("OBJ_b", ["$O.b.>"], Layout("b", False, True)),
        ("OBJ_b", ["$O.b.C.>"], None),
        ("OBJ_b", ["$OBJ.c.>"], None),
        ("OBJ_b", ["$OBJ.b.info.>"], None),
        ("OBJ_b", [], None),
        ("OBJ_", ["$OBJ..>"], None),
        ("OBJ", ["$OBJ.b.>"], None),
        ("b", ["$OBJ.b.>"], None),
        ("KV_b", ["$OBJ.b.>"], None),
    ],
)
def test_buckets(name: str, subjects: list[str], expected: Layout | None) -> None:
    assert layout_of({"name": name, "subjects": subjects}) == expected


def test_subjects() -> None:
    both = Layout("b", True, True)
    assert both.prefix == b"$OBJ.b."
    assert both.infos == [b"$OBJ.b.info.>", b"$O.b.M.>"]
    assert both.upload("n") == b"$OBJ.b.upload.n"
    assert (both.chunks("n"), both.chunks("n", real=True)) == (b"$OBJ.b.chunks.n", b"$O.b.C.n")
    assert both.infos_of("a b") == [b"$OBJ.b.info.YSBi", b"$O.b.M.YSBi"]
    assert Layout("b", False, True).infos_of("c") == [b"$O.b.M.Yw=="]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cat", [b"cat", b"Y2F0"]),
        ("a.b", [b"a.b", b"YS5i"]),
        ("c", [b"c", b"Yw==", b"Yw"]),
        ("a b", [b"YSBi"]),
        ("*", [b"Kg==", b"Kg"]),
        ("a..b", [b"YS4uYg==", b"YS4uYg"]),
        ("ä", ["ä".encode(), b"w6Q=", b"w6Q"]),
        ("\ud800", [b"?", b"Pw==", b"Pw"]),
    ],
)
def test_what_may_follow_the_info_subject(name: str, expected: list[bytes]) -> None:
    assert remainders(name) == expected
