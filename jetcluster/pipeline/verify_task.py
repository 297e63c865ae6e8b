"""Judges histories in a task of Spark: their lines come as Arrow batches, each one's findings go out as one.

A history is held in the memory of its task, about 1 KB per event, as the run that wrote it held it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from jetcluster.pipeline import checkers
from jetcluster.pipeline.checkers.event import Event, load, operations
from jetcluster.pipeline.checkers.finding import Finding

if TYPE_CHECKING:
    import pyarrow as pa

FINDING: Final = (
    "history string, workload string, kind string, msg_id string, seq bigint, replica string, t double, text string"
)
FIGURES: Final = "_figures"
"""The kind of the row that has the history's figures as JSON."""
BROKEN: Final = "_broken"
"""The kind of the only row of a history with a line that is no event; the text says which."""


def judge(copy: tuple[str, str] | None) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: (history, value), in any order, with all of a history in one task -> FINDING. `copy`: a
    workload and the replica that counts in place of the others."""

    def judged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        types = {"seq": pyarrow.int64(), "t": pyarrow.float64()}
        names = [field.split()[0] for field in FINDING.split(", ")]
        schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in names])
        lines: dict[str, list[str]] = defaultdict(list)
        for batch in batches:
            for history, line in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                lines[history].append(line)
        for history, of_history in lines.items():
            rows = [asdict(one) | {"history": history} for one in findings(of_history, copy)]
            yield pyarrow.RecordBatch.from_pylist(rows, schema=schema)

    return judged


def findings(lines: Iterable[str], copy: tuple[str, str] | None) -> list[Finding]:
    """The figures first."""
    events = []
    for line in filter(None, lines):
        try:
            events += load([line])
        except ValueError:
            return [Finding(BROKEN, "", line[:200])]
    events.sort(key=lambda event: event.type != "invoke")
    done = sorted(operations(events), key=lambda op: (op.t0, op.op))
    if copy is not None:
        done = [op for op in done if op.f != "stored" or op.workload != copy[0] or op.replica == copy[1]]
    acked, unknown, checked = checkers.figures(done)
    told = {"acked": acked, "unknown": unknown, "checked": checked, "unread": _unread(done)}
    return [Finding(FIGURES, "", json.dumps(told)), *checkers.check(done)]


def _unread(ops: list[Event]) -> list[str]:
    """Workloads of which no copy was read."""
    written = {op.workload for op in ops if op.f in ("publish", "cas", "batch", "mirror")}
    return sorted(written - {op.workload for op in ops if op.f == "stored"})
