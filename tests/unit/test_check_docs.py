"""`scripts.check_docs` finds each kind of reference that leads nowhere; the tables of docs/reference are complete."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from jetcluster.clock import SystemClock
from jetcluster.errors import TABLE
from jetcluster.health.node_health import Aspect, NodeHealth
from jetcluster.replica.replica_state import Condition, ReplicaState
from jetcluster.stream import ports
from jetcluster.stream.log import commands, levels
from scripts.check_docs import DEVIATIONS, TOP, Tree, anchor_of, code_problems, page_problems


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    for name, text in {
        "Makefile": "lint: install\n",
        "docs/there.md": "# Page\n\n## The time of the `loop`\n",
        DEVIATIONS: "### D1. An ack moves the leader back\n",
        "jetcluster/raft/__init__.py": "",
        "jetcluster/raft/codec.py": "class Append: ...\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Tree(tmp_path)


PAGES = [
    ("[a](gone.md)", "no file gone.md"),
    ("[a](there.md#gone)", "no heading #gone in docs/there.md"),
    ("[a](#gone)", "no heading #gone in docs/page.md"),
    ("`make gone`", "no target make gone"),
    ("`raft/gone.py`", "no file raft/gone.py"),
    ("`test_gone.py`", "no file test_gone.py"),
    ("`raft/codec.py` `Gone`", "no Gone in raft/codec.py"),
    ("`raft/codec.py` `Append.gone`", "no gone in raft/codec.py"),
    ("as in raft-engine" + ".md", "notes that do not ship"),
    ("rule R" + "14", "a number of notes"),
]


@pytest.mark.parametrize(("text", "problem"), PAGES)
def test_a_page_is_reported(tree: Tree, text: str, problem: str) -> None:
    (tree.top / "docs/page.md").write_text(f"# Title\n\n{text}\n")
    (found,) = page_problems("docs/page.md", tree)
    assert problem in found


def test_a_page_whose_references_lead_somewhere_is_not(tree: Tree) -> None:
    good = "[a](there.md) [b](there.md#the-time-of-the-loop) [c](#title) `make lint` `codec.py` `Append` R3"
    (tree.top / "docs/page.md").write_text(f"# Title\n\n{good}\n\n```\n[x](gone.md) `gone/gone.py`\n```\n")
    assert list(page_problems("docs/page.md", tree)) == []


ROW = "D" + str(1)
CODE = [
    ('"""See `raft/gone.py`."""', "no file raft/gone.py"),
    ('"""See `raft.gone`."""', "no module raft.gone"),
    ('"""See `raft.codec.Gone`."""', "no module raft.codec.Gone"),
    ("# see docs/gone.md", "no page docs/gone.md"),
    ('"""See docs/there.md, "Gone"."""', "no section 'Gone' in docs/there.md"),
    ('"""See docs/there.md#gone."""', "no section 'gone' in docs/there.md"),
    (f"x = 1  # fixed as {ROW}", f"{ROW} without"),
    (f'"""As {DEVIATIONS}, D2."""', "D2 is no row"),
    ('"""Served in turn (' + '4.7)."""', "a section of notes"),
    ('"""Order (' + '4.9; eager)."""', "a section of notes"),
    ('"""Priority groups (ADR-42, ' + '4.7)."""', "a section of notes"),
    ('"""The matrix of ' + '1.4. A negative one too."""', "a section of notes"),
    ('"""Dropped where ' + '3.3 says so."""', "a section of notes"),
    ('"""' + '4.6: unused for long."""', "a section of notes"),
    ("x = 1  # one at least (" + "1.9)", "a section of notes"),
    ('x = 1\n"""As Q' + '31 says."""', "a number of notes"),
]


@pytest.mark.parametrize(("source", "problem"), CODE)
def test_a_comment_is_reported(tree: Tree, source: str, problem: str) -> None:
    (tree.top / "jetcluster/raft/some.py").write_text(source + "\n")
    (found,) = code_problems("jetcluster/raft/some.py", tree)
    assert problem in found


def test_comments_whose_references_lead_somewhere_are_not(tree: Tree) -> None:
    told = f'`raft.codec`, `raft.codec.Append`, docs/there.md, "The time of the loop", {DEVIATIONS} {ROW}.'
    source = f'"""{told}"""\nx = "`a/b.py`"\n'
    (tree.top / "jetcluster/raft/some.py").write_text(source)
    assert list(code_problems("jetcluster/raft/some.py", tree)) == []


SECTIONS = [
    "RFC 6125 6.4",
    "the dissertation, section 6.4",
    "(section 6.4)",
    "(TLS 1.2)",
    "(nats-server 2.15)",
    "(version 2.15, ADR-61)",
    "(0.5.1)",
    "a wait of 2.5 s",
    "servers of 2.15.2",
]


@pytest.mark.parametrize("told", SECTIONS)
def test_numbers_that_say_what_they_are_of_are_not(tree: Tree, told: str) -> None:
    (tree.top / "jetcluster/raft/some.py").write_text(f'"""As {told}."""\n')
    assert list(code_problems("jetcluster/raft/some.py", tree)) == []


def test_an_anchor_of_a_row_counts(tree: Tree) -> None:
    (tree.top / "docs/rows.md").write_text('| <a id="jc101"></a>JC101 | a |\n')
    (tree.top / "docs/page.md").write_text("[a](rows.md#jc101) [b](rows.md#jc102)\n")
    tree.files |= {"docs/page.md", "docs/rows.md"}
    assert list(page_problems("docs/page.md", tree)) == ["docs/page.md: no heading #jc102 in docs/rows.md"]


def test_anchors_are_those_that_github_makes() -> None:
    assert anchor_of("The time of the `loop`") == "the-time-of-the-loop"
    assert anchor_of("STREAM.INFO, and [more](x.md)") == "streaminfo-and-more"


def rows_of(section: str) -> dict[str, int]:
    text = (TOP / "docs/reference/log.md").read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    return {name: int(number) for number, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", text, re.MULTILINE)}


def test_the_tables_of_numbers_are_those_of_the_code() -> None:
    flags = rows_of("Flags")
    assert flags == {name: getattr(commands, name) for name in ("NAMED", "GUARDED", "ROLLS_UP", "COUNTED", "NEWEST")}
    others = {*flags, "FIRST_EXTENDED", "LAST_EXTENDED", "PART_BYTES", "LATEST_TIME", "_PLAIN", "_ALLOW_MSG_ID"}
    kinds = {k: v for k, v in vars(commands).items() if k.isupper() and isinstance(v, int) and k not in others}
    assert rows_of("Kinds of commands") == kinds
    assert rows_of("Side tables") == {k: v for k, v in vars(ports).items() if k.startswith("SIDE_")}
    levels_text = (TOP / "docs/reference/log.md").read_text().split("## Levels\n")[1]
    assert [int(n) for n in re.findall(r"^\| (\d) \|", levels_text, re.MULTILINE)] == [*range(1, levels.LEVEL + 1)]


def rows_below(page: str, head: str) -> list[list[str]]:
    text = (TOP / page).read_text().split(head)[1]
    return [line.strip("| ").split(" | ") for line in text.split("\n\n")[0].splitlines()[2:]]


def judged(**known: object) -> ReplicaState:
    """A replica of which nothing is known but this."""
    replica = object.__new__(ReplicaState)
    nothing = {"damaged": "", "rejected": "", "installing": False, "disputed": ""}
    group = {"stopped": "", "contradicted": False, "refused": "", "lacks_state": False}
    vars(replica).update({name: known.get(name, value) for name, value in nothing.items()})
    known = {{"failed": "stopped"}.get(name, name): value for name, value in known.items()}
    vars(replica)["group"] = SimpleNamespace(**{name: known.get(name, value) for name, value in group.items()})
    return replica


def test_the_conditions_of_a_replica_are_those_of_the_code() -> None:
    rows = rows_below("docs/reference/terms.md", "| condition |")
    assert [row[0].upper() for row in rows] == [condition.name for condition in Condition]
    words = [re.findall(r"`(\w+)`: ", row[1]) for row in rows]
    assert [word for known in words for word in known] == [
        "damaged",
        "rejected",
        "failed",
        "installing",
        "disputed",
        "contradicted",
        "refused",
    ]
    for row, known in zip(rows, words, strict=True):
        for word in known or [""]:
            replica = judged(**{word: "for the test"})
            assert replica.condition.name == row[0].upper()
            assert ["no", "yes"][replica.sound] == row[2] and ["no", "yes"][replica.trusted] == row[3], row
            assert replica.keeps_state is row[4].startswith("kept"), row
    for word in (row[0].strip("`") for row in rows_below("docs/reference/terms.md", "| word |")):
        assert isinstance(vars(ReplicaState)[word], property), word


def test_the_aspects_of_health_are_those_of_the_code() -> None:
    rows = rows_below("docs/health.md", "| aspect |")
    assert [row[0] for row in rows] == [aspect.value for aspect in Aspect]
    for aspect, row in zip(Aspect, rows, strict=True):
        health = NodeHealth(SystemClock())
        health.watch(aspect, lambda: "for the test")
        health.look()
        assert row[2:] == [["no", "yes"][may] for may in (health.well, health.may_vote, health.may_answer)], row


def test_each_rule_has_a_place_a_test_and_codes_that_exist() -> None:
    text = (TOP / "docs/reference/rules.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| rule |")]
    assert len(rows) > 40
    for row in rows:
        _, code, place, test = row.strip("| ").split(" | ")
        assert re.search(r"`(?:\w+/)+\w+\.py` `[\w.]+`", place), row
        assert re.fullmatch(r"`(?:unit|cluster)/[\w/]*test_\w+\.py` `test_\w+`", test), row
        assert {int(number) for number in re.findall(r"\b1\d{4}\b", code)} <= set(TABLE), row


def test_the_picture_of_the_rooms_is_that_of_the_layers() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    rooms = [[name.strip().removeprefix("jetcluster.") for name in layer.split("|")] for layer in layers]
    page = (TOP / "docs/architecture.md").read_text().split("## Rooms\n")[1].split("```")[1]
    lines = [set(re.findall(r"(?:^|\s{2,})([a-z]+)\*?(?=\s{2,}|$)", line)) for line in page.strip().splitlines()]
    places = [[next(i for i, line in enumerate(lines) if room in line) for room in layer] for layer in rooms]
    assert all(max(above) <= min(below) for above, below in itertools.pairwise(places)), places
    folders = {path.parent.name for path in (TOP / "jetcluster").glob("*/__init__.py")}
    assert folders <= set().union(*lines)
