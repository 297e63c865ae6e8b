"""Permissions of one connection: cached answers, bounded memory."""

from __future__ import annotations

from typing import Any

from jetcluster.auth.permissions import UserPermissions
from jetcluster.config.account_options import PermissionOptions, SubjectLists
from jetcluster.server import permissions
from jetcluster.server.permissions import ConnectionPermissions, first_foreign
from testkit.twins.memory import held
from testkit.twins.time import ManualTime


class Everything:
    """Allows all, and watches nothing."""

    allow_responses: tuple[int, float] | None = None
    can_deliver: Any = None

    def __init__(self) -> None:
        self.questions = 0

    def can_publish(self, subject: bytes) -> bool:
        self.questions += 1
        return True

    def can_subscribe(self, subject: bytes, queue: bytes | None) -> bool:
        return True


class Responder(Everything):
    """May publish nothing but three answers for each request, within ten seconds."""

    allow_responses = (3, 10.0)

    def can_publish(self, subject: bytes) -> bool:
        return False


def test_without_optional_parts_deliveries_are_not_watched() -> None:
    asked = Everything()
    rules = ConnectionPermissions(asked, ManualTime())
    assert not rules.watches_deliveries
    assert rules.can_subscribe(b"a", None)
    for n in range(3 * permissions.MAX_CACHED + 10):
        assert rules.can_publish(b"%d" % n)
    assert held(rules) < 2 * permissions.MAX_CACHED
    before = asked.questions
    assert rules.can_publish(b"%d" % n)
    assert asked.questions == before


def test_a_reply_is_open_for_so_many_answers_and_so_long() -> None:
    time = ManualTime()
    rules = ConnectionPermissions(Responder(), time)
    assert rules.watches_deliveries
    assert not rules.can_publish(b"r")
    assert rules.admits(b"svc", b"r")
    assert [rules.can_publish(b"r") for _ in range(4)] == [True, True, True, False]
    rules.admits(b"svc", b"late")
    time.advance(10.1)
    assert not rules.can_publish(b"late")


class Patient(Responder):
    allow_responses = (-1, -1.0)


def test_less_than_nothing_is_no_limit() -> None:
    time = ManualTime()
    rules = ConnectionPermissions(Patient(), time)
    rules.admits(b"svc", b"r")
    time.advance(1e6)
    assert all(rules.can_publish(b"r") for _ in range(1000))


class Choosy(Everything):
    """Must not see a.b in the queue group q."""

    def can_deliver(self, subject: bytes, queue: bytes | None) -> bool:
        self.questions += 1
        return (subject, queue) != (b"a.b", b"q")


def test_deliveries_are_decided_by_subject_and_queue_and_remembered() -> None:
    asked = Choosy()
    rules = ConnectionPermissions(asked, ManualTime())
    for _ in range(3):
        assert [rules.admits(b"a.b", b"", queue) for queue in (None, b"q", b"r")] == [True, False, True]
    assert asked.questions == 3


def test_open_replies_are_bounded() -> None:
    rules = ConnectionPermissions(Responder(), ManualTime())
    for n in range(permissions.MAX_REPLIES + 1):
        rules.admits(b"svc", b"%d" % n)
    assert not rules.can_publish(b"0"), "the oldest went"
    assert rules.can_publish(b"1")


def lists(allow: list[str] | None = None, deny: list[str] | None = None) -> UserPermissions:
    return UserPermissions(PermissionOptions(publish=SubjectLists(allow, deny)))


def test_a_domain_is_no_way_around_what_is_denied() -> None:
    rules = ConnectionPermissions(lists(deny=["$JS.API.STREAM.DELETE.>", "$KV.b.>"]), ManualTime(), "hub")
    for subject in (b"STREAM.DELETE.S", b"$KV.b.k"):
        assert not rules.can_publish(b"$JS.hub.API." + subject)
        assert rules.can_publish(b"$JS.other.API." + subject)
    assert rules.can_publish(b"$JS.hub.API.STREAM.INFO.S") and rules.can_publish(b"$JS.hub.API.$KV.c.k")
    assert rules.judged(b"$JS.hub.API.$OBJ.b.M.x") == b"$OBJ.b.M.x"
    # A filter is judged as one under this name, too: it must be covered.
    one = ConnectionPermissions(lists(allow=["$JS.API.DIRECT.GET.S.*"]), ManualTime(), "hub")
    assert one.can_publish(b"$JS.hub.API.DIRECT.GET.S.a") and not one.can_publish(b"$JS.hub.API.DIRECT.GET.S.>")


def test_a_block_that_is_none_hides_no_schedule() -> None:
    may = lists(allow=["a.>"])
    for block in (b"junk\r\nNats-Schedule-Target: %b\r\n\r\n", b"NATS/1.0\r\nA: 1\r\nNats-Schedule-Target:%b"):
        assert first_foreign(may, block % b"b") == ("Publish to", b"b")
        assert first_foreign(may, block % b"a.b") is None


def test_who_ends_a_schedule_must_be_allowed_to_publish_there() -> None:
    """The stream deletes what is stored at the scheduler's subject."""
    may = lists(allow=["a.>"])
    block = b"NATS/1.0\r\nNats-Scheduler: %b\r\nNats-Schedule-Next: %b\r\n\r\n"
    assert first_foreign(may, block % (b"b", b"purge")) == ("Publish to", b"b")
    assert first_foreign(may, block % (b"a.b", b"purge")) is None
    assert first_foreign(may, block % (b"a.b\r\nNats-Scheduler: b", b"purge")) == ("Publish to", b"b")
    assert first_foreign(may, block % (b"b", b"2026-01-01T00:00:00Z\r\nNats-Schedule-Next: purge")) is not None
    # Forwarding what a schedule has made says no more than where it came from.
    assert first_foreign(may, block % (b"b", b"2026-01-01T00:00:00Z")) is None


def test_subjects_of_great_length_are_not_remembered() -> None:
    rights = Everything()
    found = ConnectionPermissions(rights, ManualTime())  # type: ignore[arg-type]
    for subject in (b"a" * 256, b"b" * 257):
        for _ in range(3):
            assert found.can_publish(subject)
    assert rights.questions == 1 + 3


def test_open_replies_are_bounded_by_their_bytes() -> None:
    found = ConnectionPermissions(Responder(), ManualTime())  # type: ignore[arg-type]
    replies = [b"r%d." % number + b"x" * 4000 for number in range(4000)]
    for reply in replies:
        assert found.admits(b"s", reply)
    assert not found.can_publish(replies[0]) and found.can_publish(replies[-1])
    assert sum(found.can_publish(reply) for reply in replies) * 4000 < permissions.MAX_REPLIES_BYTES
