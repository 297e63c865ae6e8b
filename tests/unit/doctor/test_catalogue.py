"""Every kind has facts that make it and facts that do not, and a row in docs/findings.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jetcluster.doctor.catalogue import KINDS
from jetcluster.doctor.finding import Finding
from jetcluster.doctor.page import page
from tests.unit.doctor.cases import CASES, Case

DOCS = Path(__file__).resolve().parents[3] / "docs"
BY_CODE = {kind.code: kind for kind in KINDS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_facts_that_make_the_finding_and_facts_that_do_not(case: Case) -> None:
    found = [one for one in case.look(case.fires) if one.code == case.code]
    assert found, f"{case.code} is not found"
    assert case.code not in {one.code for one in case.look(case.not_so)}
    kind = BY_CODE[case.code]
    for one in found:
        assert (one.severity, one.remedy, one.page) == (kind.severity, kind.remedy, kind.page)
        assert one.what and one.why and "None" not in one.what + one.why
        again = Finding.from_dict(json.loads(json.dumps(one.to_dict())))
        assert again == one


def test_every_kind_has_a_case_and_a_code_of_its_own() -> None:
    assert {case.code for case in CASES} == set(BY_CODE)
    assert len(BY_CODE) == len(KINDS)
    assert [kind.code for kind in KINDS] == sorted(BY_CODE)


def test_the_page_is_the_catalogue() -> None:
    written = (DOCS / "findings.md").read_text()
    assert written == page(), "run: python -m jetcluster.doctor.page > docs/findings.md"


def test_what_explains_more_exists() -> None:
    """Anchors: tests/unit/test_symptom_pages.py."""
    assert [kind.code for kind in KINDS if not (DOCS / kind.more.partition("#")[0]).is_file()] == []
