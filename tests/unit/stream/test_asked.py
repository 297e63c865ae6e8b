"""Requests with a number are carried out once, whatever comes between (stream/apply/asked.py)."""

from __future__ import annotations

import pytest

from jetcluster.errors import ApiError
from jetcluster.stream.apply import asked
from jetcluster.stream.apply.asked import Outcome
from jetcluster.stream.apply.machine import StateError
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import NAMED, CommandError, decode, named, nameless, request_of
from jetcluster.stream.ports import SIDE_ASKED, JobStep
from tests.unit.stream.test_jobs import SECOND, SUBJECTS, T0, Replica


def purge(replica: Replica, request: int, subject_filter: bytes = b"a.>", keep: int = 0) -> object:
    return replica.apply(named(commands.encode_purge(replica.now, subject_filter, 0, keep), request))


def rows(replica: Replica) -> list[tuple[bytes, bytes]]:
    return list(replica.store.side_scan(SIDE_ASKED))


def test_a_number_is_before_the_body() -> None:
    plain = commands.encode_purge(9, b"a", 3)
    command = named(plain, 2**64 - 1)
    assert command[1] == NAMED and request_of(command) == 2**64 - 1
    assert decode(command) == decode(plain) and nameless(command) == nameless(plain) == plain
    for broken in (command[:17], named(commands.encode_delete_msg(9, 1), 1), named(commands.encode_expire(9), 1)):
        with pytest.raises(CommandError):
            decode(broken)


def test_the_second_time_gets_the_outcome_of_the_first() -> None:
    replica = Replica({})
    replica.publish(SUBJECTS[:3])
    assert purge(replica, 5) == 3
    replica.publish([b"a.x"])
    assert purge(replica, 5) == 3 and replica.seqs() == [4]
    assert purge(replica, 6) == 1


def test_while_the_job_is_open_it_is_that_job_and_then_its_outcome() -> None:
    replica = Replica({})
    for _ in range(4):
        replica.publish(SUBJECTS)
    first = purge(replica, 5)
    assert isinstance(first, JobStep) and not first.done
    replica.publish([b"a.x"])
    assert purge(replica, 5) == JobStep(first.job, 0, False) and replica.machine.jobs == 1
    replica.reopen()
    assert replica.machine.asked.get(5) == Outcome(first.job, replica.now - 1000, 0, True)
    replica.finish()
    assert purge(replica, 5) == 12
    assert replica.seqs()[-1] == 25 and len(rows(replica)) == 1
    other = Replica({})
    other.install(replica)
    other.index, other.now = replica.index, replica.now
    assert purge(other, 5) == 12 == purge(replica, 5)
    assert other.machine.hash == replica.machine.hash


def test_what_was_refused_is_carried_out_when_it_comes_again() -> None:
    replica = Replica({"deny_purge": True})
    replica.publish(SUBJECTS[:1])
    assert isinstance(purge(replica, 5), ApiError) and not rows(replica)
    replica.update({})
    assert purge(replica, 5) == 1


def test_as_many_are_kept_as_may_be_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "MAX_ENDED", 3)
    replica = Replica({})
    for _ in range(4):
        replica.publish(SUBJECTS)
    purge(replica, 1)
    assert replica.machine.jobs
    for request in range(2, 5):
        replica.now += SECOND
        replica.apply(named(commands.encode_purge(replica.now, b"none"), request))
        replica.apply(named(commands.encode_replace(replica.now, [], [b"none"]), request + 100))
    assert not replica.machine.asked.may_have_forgotten(T0 + 3 * SECOND)
    replica.finish()
    know = replica.machine.asked
    assert know.get(1) is not None, "it was the first to begin, and the last to end"
    assert [request for request in (2, 102, 3, 103, 4, 104) if know.get(request)] == [4, 104]
    assert len(know) == len(rows(replica)) == 3
    assert know.may_have_forgotten(know.get(4).ts) and not know.may_have_forgotten(know.get(4).ts + 1)  # type: ignore[union-attr]
    replica.reopen()
    again = replica.machine.asked
    assert [again.get(request) for request in (1, 4, 104)] == [know.get(request) for request in (1, 4, 104)]
    replica.apply(named(commands.encode_purge(replica.now, b"none"), 9))
    assert again.get(4) is None and again.get(1) is not None


def test_a_row_that_cannot_be_read_is_an_error_of_the_state() -> None:
    replica = Replica({})
    replica.store.side_put(SIDE_ASKED, b"12345678", b"?")
    with pytest.raises(StateError):
        replica.machine.reload()
