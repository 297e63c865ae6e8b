from __future__ import annotations

from jetcluster.consumer.sessions import MOST, Sessions
from jetcluster.consumer.turn import Turn

ONE, TWO = b"ownerONE", b"ownerTWO"


def accept(sessions: Sessions, session: int, serial: int, *, first: bool = False, owner: bytes = ONE) -> bool:
    return sessions.accept(Turn(owner, session, serial, first, []))


def test_turns_count_in_order_and_without_a_gap() -> None:
    sessions = Sessions()
    assert not accept(sessions, 5, 1)  # nothing began
    assert accept(sessions, 5, 10, first=True)
    assert accept(sessions, 5, 11)
    assert not accept(sessions, 5, 11)  # again
    assert not accept(sessions, 5, 13)  # 12 is missing
    assert accept(sessions, 5, 12)
    assert not accept(sessions, 4, 13)  # another session
    assert sessions.of(ONE) == (5, 12)
    assert sessions.of(TWO) is None


def test_sessions_count_up_and_what_is_late_is_void() -> None:
    sessions = Sessions()
    assert accept(sessions, 5, 0, first=True)
    assert accept(sessions, 6, 0, first=True)
    assert not accept(sessions, 5, 1)
    assert not accept(sessions, 5, 0, first=True)
    assert not accept(sessions, 6, 0, first=True)
    assert accept(sessions, 6, 1)


def test_owners_do_not_disturb_each_other() -> None:
    sessions = Sessions()
    accept(sessions, 5, 0, first=True)
    assert accept(sessions, 1, 0, first=True, owner=TWO)
    assert accept(sessions, 5, 1) and accept(sessions, 1, 1, owner=TWO)


def test_rows_bring_it_back() -> None:
    rows: dict[bytes, bytes] = {}
    sessions = Sessions()
    accept(sessions, 5, 0, first=True)
    accept(sessions, 9, 3, first=True, owner=TWO)
    sessions.write(rows.__setitem__, rows.__delitem__)
    accept(sessions, 5, 1)
    written: list[bytes] = []
    sessions.write(lambda key, value: (written.append(key), rows.update({key: value}))[0], rows.__delitem__)
    assert written == [ONE]
    again = Sessions(rows.items())
    assert again.of(ONE) == (5, 1) and again.of(TWO) == (9, 3)
    assert accept(again, 5, 2)


def test_the_oldest_session_is_forgotten_when_there_are_too_many() -> None:
    rows: dict[bytes, bytes] = {}
    sessions = Sessions()
    owners = [b"owner%03d" % number for number in range(MOST + 1)]
    for owner in owners[:-1]:
        accept(sessions, 1, 0, first=True, owner=owner)
    accept(sessions, 2, 0, first=True, owner=owners[0])  # a new start makes it young
    sessions.write(rows.__setitem__, rows.__delitem__)
    accept(sessions, 1, 0, first=True, owner=owners[-1])
    sessions.write(rows.__setitem__, rows.__delitem__)
    assert sessions.of(owners[1]) is None and sessions.of(owners[0]) == (2, 0)
    assert len(rows) == MOST and owners[1] not in rows
    assert not accept(sessions, 1, 1, owner=owners[1])
    # After a restart the same one would go next.
    again = Sessions(rows.items())
    for either in (sessions, again):
        accept(either, 1, 0, first=True, owner=owners[1])
        assert either.of(owners[2]) is None and either.of(owners[3]) is not None
