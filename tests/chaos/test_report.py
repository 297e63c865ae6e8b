"""The table and the page show what was found, and nothing of it as markup."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree

from rich.console import Console

from chaos.checkers import judge
from chaos.history import History
from chaos.html_report import render
from chaos.report import show
from chaos.runner import Result
from jetcluster.pipeline.checkers.event import Finding


def results() -> list[Result]:
    history = History()
    for n in range(20):
        invoked = history.invoke("queue", "publish", "c", msg_id=f"m{n}")
        history.end(invoked, "ok", seq=n + 1)
    history.note("process", "fault", subject="kill-one", error="<b>n1</b>")
    history.note("queue", "leader", replica="n1")
    broken = Result("kill", 3, "local", judge(history.events), history)
    broken.verdict.findings.append(Finding("lost", "queue", "<script>m7</script>", 0.001))
    broken.left_out = {"flaky-links": "no toxiproxy"}
    return [broken, Result("clock", 3, "local", skipped="needs a C compiler")]


def test_the_table_names_findings_and_what_was_not_run() -> None:
    console = Console(file=io.StringIO(), width=160)
    show(results(), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for wanted in ("VIOLATED", "not run: needs a C compiler", "lost (queue", "flaky-links left out: no toxiproxy"):
        assert wanted in text


def test_the_page_is_whole_and_escaped() -> None:
    page = render(results(), "chaos & co")
    assert "<script>" not in page and "&lt;script&gt;m7" in page
    assert "<b>n1" not in page
    for start in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + start.split("</svg>")[0] + "</svg>")
