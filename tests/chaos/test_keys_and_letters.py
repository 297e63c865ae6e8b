"""Order per key and dead letters: a clean history has no findings, each planted fault is found as what it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.checkers import judge
from tests.chaos.test_checkers import Script


def deliver(script: Script, workload: str, subject: str, seq: int, client: str = "x") -> None:
    script.now += 0.01
    script.history.note(workload, "deliver", client, subject=subject, seq=seq, msg_id=f"m{seq}", count=1)


def ordered(*deliveries: int, without: tuple[int, ...] = (), keyed: bool = True) -> list[tuple[str, int]]:
    """Messages 1 to 6 of two subjects in turn, delivered in this order and acked at once but for some; the findings."""
    script = Script()
    if keyed:
        script.history.note("keys", "keyed")
    for n in range(1, 7):
        script.write("keys", f"k{n % 2}", f"m{n}")
    for seq in deliveries:
        deliver(script, "keys", f"k{seq % 2}", seq)
        if seq not in without:
            script.history.end(script.history.invoke("keys", "ack", "x", seq=seq), "info")
    return [(finding.kind, finding.seq) for finding in judge(script.history.events).findings]


def test_keys_in_order_have_no_findings() -> None:
    assert ordered(2, 4, 1, 6, 3, 5) == []
    assert ordered(2, 2, 4, 1, 6, without=(6,)) == []  # out once more, the last one is still out


def test_a_message_before_its_turn_is_found() -> None:
    assert ordered(1, 5, 3, 2) == [("reordered", 5)]
    assert ordered(1, 3, 2, 4, without=(1,)) == [("reordered", 3)]
    assert ordered(1, 5, 3, 2, keyed=False) == []  # nobody has promised it


@pytest.mark.parametrize(
    ("clients", "calm", "found"),
    [
        ("aba", True, []),
        ("abb", True, [("shared key", 3)]),
        ("abb", False, []),  # members came or went
    ],
)
def test_a_key_at_two_members_in_the_calm_is_found(clients: str, calm: bool, found: list[tuple[str, int]]) -> None:
    """Messages 1 and 3 are of one key, 2 of another."""
    script = Script()
    script.history.note("keys", "keyed")
    for n in range(1, 4):
        script.write("keys", f"k{n % 2}", f"m{n}")
    begin = script.now
    for seq, client in enumerate(clients, 1):
        deliver(script, "keys", f"k{seq % 2}", seq, client)
        script.history.end(script.history.invoke("keys", "ack", client, seq=seq), "info")
    script.now += 0.01
    if calm:
        script.history.note("keys", "calm", since=begin, count=2)
    assert [(finding.kind, finding.seq) for finding in judge(script.history.events).findings] == found


def lettered(plant: Callable[[Script], None] = lambda script: None, *, drained: bool = True) -> list[tuple[str, int]]:
    """Four messages: the first is acked, the second terminated, the third given up; the fourth is for `plant`."""
    script = Script()
    script.history.note("letters", "lettered")
    for n in range(1, 5):
        script.write("letters", "l", f"m{n}")
        if n < 4:
            deliver(script, "letters", "l", n)
    script.op("letters", "ack", seq=1)
    script.history.end(script.history.invoke("letters", "term", "x", seq=2), "info")
    letter(script, 2, "terminated", 1)
    letter(script, 3, "max_deliver", 2)
    plant(script)
    if drained:
        script.history.note("letters", "drained")
    return [(finding.kind, finding.seq) for finding in judge(script.history.events).findings]


def letter(script: Script, seq: int, reason: str, deliveries: int, value: str = "") -> None:
    script.history.note(
        "letters", "letter", seq=seq, msg_id=value or f"m{seq}", count=deliveries, expect=2, error=reason
    )


def test_letters_have_no_findings() -> None:
    assert lettered(lambda script: letter(script, 4, "max_deliver", 2)) == []  # that nobody got: connections broke
    assert lettered(drained=False) == []


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lambda script: deliver(script, "letters", "l", 4), [("lost", 4)]),
        (lambda script: (letter(script, 4, "max_deliver", 2), letter(script, 3, "max_deliver", 2)),
         [("duplicated", 3)]),
        (lambda script: letter(script, 4, "max_deliver", 2, "m9"), [("wrong value", 4)]),
        (lambda script: letter(script, 4, "max_deliver", 1), [("phantom", 4)]),
        (lambda script: letter(script, 4, "terminated", 1), [("phantom", 4)]),
    ],
)  # fmt: skip
def test_planted_faults_of_letters_are_found(plant: Callable[[Script], None], found: list[tuple[str, int]]) -> None:
    assert lettered(plant) == found
