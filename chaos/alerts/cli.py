"""`python -m chaos.alerts`: each alert of deploy/prometheus/alerts.yaml fires for its fault, and only while it lasts.

    python -m chaos.alerts                                  all alerts, and all queries of the dashboard
    python -m chaos.alerts --alert JetclusterServerGone     only these
    python -m chaos.alerts --out build/alerts.md            also as a Markdown table

Three nodes and an edge under load are scraped each second by a real Prometheus with deploy/prometheus/prometheus.yml;
`for` and windows of the rules are short (rules.py). Exit status 1: an alert was not as it has to be, or a query of the
dashboard gave nothing.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chaos.alerts import prometheus
from chaos.alerts.faults import FAULTS
from chaos.alerts.rules import rules
from chaos.alerts.run import Outcome, Report, perform
from chaos.alerts.stage import Stage

HEADS = ("alert", "fault", "fires after", "quiet after", "beside it", "finding")


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        "chaos.alerts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--alert", nargs="+", choices=[fault.alert for fault in FAULTS], metavar="NAME")
    options.add_argument("--out", type=Path, help="Markdown file to write")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    console = Console()
    console.width = max(console.width, 140)
    stage = Stage()
    if missing := "; ".join(filter(None, [prometheus.why_not(), stage.missing])):
        console.print(f"chaos.alerts: not on this machine: {missing}")
        stage.local.end()
        return 1
    faults = [fault for fault in FAULTS if not args.alert or fault.alert in args.alert]
    without = {rule["alert"] for rule in rules()} - {fault.alert for fault in FAULTS}
    report = asyncio.run(perform(stage, faults, console, dashboard=not args.alert))
    report.findings += [f"{name} has no fault here" for name in sorted(without)]
    _show(report, console)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(markdown(report))
    return int(not report.ok)


def _row(outcome: Outcome) -> list[str]:
    return [
        outcome.fault.alert, outcome.fault.about, _seconds(outcome.fired), _seconds(outcome.quiet),
        ", ".join(sorted(outcome.beside)), outcome.finding,
    ]  # fmt: skip


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"


def _show(report: Report, console: Console) -> None:
    table = Table(*HEADS)
    for outcome in report.outcomes:
        table.add_row(*_row(outcome))
    console.print(table)
    if report.queries:
        given = sum(count > 0 for count in report.queries.values())
        console.print(f"{given} of {len(report.queries)} queries of the dashboard gave data")
    for finding in report.findings:
        console.print(f"finding: {finding}", markup=False)


def markdown(report: Report) -> str:
    """The table of a run, and what its queries gave."""
    lines = ["| alert | fault | fires after | quiet after the end | fire beside it |", "|---|---|---:|---:|---|"]
    lines += ["| " + " | ".join(_row(outcome)[:-1]) + " |" for outcome in report.outcomes]
    given = sum(count > 0 for count in report.queries.values())
    lines += ["", f"{given} of {len(report.queries)} queries of the dashboard gave data."]
    return "\n".join(lines) + "\n"
