"""The pages of symptoms: each section says what, why and what to do, is made by a test, and is found from the index."""

from __future__ import annotations

import re

import pytest
import yaml

from jetcluster.doctor.catalogue import KINDS
from scripts.check_docs import Tree
from tests.symptom_page import INDEX, TOP, Symptom, shown, symptoms

MADE = re.compile(r'\bshown\(\s*"([\w-]+)"')
FEWEST = 25


@pytest.mark.parametrize("one", symptoms().values(), ids=lambda one: one.id)
def test_a_section_says_what_why_and_what_to_do(one: Symptom) -> None:
    assert one.lines, "it shows nothing"
    assert "\n**Why.** " in one.body and "\n**What to do.** " in one.body
    assert one.body.index("```text") < one.body.index("**Why.**") < one.body.index("**What to do.**")
    assert all(line.replace("…", "").strip() for line in one.lines), "a line is only what differs"


def test_each_symptom_is_made_by_a_test() -> None:
    files = [path for path in (TOP / "tests").rglob("test_*.py") if path.name != "test_symptom_pages.py"]
    made = {name for path in files for name in MADE.findall(path.read_text())}
    assert made == set(symptoms())
    assert len(made) >= FEWEST


def test_the_index_leads_to_each_symptom() -> None:
    links = re.findall(r"\]\(symptoms/([\w-]+\.md)#([\w-]+)\)", INDEX.read_text())
    assert sorted(links) == sorted((one.page, one.id) for one in symptoms().values())


def test_the_index_shows_texts_of_the_pages() -> None:
    for name, cells in re.findall(
        r"^\| \[.*\]\(symptoms/[\w.-]+#([\w-]+)\) \| (.*) \|$", INDEX.read_text(), re.MULTILINE
    ):
        one = symptoms()[name]
        for text in re.findall(r"`([^`]+)`", cells):
            assert any(text in line for line in one.lines) or f"`{text}`" in one.body, (name, text)


def test_text_that_was_not_seen_is_found_out() -> None:
    one = next(one for one in symptoms().values() if not any("…" in line for line in one.lines))
    shown(one.id, "before\n" + "\n".join(one.lines))
    with pytest.raises(AssertionError, match="the page shows"):
        shown(one.id, *one.lines[1:], one.lines[0][:-1])


def test_findings_and_alerts_lead_to_headings_that_are_there() -> None:
    tree = Tree()
    alerts = (TOP / "deploy" / "prometheus" / "alerts.yaml").read_text()
    rules = [rule for group in yaml.safe_load(alerts)["groups"] for rule in group["rules"]]
    places = [rule["annotations"]["runbook_url"] for rule in rules] + [f"docs/{kind.more}" for kind in KINDS]
    for place in places:
        page, _, anchor = place.partition("#")
        assert page in tree.files and (not anchor or anchor in tree.anchors(page)), place


def test_a_finding_names_its_symptom_and_else_its_row() -> None:
    pages = {kind.code: kind.page for kind in KINDS}
    assert pages["JC103"] == "symptoms/servers.md#the-disk-is-full"
    assert pages["JC121"] == "findings.md#jc121"
    tree = Tree()
    assert [
        page for page in pages.values() if page.partition("#")[2] not in tree.anchors(f"docs/{page.partition('#')[0]}")
    ] == []


def test_every_bad_finding_and_every_critical_alert_leads_to_a_symptom() -> None:
    alerts = yaml.safe_load((TOP / "deploy" / "prometheus" / "alerts.yaml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"] if rule["labels"]["severity"] == "critical"]
    elsewhere = [rule["alert"] for rule in rules if "docs/symptoms/" not in rule["annotations"]["runbook_url"]]
    elsewhere += [kind.code for kind in KINDS if kind.severity.value == "bad" and "symptoms/" not in kind.more]
    assert elsewhere == []
