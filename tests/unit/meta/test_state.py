from __future__ import annotations

import json
import time
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.meta.machine import MetaMachine
from jetcluster.meta.state import Assignment, Scaled, SubjectBook
from jetcluster.model.subjects import overlap
from testkit.twins.memory import held
from tests.unit.meta.test_machine import NO_LIMITS, Driver, config

subjects = st.sampled_from(["a", "b", "a.b", "a.*", "a.>", "*", "*.b", ">", "b.c.d", "b.*.d"])


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from("XYZ"), st.lists(subjects, max_size=3)),
    st.sets(st.sampled_from("XYZ")),
    st.lists(subjects, max_size=2),
)
def test_the_book_agrees_with_comparing_all(streams: dict[str, list[str]], gone: set[str], wanted: list[str]) -> None:
    book = SubjectBook()
    for name, listed in streams.items():
        book.add(name, listed)
        book.overlaps(wanted, but="")  # what was asked before is kept up to date
    for name in gone & streams.keys():
        book.remove(name)
    left = {name: listed for name, listed in streams.items() if name not in gone}
    found = {n for n, listed in left.items() if any(overlap(one, s) for one in wanted for s in listed)}
    assert book.overlaps(wanted, but="") == bool(found)
    for name in streams:
        assert book.overlaps(wanted, but=name) == bool(found - {name})


def test_an_emptied_book_holds_nothing() -> None:
    book = SubjectBook()
    empty = held(book)
    book.add("X", ["a", "a.b", "*"])
    book.overlaps(["a.*"], but="")
    book.remove("X")
    assert not book
    assert held(book) == empty
    assert book.effort(["a"]) == 0


def test_many_streams_with_wildcards_in_front_are_compared_quickly() -> None:
    book = SubjectBook()
    for stream in range(20):
        book.add(f"S{stream}", [f"*.{stream}.{i}" for i in range(500)] + [f"x{stream}-{i}.b.c" for i in range(500)])
    begun = time.process_time()
    assert not book.overlaps([f"*.q.{i}" for i in range(2500)], but="")
    assert book.overlaps([f"*.q.{i}" for i in range(2500)] + ["*.b.c"], but="")
    assert not book.overlaps([f"*.3.{i}" for i in range(500)], but="S3")
    assert book.overlaps([f"*.3.{i}" for i in range(500)], but="S4")
    assert time.process_time() - begun < 1.0


def there(driver: Driver) -> Assignment:
    found = driver.machine.assignment("A", "S")
    assert found is not None
    return found


def scale(driver: Driver, replicas: int, at: Any = 7, **fields: Any) -> dict[str, Any]:
    peers = [f"n{n}" for n in range(1, replicas + 1)]
    changed = config("S", num_replicas=replicas, **fields)
    return driver.apply("stream_update", account="A", config=changed, limits=NO_LIMITS, peers=peers, at=at)


def place(driver: Driver, *peers: str) -> dict[str, Any]:
    return driver.apply("stream_peers", account="A", name="S", gid=there(driver).gid, peers=list(peers))


def numbers(driver: Driver) -> list[int]:
    """The numbers of voters that a cancel may leave, by `may_return_to`."""
    return [number for number in range(1, 6) if there(driver).may_return_to(number)]


def test_a_number_of_replicas_is_taken_back_where_an_update_has_changed_it() -> None:
    driver = Driver()
    driver.create("S", num_replicas=3)
    assert there(driver).scaled is None and numbers(driver) == [3] and b"scaled" not in driver.machine.snapshot()
    scale(driver, 1)
    assert there(driver).scaled == Scaled((3,), 7) and numbers(driver) == [1, 3]
    scale(driver, 4, at=8)
    scale(driver, 2, at=9)
    assert there(driver).scaled == Scaled((1, 3, 4), 9), "the voters may be those of any of them"
    driver.update("S", num_replicas=2, description="kept")
    place(driver, "n1", "n5")
    assert there(driver).scaled == Scaled((1, 3, 4), 9)
    assert Assignment.from_dict(json.loads(json.dumps(there(driver).to_dict()))) == there(driver)
    again = MetaMachine()
    again.restore(driver.machine.snapshot())
    assert again.assignment("A", "S") == there(driver) and again.snapshot() == driver.machine.snapshot()


def test_a_number_of_replicas_that_nobody_asked_for_is_none_to_go_back_to() -> None:
    """A server was removed and there was no other; then there is one. So after a rescue."""
    driver = Driver()
    driver.create("S", num_replicas=3)
    scale(driver, 2)
    scale(driver, 3)
    place(driver, "n1", "n2")
    assert there(driver).scaled is None and numbers(driver) == [2], "the voters are three, and one of them is gone"
    place(driver, "n1", "n4")
    assert numbers(driver) == [2], "another server in place of one: the other may stay"
    place(driver, "n1", "n4", "n5")
    assert numbers(driver) == [3]
    scale(driver, 4)
    assert numbers(driver) == [3, 4], "the voters may still be two"
    scale(driver, 1)
    scale(driver, 4)
    rescue = {"account": "A", "name": "S", "gid": there(driver).gid, "number": 1}
    driver.apply("stream_rescue", **rescue, kept="n1", peers=["n2", "n3", "n4"])
    assert len(there(driver).peers) == 4 and numbers(driver) == [4]


def test_versions_that_do_not_keep_the_numbers_decide_alike() -> None:
    newer, older = Driver(), Driver()
    for step in range(6):
        for driver in (newer, older):
            if not step:
                driver.create("S", num_replicas=3)
            scale(driver, (1, 3, 2)[step % 3], at=(7, "x", None)[step % 3])
            place(driver, "n1", "n6")
        state = json.loads(older.machine.snapshot())
        for stream in state["streams"]:
            stream.pop("scaled", None)
        older.machine.restore(json.dumps(state).encode())
        assert newer.machine.digest == older.machine.digest
    assert there(newer).scaled == Scaled((3,), 0) and there(older).scaled is None
