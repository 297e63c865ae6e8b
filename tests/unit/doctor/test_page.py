from __future__ import annotations

from jetcluster.doctor.catalogue import KINDS
from jetcluster.doctor.page import GROUPS, page


def test_each_code_has_one_row_with_an_anchor_in_its_group() -> None:
    parts = dict(zip(GROUPS.values(), page().split("\n## ")[1:], strict=True))
    for kind in KINDS:
        title = GROUPS[kind.code[2]]
        assert parts[title].count(f'<a id="{kind.code.lower()}"></a>{kind.code} |') == 1
    assert page().count("<a id=") == len(KINDS)
