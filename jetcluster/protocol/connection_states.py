"""The states of a connection, as one table for clients, leaf links and routes.

A connection begins as `NEW` and ends as `CLOSED`. What may happen to it in a state is a row of `TRANSITIONS`, and
nothing else may: `after` asserts it. Clients take the path

    NEW [-> GREETED] -> OPEN [-> ANONYMOUS] [-> CHECKING -> CHECKED] -> CONNECTED -> SETTLED

and may say CONNECT as often as they like. Leaf links, which say it once, take the path

    NEW -> OPEN [-> SECURING -> OPEN] -> CONNECTED [-> CHECKING -> CHECKED] -> JOINED

and routes between nodes, which prove to each other that they know the cluster's password instead (`mesh.auth`),

    NEW -> OPEN -> CONNECTED -> CHOSEN -> JOINED

| state | who is at the other end | what it may do |
|---|---|---|
| NEW | nobody: there is no socket yet | nothing |
| GREETED | nobody: INFO went out on a socket that is to be a connection once it has TLS | nothing |
| OPEN | not known | say CONNECT (or INFO, at the end that has connected) |
| SECURING | not known | the handshake of TLS, in the middle of the connection |
| ANONYMOUS | a client that has said no CONNECT, where none is needed | all that its rights allow |
| CHECKING | its CONNECT is being looked at, which takes time; input waits | nothing |
| CHECKED | that is known, and its CONNECT is looked at again in the same turn | nothing |
| CONNECTED | known: a client is in, a link has been asked to join | a client all, a link nothing yet |
| CHOSEN | a node: of its connections with this one, this is to be the route | the rest of INFO |
| SETTLED | a client that is in and has had its first PONG | all, and INFO may come unasked |
| RECHECKING, RECHECKED | as CHECKING and CHECKED, of a client that is SETTLED | nothing |
| JOINED | a link that takes part: a leaf link in its account, a route in the mesh | all |
| CLOSED | nobody any more | nothing, for ever |

Not here: whether the socket can be read or written just now, whether input waits for its turn (`server.fairness`), and
a client whose socket is gone while what it had sent still has its turns: that one goes through the same states.
Precedent: h11's table of states.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class ConnectionState(Enum):
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
    GREET = auto()
    """INFO goes out before the connection is made."""
    MAKE = auto()
    """There is a socket, and INFO goes out."""
    SECURE = auto()
    """The handshake of TLS begins."""
    SECURED = auto()
    SERVE = auto()
    """A client is let in without CONNECT."""
    CHECK = auto()
    """It takes time to know who this is: a password (bcrypt), an account that is looked for elsewhere."""
    ANSWER = auto()
    """That is known."""
    CONNECT = auto()
    """A client's CONNECT has let it in; a leaf link's was said; both ends of a route have proven themselves."""
    PING = auto()
    """The first one of a client that is in and takes INFO unasked."""
    CHOOSE = auto()
    """This one of the connections between two nodes is to be the route."""
    YIELD = auto()
    """Another one is, after all."""
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
"""Input waits meanwhile."""

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
