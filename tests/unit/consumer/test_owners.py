"""The choice of owners: which node owns which consumer."""

from __future__ import annotations

import json

from jetcluster.consumer import owners as consumer_owners
from jetcluster.consumer.owners import ConsumerOwners, encode_moves
from jetcluster.consumer.state.rules import ConsumerRules
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.stream.log.commands import CONSUMER_OWNER, HEAD
from testkit.twins.time import ManualTime

ALL = ("A", "B", "C")


def state(cid: int, owner: str) -> ConsumerState:
    return ConsumerState(cid, ConsumerRules(f"c{cid}", {}), 0, owner, 0)


def owners(*owned: str, time: ManualTime | None = None) -> tuple[ConsumerOwners, list[ConsumerState]]:
    """Owners as the leader A sees them; `owned`: the owner of each consumer."""
    states = [state(number + 1, owner) for number, owner in enumerate(owned)]
    found = ConsumerOwners("A", time or ManualTime())
    found.reloaded(states)
    return found, states


def test_a_new_consumer_goes_to_who_owns_fewest_and_to_the_leader_when_that_is_even() -> None:
    found, _ = owners()
    assert found.choose(ALL) == "A"
    found, _ = owners("A", "B")
    assert found.choose(ALL) == "C"
    assert found.choose(("A", "B")) == "A"
    assert found.choose(()) == "A"


def test_a_push_consumer_goes_where_its_client_is_connected() -> None:
    found, _ = owners("A", "C", "C")
    assert found.choose(ALL, "C", push=True) == "C"
    assert found.choose(ALL, "C") == "B", "others go where fewest are"
    assert found.choose(("A", "C"), "B", push=True) == "A", "no replica there"
    found.leave("C")
    assert found.choose(ALL, "C", push=True) == "B"
    found, _ = owners()
    assert found.choose(ALL, "C") == "C", "when that is even, nearby"


def test_creations_under_way_count() -> None:
    found, _ = owners()
    with found.promise("A"), found.promise("B"):
        assert found.choose(ALL) == "C"
    assert found.choose(ALL) == "A"


def test_consumers_of_an_owner_that_is_gone_are_shared_out_among_the_others() -> None:
    found, states = owners("C", "C", "A", "C", "C", "C")
    assert found.must_move(("A", "B"))
    moves = found.moves(states, ("A", "B"), ("A", "B"))
    assert [(cid, epoch) for cid, epoch, _ in moves] == [(1, 1), (2, 1), (4, 1), (5, 1), (6, 1)]
    assert sorted(heir for _, _, heir in moves) == ["A", "A", "B", "B", "B"]


def test_nothing_moves_while_all_owners_are_there() -> None:
    found, states = owners("A", "B", "C")
    assert not found.must_move(ALL)
    assert found.moves(states, ALL, ("A",)) == [], "an owner that lags a little keeps what it has"


def test_nothing_moves_when_nobody_could_take_it() -> None:
    found, states = owners("C")
    assert found.must_move(("A",))
    assert found.moves(states, ("A",), ()) == []


def test_a_node_that_leaves_gets_nothing_and_gives_everything_away_until_it_stays_or_falls_silent() -> None:
    time = ManualTime()
    found, states = owners("A", "B", time=time)
    found.leave("A")
    assert found.choose(ALL) == "C"
    assert [heir for _, _, heir in found.moves(states, ALL, ALL)] == ["C"]
    found.stay("A")
    assert not found.must_move(ALL)
    found.leave("B")
    time.advance(consumer_owners.LEAVING_SECONDS)
    assert not found.must_move(ALL)


def test_counts_follow_what_is_created_moved_and_deleted() -> None:
    found, _ = owners("A")
    found.came("B")
    found.went("A")
    assert (found.owned("A"), found.owned("B")) == (0, 1)
    assert not found.must_move(("B",))


def test_moves_of_very_many_consumers_come_in_several_commands() -> None:
    found, states = owners(*["C"] * (consumer_owners.MAX_MOVES + 1))
    assert len(found.moves(states, ("A", "B"), ("A", "B"))) == consumer_owners.MAX_MOVES


def test_the_command() -> None:
    command = encode_moves(7, [(1, 2, "B")])
    assert HEAD.unpack_from(command) == (CONSUMER_OWNER, 0, 7)
    assert json.loads(command[HEAD.size :]) == {"moves": [[1, 2, "B"]]}
