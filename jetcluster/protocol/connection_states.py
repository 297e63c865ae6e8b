"""The states of a connection, as one table for clients, leaf links and routes.

A connection begins as `NEW` and ends as `CLOSED`. What may happen to it in a state is a row of `TRANSITIONS`, and
nothing else may: `after` asserts it. Clients take the path

    NEW [-> GREETED] -> OPEN [-> ANONYMOUS] [-> CHECKING -> CHECKED] -> CONNECTED -> SETTLED

and may say CONNECT as often as they like. Leaf links, which say it once, take the path

    NEW -> OPEN [-> SECURING -> OPEN] -> CONNECTED [-> CHECKING -> CHECKED] -> JOINED

and routes between nodes, which prove to each other that they know the cluster's password instead (`mesh.auth`),

    NEW -> OPEN -> CONNECTED -> CHOSEN -> JOINED

| state | other end | allowed |
|---|---|---|
| NEW | none: there is no socket yet | nothing |
| GREETED | none: INFO went out on a socket that becomes a connection after the TLS handshake | nothing |
| OPEN | unknown | CONNECT (or INFO, at the dialing end) |
| SECURING | unknown | the TLS handshake, amid the connection |
| ANONYMOUS | a client without CONNECT, where none is needed | all that its permissions allow |
| CHECKING | unknown: its CONNECT is being checked, which takes time; input waits | nothing |
| CHECKED | the check is done, and CONNECT is processed again in the same turn | nothing |
| CONNECTED | known: a client is logged in, a link was asked to join | everything for a client, nothing for a link |
| CHOSEN | a node: this one of its connections becomes the route | the rest of INFO |
| SETTLED | a client that is logged in and has had its first PONG | everything; INFO may come unasked |
| RECHECKING, RECHECKED | CHECKING and CHECKED for a SETTLED client | nothing |
| JOINED | a link in service: a leaf link in its account, a route in the mesh | everything |
| CLOSED | none any more | nothing |

Not here: whether the socket is readable or writable, whether input waits for its turn (`server.fairness`), and a client
whose socket is gone while its input still has turns: it goes through the same states. Precedent: h11's table of states.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class ConnectionState(Enum):
    """The states of a connection."""

    NEW = auto()
    GREETED = auto()
    OPEN = auto()
    SECURING = auto()
    ANONYMOUS = auto()
    CHECKING = auto()
    CHECKED = auto()
    CONNECTED = auto()
    CHOSEN = auto()
    SETTLED = auto()
    RECHECKING = auto()
    RECHECKED = auto()
    JOINED = auto()
    CLOSED = auto()


class ConnectionEvent(Enum):
    """The events that change a connection's state."""

    GREET = auto()
    """INFO goes out before the connection is made."""
    MAKE = auto()
    """A socket exists, and INFO goes out."""
    SECURE = auto()
    """The TLS handshake begins."""
    SECURED = auto()
    SERVE = auto()
    """A client is admitted without CONNECT."""
    CHECK = auto()
    """The login needs time: a password (bcrypt), an account that is fetched from a resolver."""
    ANSWER = auto()
    """The outcome of the check is known."""
    CONNECT = auto()
    """A client's CONNECT was accepted; a leaf link's arrived; both ends of a route have proven themselves."""
    PING = auto()
    """The first PING of a client that is logged in and takes INFO unasked."""
    CHOOSE = auto()
    """This one of the connections between two nodes becomes the route."""
    YIELD = auto()
    """Another connection becomes the route instead."""
    JOIN = auto()
    """Both ends know each other."""
    CLOSE = auto()


NEW, GREETED, OPEN, SECURING = (
    ConnectionState.NEW, ConnectionState.GREETED, ConnectionState.OPEN, ConnectionState.SECURING
)  # fmt: skip
ANONYMOUS, CHECKING, CHECKED = ConnectionState.ANONYMOUS, ConnectionState.CHECKING, ConnectionState.CHECKED
CONNECTED, CHOSEN, SETTLED = ConnectionState.CONNECTED, ConnectionState.CHOSEN, ConnectionState.SETTLED
RECHECKING, RECHECKED = ConnectionState.RECHECKING, ConnectionState.RECHECKED
JOINED, CLOSED = ConnectionState.JOINED, ConnectionState.CLOSED
BEING_CHECKED: Final = (CHECKING, RECHECKING)
"""Input waits in these states."""

TRANSITIONS: Final = {
    (NEW, ConnectionEvent.GREET): GREETED,
    (NEW, ConnectionEvent.MAKE): OPEN,
    (NEW, ConnectionEvent.CLOSE): CLOSED,
    (GREETED, ConnectionEvent.MAKE): OPEN,
    (GREETED, ConnectionEvent.CLOSE): CLOSED,
    (OPEN, ConnectionEvent.SECURE): SECURING,
    (OPEN, ConnectionEvent.SERVE): ANONYMOUS,
    (OPEN, ConnectionEvent.CHECK): CHECKING,
    (OPEN, ConnectionEvent.CONNECT): CONNECTED,
    (OPEN, ConnectionEvent.CLOSE): CLOSED,
    (SECURING, ConnectionEvent.SECURED): OPEN,
    (SECURING, ConnectionEvent.CLOSE): CLOSED,
    (ANONYMOUS, ConnectionEvent.CHECK): CHECKING,
    (ANONYMOUS, ConnectionEvent.CONNECT): CONNECTED,
    (ANONYMOUS, ConnectionEvent.CLOSE): CLOSED,
    (CHECKING, ConnectionEvent.ANSWER): CHECKED,
    (CHECKING, ConnectionEvent.CLOSE): CLOSED,
    (CHECKED, ConnectionEvent.SERVE): ANONYMOUS,
    (CHECKED, ConnectionEvent.CONNECT): CONNECTED,
    (CHECKED, ConnectionEvent.JOIN): JOINED,
    (CHECKED, ConnectionEvent.CLOSE): CLOSED,
    (CONNECTED, ConnectionEvent.CHECK): CHECKING,
    (CONNECTED, ConnectionEvent.CONNECT): CONNECTED,
    (CONNECTED, ConnectionEvent.PING): SETTLED,
    (CONNECTED, ConnectionEvent.CHOOSE): CHOSEN,
    (CONNECTED, ConnectionEvent.JOIN): JOINED,
    (CONNECTED, ConnectionEvent.CLOSE): CLOSED,
    (CHOSEN, ConnectionEvent.YIELD): CONNECTED,
    (CHOSEN, ConnectionEvent.JOIN): JOINED,
    (CHOSEN, ConnectionEvent.CLOSE): CLOSED,
    (SETTLED, ConnectionEvent.CHECK): RECHECKING,
    (SETTLED, ConnectionEvent.CONNECT): SETTLED,
    (SETTLED, ConnectionEvent.CLOSE): CLOSED,
    (RECHECKING, ConnectionEvent.ANSWER): RECHECKED,
    (RECHECKING, ConnectionEvent.CLOSE): CLOSED,
    (RECHECKED, ConnectionEvent.CONNECT): SETTLED,
    (RECHECKED, ConnectionEvent.CLOSE): CLOSED,
    (JOINED, ConnectionEvent.CLOSE): CLOSED,
}


def after(state: ConnectionState, event: ConnectionEvent) -> ConnectionState:
    """The state that follows. Raises AssertionError when `event` cannot happen in `state`."""
    found = TRANSITIONS.get((state, event))
    assert found is not None, f"{event.name} cannot happen to a connection that is {state.name}"
    return found
