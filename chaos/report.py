"""The table on the terminal, and what was found."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from chaos.runner import Result

COLUMNS = ("nemesis", "seed", "faults", "acked", "lost", "duplicated", "unknown", "stale", "other", "unavailable s", "")
SHOWN = 12
"""Findings of one run that are printed; all are in the HTML report."""


def row(result: Result) -> list[str]:
    if result.skipped:
        return [result.scenario, str(result.seed), *[""] * 8, f"not run: {result.skipped}"]
    v = result.verdict
    figures = [v.acked, v.lost, v.duplicated, v.unknown, v.stale, v.other]
    return [
        result.scenario, str(result.seed), str(result.faults.total()), *(f"{n:,}" for n in figures),
        f"{v.unavailable:.1f}", "ok" if result.ok else "VIOLATED",
    ]  # fmt: skip


def table(results: Sequence[Result]) -> Table:
    found = Table(*COLUMNS, title="chaos")
    for column in found.columns[1:-1]:
        column.justify = "right"
    for result in results:
        found.add_row(*row(result), style="yellow" if result.skipped else "" if result.ok else "bold red")
    return found


def show(results: Sequence[Result], console: Console) -> None:
    console.print(table(results))
    for result in results:
        for name, why in result.left_out.items():
            if not result.skipped:
                console.print(f"{result.scenario}: {name} left out: {why}", style="yellow")
        for finding in result.verdict.findings[:SHOWN]:
            console.print(
                f"{result.scenario} seed {result.seed}: {finding.kind} ({finding.workload}, {finding.t:.2f} s): "
                f"{finding.text}", style="red", markup=False, highlight=False,
            )  # fmt: skip
        if len(result.verdict.findings) > SHOWN:
            console.print(f"... and {len(result.verdict.findings) - SHOWN} more", style="red")
