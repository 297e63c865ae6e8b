"""One history as its task judges it: figures first, then findings; a line that is no event ends it."""

from __future__ import annotations

import json

from jetcluster.pipeline.verify import BROKEN, FIGURES, findings
from tests.chaos.test_checkers import clean


def lines() -> list[str]:
    return [event.to_json() for event in clean() if event.workload == "queue"]


def test_a_clean_history_has_figures_and_no_findings() -> None:
    (figures,) = findings(lines(), None)
    told = json.loads(figures.text)
    assert (figures.kind, told["acked"], told["unknown"], told["unread"]) == (FIGURES, 20, 0, [])
    assert told["checked"]["queue"] == 20


def test_the_copy_that_was_read_counts_in_place_of_the_noted_ones() -> None:
    fixed = {"type": "ok", "workload": "queue", "f": "stored", "subject": "q", "replica": "copy", "t0": 0.0, "t1": 0.0}
    read = [fixed | {"op": n, "seq": n, "msg_id": f"m{n - 1}" if n else ""} for n in range(20)]
    _, lost = findings([*lines(), *map(json.dumps, read)], ("queue", "copy"))
    assert (lost.kind, lost.msg_id, lost.seq, lost.replica) == ("lost", "m19", 20, "copy")


def test_lines_may_come_in_any_order() -> None:
    assert findings(lines()[::-1], None) == findings(lines(), None)


def test_a_workload_without_a_copy_is_reported() -> None:
    (figures,) = findings([line for line in lines() if '"stored"' not in line], None)
    assert json.loads(figures.text)["unread"] == ["queue"]


def test_a_line_that_is_no_event() -> None:
    (broken,) = findings([*lines(), '{"op":9}'], None)
    assert (broken.kind, broken.text) == (BROKEN, '{"op":9}')
