"""The table of a connection's states: every pair of a state and an event, and what all of them have in common."""

from __future__ import annotations

import itertools

import pytest

from jetcluster.protocol.connection_states import (
    CLOSED,
    NEW,
    TRANSITIONS,
    ConnectionEvent,
    ConnectionState,
    after,
)

ROWS = """
NEW         GREET>GREETED MAKE>OPEN
GREETED     MAKE>OPEN
OPEN        SECURE>SECURING SERVE>ANONYMOUS CHECK>CHECKING CONNECT>CONNECTED
SECURING    SECURED>OPEN
ANONYMOUS   CHECK>CHECKING CONNECT>CONNECTED
CHECKING    ANSWER>CHECKED
CHECKED     SERVE>ANONYMOUS CONNECT>CONNECTED JOIN>JOINED
CONNECTED   CHECK>CHECKING CONNECT>CONNECTED PING>SETTLED CHOOSE>CHOSEN JOIN>JOINED
CHOSEN      YIELD>CONNECTED JOIN>JOINED
SETTLED     CHECK>RECHECKING CONNECT>SETTLED
RECHECKING  ANSWER>RECHECKED
RECHECKED   CONNECT>SETTLED
JOINED
CLOSED
"""


def allowed() -> dict[tuple[str, str], str]:
    """The same table in other words; that everything may end is said once."""
    found = {}
    for row in ROWS.split("\n"):
        state, *steps = row.split() or [""]
        found |= {(state, event): to for event, to in (step.split(">") for step in steps)}
    return found | {(state.name, "CLOSE"): "CLOSED" for state in ConnectionState if state is not CLOSED}


@pytest.mark.parametrize(
    ("state", "event"),
    list(itertools.product(ConnectionState, ConnectionEvent)),
    ids=lambda one: one.name,
)
def test_every_pair(state: ConnectionState, event: ConnectionEvent) -> None:
    to = allowed().get((state.name, event.name))
    if to is not None:
        assert after(state, event) is ConnectionState[to]
        return
    with pytest.raises(AssertionError, match=f"{event.name} cannot happen to a connection that is {state.name}"):
        after(state, event)


def test_every_state_is_reached_and_can_end() -> None:
    reached, left = {NEW}, [NEW]
    while left:
        state = left.pop()
        to = {after for (before, _), after in TRANSITIONS.items() if before is state}
        left += to - reached
        reached |= to
    assert reached == set(ConnectionState)
    assert {event for _, event in TRANSITIONS} == set(ConnectionEvent)
    assert not any(before is CLOSED for before, _ in TRANSITIONS)
