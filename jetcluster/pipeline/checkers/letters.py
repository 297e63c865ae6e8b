"""Consumers with dead letters (`lettered`): each message is acked, or it has exactly one letter.

- lost: a stored message for which no client ever sent an ack has no letter, although the consumer was empty (`drained`)
  and no letter waited.
- duplicated: a message has two letters.
- wrong value: a letter has another payload than its message.
- phantom: a letter says `terminated` and no client has said so, or `max_deliver` after fewer deliveries.
"""

from __future__ import annotations

from collections.abc import Sequence

from jetcluster.pipeline.checkers.event import Event, Finding


def check(ops: Sequence[Event]) -> list[Finding]:
    """`ops` sorted by t0."""
    found: list[Finding] = []
    for workload in sorted({op.workload for op in ops if op.f == "lettered"}):
        mine = [op for op in ops if op.workload == workload]
        stored = {op.seq: op for op in mine if op.f == "publish" and op.type == "ok"}
        answered = {f: {op.seq for op in mine if op.f == f} for f in ("ack", "term")}
        letters: set[int] = set()
        for op in (op for op in mine if op.f == "letter"):
            found += [Finding(kind, workload, text, op.t0, op.msg_id, op.seq) for kind, text in _letter(
                op, stored.get(op.seq), terminated=op.seq in answered["term"], second=op.seq in letters
            )]  # fmt: skip
            letters.add(op.seq)
        if any(op.f == "drained" for op in mine):
            found += [
                Finding("lost", workload, f"{seq} was neither acked nor has it a letter", op.t1, op.msg_id, seq)
                for seq, op in sorted(stored.items())
                if seq not in answered["ack"] and seq not in letters
            ]
    return found


def _letter(op: Event, stored: Event | None, *, terminated: bool, second: bool) -> list[tuple[str, str]]:
    """(kind, text) of what is wrong with one."""
    found: list[tuple[str, str]] = []
    if second:
        found.append(("duplicated", f"{op.seq} has two letters"))
    if stored is not None and stored.msg_id != op.msg_id:
        found.append(("wrong value", f"the letter of {op.seq} is {op.msg_id!r}, {stored.msg_id!r} was stored"))
    if op.error == "terminated" and not terminated:
        found.append(("phantom", f"the letter of {op.seq} says that it was terminated: nobody did"))
    if op.error == "max_deliver" and op.count < op.expect:
        found.append(("phantom", f"the letter of {op.seq} says max_deliver of {op.expect} after {op.count}"))
    return found
