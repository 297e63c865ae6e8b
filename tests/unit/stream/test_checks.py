"""The table of checks: what each order says is what a message meets."""

from __future__ import annotations

from random import Random

import pytest

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.store.batch import MAX_SUBJECT
from jetcluster.stream.apply import checks
from jetcluster.stream.apply.checks import (
    CHECKS,
    MAX_COMBINATIONS,
    ORDER,
    CheckOrder,
    CheckView,
    Publication,
    PublishKind,
    Refusal,
)
from jetcluster.stream.log import commands
from jetcluster.stream.ports import Verdict
from jetcluster.stream.rules import StreamRules
from tests.unit.stream.extremes import Extremes
from tests.unit.stream.test_machine import Stream
from tests.unit.stream.test_no_command_raises import Replica

KINDS = (
    *[commands.PUBLISH] * 5, *[commands.BATCH_COMMIT] * 4,
    *(commands.FAST_PUBLISH, commands.SOURCED, commands.UPDATE_CONFIG),
)  # fmt: skip


def test_each_check_of_an_order_is_in_the_table_once_for_each_configuration() -> None:
    for config in ({}, {"allow_msg_counter": True}, {"sealed": True, "discard": "new", "max_msg_size": 1}):
        rules = StreamRules.from_config({"name": "S", **config})
        for order in ORDER.values():
            for refusal in order:
                assert sum(row.refusal is refusal and bool(row.under(rules)) for row in CHECKS) <= 1, refusal
    listed = {refusal for order in ORDER.values() for refusal in order}
    early = {*checks.EARLY, *checks.EARLY_ATOMIC, *checks.EARLY_FAST}.union(*checks.WHOLE.values())
    assert {row.refusal for row in CHECKS} == listed | early
    assert all(row.codes for row in CHECKS if row.refusal not in (checks.duplicate, checks.as_stored))
    for row in CHECKS:
        assert all(code in errors.TABLE for code in row.codes), row.name


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (("Nats-Expected-Stream: X", "Nats-Msg-Id: known"), 10060),  # before the id is looked for
        (("Nats-Msg-Id: known", "Nats-Expected-Last-Sequence: 9"), 0),  # a retry: its expectation is not looked at
        (("Nats-Expected-Last-Sequence: 9", "Nats-Rollup: x"), 10071),
        (("Nats-Expected-Last-Subject-Sequence-Subject: a", "Nats-Rollup: x"), 10193),
        (("Nats-Rollup: x", "Nats-Expected-Last-Msg-Id: other"), 10111),
        (("Nats-Batch-Id: b", "Nats-Msg-Id: known"), 10174),
    ],
)
def test_the_first_check_of_the_order_decides(lines: tuple[str, ...], code: int) -> None:
    stream = Stream(max_msgs=1, discard="new")
    stream.one("a", "Nats-Msg-Id: known")
    found = stream.one("a", *lines)
    assert (found[0] if isinstance(found, tuple) and code else 0) == code, found


def test_a_message_meets_only_the_checks_that_read_its_fields() -> None:
    selection = CheckOrder(PublishKind.PLAIN, StreamRules.from_config({"name": "S", "duplicate_window": 1}))
    met = selection._reading((b"Nats-Msg-Id",))
    assert met == (checks.header_size, checks.duplicate)
    assert selection._reading((b"Nats-Of-A-Client",)) == (checks.header_size,)
    assert list(selection._by_fields) == [(b"Nats-Msg-Id",)], "names that clients make up are not remembered"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_COMBINATIONS", 2)
    selection = CheckOrder(PublishKind.PLAIN, StreamRules.from_config({"name": "S"}))
    for name in (b"Nats-TTL", b"Nats-Rollup", b"Nats-Incr", b"Nats-Msg-Id"):
        selection._reading((name,))
        assert len(selection._by_fields) <= 2 < MAX_COMBINATIONS


def test_a_leader_refuses_early_what_apply_would() -> None:
    class View:
        rules = StreamRules.from_config({"name": "S", "sealed": True, "max_msg_size": 3})

    view = View()
    assert checks.refused_by(checks.EARLY_FAST, view, b"", b"long") is checks.SEALED
    view.rules = StreamRules.from_config({"name": "S", "max_msg_size": 3})
    refused = checks.refused_by(checks.EARLY_ATOMIC, view, b"", b"long")
    assert refused is checks.size(view, Publication(0, b"", b"", b"long", {})) and refused.err_code == 10054
    assert checks.refused_by(checks.EARLY, view, subject=b"x" * (MAX_SUBJECT + 1)) is checks.SUBJECT_TOO_LONG
    for order, code in ((checks.EARLY_ATOMIC, 10174), (checks.EARLY_FAST, 10205)):
        refused = checks.refused_by(order, view)
        assert refused is not None and refused.err_code == code


@pytest.mark.parametrize(
    ("kind", "config", "code"),
    [
        (PublishKind.ATOMIC, {"sealed": True}, 10109),
        (PublishKind.ATOMIC, {}, 10174),
        (PublishKind.SOURCED, {"sealed": True, "deny_purge": True}, 10109),
        (PublishKind.OWN, {"sealed": True}, 10109),
        (PublishKind.REPLACING, {"sealed": True, "deny_purge": True}, 10109),
        (PublishKind.REPLACING, {"deny_purge": True}, 10110),
        (PublishKind.REPLACING, {}, 0),
    ],
)
def test_what_refuses_a_whole_command(kind: PublishKind, config: dict[str, bool], code: int) -> None:
    class View:
        rules = StreamRules.from_config({"name": "S", **config})

    refused = checks.refused_by(checks.early(checks.WHOLE[kind], View.rules), View())
    assert (0 if refused is None else refused.err_code) == code


def test_what_checks_refuse_with_is_what_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random commands of all kinds: each refusal has a code of its row."""
    codes = {refusal: {c for row in CHECKS if row.refusal is refusal for c in row.codes} for refusal in _refusals()}
    met: set[int] = set()

    def verdict(self: CheckOrder, view: CheckView, message: Publication) -> Verdict | None:
        for check in self._reading(tuple(message.fields)):
            found = check(view, message)
            if isinstance(found, ApiError):
                assert found.err_code in codes[check], (check, found)
                met.add(found.err_code)
            if found is not None:
                return found
        return None

    monkeypatch.setattr(CheckOrder, "verdict", verdict)
    for seed in range(60):
        extremes, replica = Extremes(Random(seed)), Replica([])
        for step in range(40):
            kind = commands.UPDATE_CONFIG if step == 0 else extremes.pick(KINDS)
            for command in extremes.command(kind):
                replica.log.append(command)
                try:
                    replica.applier.apply(len(replica.log), 1, command)
                except commands.UnknownCommandError:
                    replica.log.pop()
            extremes.last = replica.store.last_seq
    assert len(met) > 15, met


def _refusals() -> set[Refusal]:
    return {row.refusal for row in CHECKS}
