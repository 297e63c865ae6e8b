"""The tables of what the simulation of complete nodes checks: workload, promises, judges.

docs/testing/promises.md and docs/testing/exams.md show them; `python -m tests.sim.cluster.promises` prints them.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.sim.cluster.workload import found


class Promise(NamedTuple):
    text: str
    workload: str
    """"all" for what holds in every run."""
    judges: tuple[str, ...]
    """Names of classes in `judges`, or what looks at every run."""


ALWAYS = (
    Promise("replicas at equal index are equal: messages, rows, hash", "all", ("replicas.compare",)),
    Promise(
        "60 s after the last fault all is led, current, whole, and where it belongs; then nothing changes any more",
        "all",
        ("liveness.settle", "replicas.settle"),
    ),
    Promise(
        "what a server has acknowledged as on disk, and whom it voted for, it knows whenever it starts again",
        "all",
        ("Vows",),
    ),
    Promise(
        "where a server starts, its journal and its data store meet: neither has what the other one does not continue",
        "all",
        ("starts.watch",),
    ),
    Promise(
        "what a server reads of its journal when it starts is what it had in memory, where no record is lost",
        "all",
        ("Recoveries",),
    ),
    Promise(
        "a leader counts what voters have acknowledged to it, and reads by leases that a majority owes it",
        "all",
        ("Protocol",),
    ),
    Promise(
        "what a journal may forget is on the disk of the data store, and a replica that takes another's state takes it "
        "with the members of its index, and gives up nothing behind it",
        "all",
        ("Flushes", "Installs"),
    ),
    Promise("what a leader reads has all that was committed before the read was asked for", "all", ("Rounds",)),
    Promise("publishers wait at another server's valve as long as it is closed, and no longer", "all", ("Valves",)),
    Promise("of a consumer nobody but its owner changes anything, in the order of its turns", "all", ("OwnerTurns",)),
    Promise("a mirror or source acknowledges to its upstream what it has stored", "all", ("LinkAcks",)),
    Promise("a request whose client has given up is not begun", "all", ("Wanted",)),
    Promise("a request that servers repeat among each other changes nothing the second time", "all", ("Repeats",)),
    Promise("the servers of a stream are changed from those that it has", "all", ("Decisions",)),
    Promise("whoever waits until all servers know whom it sends messages to goes on when they do", "all", ("Spread",)),
    Promise("no answer of the API contradicts itself", "all", ("answers.contradictions",)),
    Promise(
        "while a majority of a group's servers is well and connected, it commits again within 10 s, or 15 s on disks "
        "whose writes take seconds",
        "all",
        ("Availability",),
    ),
    Promise(
        "while a majority of a stream's servers is well and connected, a publish is acknowledged within 3 s, or 10 s "
        "on slowed disks and processors, 15 s on disks whose writes take seconds",
        "all",
        ("Pulse",),
    ),
    Promise(
        "no replica answers Direct Gets that has not what its stream had, or has heard of no commit for 20 s while "
        "another one leads and its machine reaches a majority",
        "all",
        ("Readers",),
    ),
    Promise(
        "no server ends by itself, and none meets an error that it did not expect, but for those of its disk",
        "all",
        ("Machine",),
    ),
    Promise(
        "what moves for balance rests before it moves again, and does not go back and forth "
        "([balance](../membership/balance.md))",
        "all",
        ("Moves",),
    ),
    Promise(
        "what streams and consumers tell of themselves is the same after all servers have started again",
        "all",
        ("second_look.compare",),
    ),
    Promise(
        "what a server has in memory, of streams, consumers, the meta group and what it has removed, is what a start "
        "makes of its stores",
        "all",
        ("reread.server",),
    ),
    Promise(
        "what servers count, know of each other, and tell of others in INFO is so once all is calm",
        "all",
        ("reckoning.wrong",),
    ),
    Promise(
        "what a server tells an operator of its health, connections, accounts, links, streams and traffic is so, at "
        "every moment, on each page",
        "all",
        ("Pages",),
    ),
    Promise(
        "timers, holds, queues and caches of connections, links and subscriptions fit what there is, at every moment",
        "all",
        ("upkeep",),
    ),
    Promise(
        "one leader per term, no commit goes back, hashes agree at each index, and every queue stays within its bound",
        "all",
        ("Invariants",),
    ),
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


def table(*, exams: bool) -> list[str]:
    """The promises of the exams, or all others, as lines of Markdown; those of the same judges share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for one in promises():
        if one.workload.startswith("exam-") is exams:
            rows.setdefault((one.workload, ", ".join(one.judges)), []).append(one.text)
    return [
        "| workload | promises | judged by |",
        "| --- | --- | --- |",
        *(f"| {workload} | {'; <br>'.join(texts)} | {judges} |" for (workload, judges), texts in rows.items()),
    ]


if __name__ == "__main__":
    print("\n".join([*table(exams=False), "", *table(exams=True)]))
