"""The table of what the simulation of complete nodes checks: promise, workload, judges. docs/testing.md shows it.

`python -m tests.sim.cluster.promises` prints it.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.sim.cluster.workload import found


class Promise(NamedTuple):
    text: str
    workload: str
    """"all" for what holds in every run."""
    judges: tuple[str, ...]
    """Names of classes in `judges`, or of functions in `replicas`."""


ALWAYS = (
    Promise("replicas at equal index are equal: messages, rows, hash", "all", ("replicas.compare",)),
    Promise(
        "90 s after the last fault every server serves, every stream is led by one of exactly its members, all have"
        " applied the same, and for 4 s nothing of that changes",
        "all",
        ("replicas.settle",),
    ),
    Promise("no callback raises, no exception is unseen", "all", ("run_seed",)),
)


def promises() -> list[Promise]:
    return [
        *ALWAYS,
        *(
            Promise(text, name, tuple(judge.__name__ for judge in workload.judges))
            for name, workload in sorted(found().items())
            for text in workload.promises
        ),
    ]


def table() -> list[str]:
    """As lines of Markdown."""
    rows = [f"| {one.text} | {one.workload} | {', '.join(one.judges)} |" for one in promises()]
    return ["| promise | workload | judged by |", "| --- | --- | --- |", *rows]


if __name__ == "__main__":
    print("\n".join(table()))
