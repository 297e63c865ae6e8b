"""Questions to all servers at once, through the system account: `$SYS.REQ.SERVER.PING.*` and the like.

Nobody knows how many servers there are, so an answer is complete when as many have come as are expected, and otherwise
when nothing has come for a while.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jetcluster.client.connection import Connection, Gather
from jetcluster.client.reply import NoRespondersError, RequestTimeoutError, ServerError
from jetcluster.errors import CallerError, JetclusterError

Answers = list[dict[str, Any]]
"""One object per server: `server` says which one, `data` (or `statsz`) is the page."""

QUIET_SECONDS: Final = 1.0
"""A server that has not answered this long after the last one did is taken for dead."""


class NoSystemUserError(CallerError):
    """The user is not of the system account, which alone may ask the servers."""


def servers_told(answers: Answers) -> int:
    """Returns the number of servers in the cluster, as those that answered a PING know it; 0 before the first."""
    return max((int(answer.get("statsz", {}).get("active_servers", 0)) for answer in answers), default=0)


def survey(
    connection: Connection,
    questions: Sequence[tuple[str, Mapping[str, Any]]],
    within: float,
    expected: Callable[[Answers], int] = servers_told,
) -> list[Answers]:
    """Asks all questions (subject, body) at once, and returns the answers to each. `expected` is the number of answers
    that are to come, given those that have (0: not known); `within` is the most seconds to wait for the first one.
    Raises NoSystemUserError, RequestTimeoutError without any answer to a question, and what `Connection.request`
    raises."""
    begun = [connection.gather(subject, json.dumps(body).encode()) for subject, body in questions]
    try:
        return _wait(connection, begun, within, expected)
    except ServerError as error:
        if "permission" in str(error).lower():
            raise NoSystemUserError(no_system_user(None, str(error))) from error
        raise
    except NoRespondersError:
        raise NoSystemUserError(no_system_user(whoami(connection))) from None
    finally:
        for gather in begun:
            gather.forget()


def _wait(
    connection: Connection, gathers: list[Gather], within: float, expected: Callable[[Answers], int]
) -> list[Answers]:
    answers: list[Answers] = [[] for _ in gathers]
    deadline = time.monotonic() + within
    while True:
        came = False
        for gather, found in zip(gathers, answers, strict=True):
            if gather.end is not None:
                raise NoRespondersError("no server answers")
            for _, payload in gather.frames():
                found.append(json.loads(payload))
                came = True
        if all(found and len(found) >= (expected(found) or len(found) + 1) for found in answers):
            return answers
        if came and all(answers):
            deadline = time.monotonic() + min(QUIET_SECONDS, within)
        try:
            connection.read_more(deadline)
        except RequestTimeoutError:
            if all(answers):
                return answers
            raise


def whoami(connection: Connection) -> dict[str, Any] | None:
    """Returns user and account of the connection as the server knows them; None where it does not say."""
    try:
        found = connection.request("$SYS.REQ.USER.INFO", timeout=2.0).json().get("data")
    except JetclusterError:
        return None
    return found if isinstance(found, dict) else None


def no_system_user(user: Mapping[str, Any] | None, refusal: str = "") -> str:
    """Returns the text that says what is missing, and how to get it."""
    if refusal:
        begin = f"the user may not ask the servers ({refusal})"
    elif user:
        who = f"user {user['user']!r} is" if user.get("user") else "without a user the connection is"
        begin = f"{who} of account {user.get('account')!r}"
    else:
        begin = "the user is not of the system account"
    return (
        f"{begin}, and servers answer this to a user of the system account. It is one of the account that "
        "`system_account` names in the servers' configuration; give it by --user and --password, --creds, or a context "
        "of the nats tool (docs/commands.md, The system account)"
    )
