"""`jetcluster decommission NODE`: takes a server out of the cluster permanently, without a moment below a majority.

The cluster carries out the steps, by requests of the system account to any server (docs/membership/servers.md):
SERVER.EVACUATE marks the server in the meta log and moves its replicas, one change at a time per stream; SERVER.REMOVE
takes it out of the meta group; then the tool verifies that it is gone. The tool has no state of its own, so an
interrupted run can be started again. Refusals are the cluster's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jetcluster.cli.common import DONE, NOT_REACHED, REFUSED, TOO_SLOW, ServerRefusedError, fail, shown
from jetcluster.client.reconnect import NotReachedError, Reconnecting
from jetcluster.client.reply import ConnectionLostError, NoRespondersError, RequestTimeoutError
from jetcluster.client.servers import ServerOptions
from jetcluster.errors import SERVER_NOT_MEMBER, ApiError, JetclusterError

EVACUATE = "$JS.API.SERVER.EVACUATE"
REMOVE = "$JS.API.SERVER.REMOVE"
LOOK_SECONDS = 0.5
SYSTEM_USER = "name one with --user and --password, --creds or --context (docs/commands.md)"
ASK_SECONDS = 6.0
"""Timeout of one answer; the cluster itself waits up to 4 s for a leader."""
Say = Callable[[str], None]


@dataclass(slots=True)
class Decommission:
    """One run of the command, over a link with a user of the system account."""

    link: Reconnecting
    node: str
    within: float
    """Seconds until the tool gives up; the cluster continues the step in progress."""
    say: Say
    begun: bool = False
    """The cluster was told to empty the server."""
    _deadline: float = 0.0

    def run(self) -> None:
        """Removes the server. Raises ServerRefusedError, TimeoutError, and the link's errors for a user that is refused
        and for servers that were not reached from the start on."""
        self._deadline = time.monotonic() + self.within
        try:
            self._empty()
            self._remove()
            self._verify()
        finally:
            self.link.close()

    def cancel(self) -> None:
        """Lets the cluster use the server again. Raises what `run` raises."""
        self._deadline = time.monotonic() + self.within
        try:
            self._ask(EVACUATE, cancel=True)
        finally:
            self.link.close()
        self.say(f"{self.node} takes replicas again; what has moved stays where it is")

    def _empty(self) -> None:
        told = ""
        while True:
            try:
                left = self._ask(EVACUATE)
            except ServerRefusedError as error:
                if error.code == SERVER_NOT_MEMBER and told:
                    return  # another run removed it meanwhile
                raise
            text = _progress(left)
            if text != told:
                self.say(text)
                told = text
            held = left["held"]
            gone = not left["online"] or (held is not None and not held["replicas"])
            if not left["assigned"] and gone:
                return
            time.sleep(self._left(LOOK_SECONDS))

    def _remove(self) -> None:
        try:
            self._ask(REMOVE)
        except ServerRefusedError as error:
            if error.code != SERVER_NOT_MEMBER:
                raise
        self.say(f"{self.node}: removed from the meta group")

    def _verify(self) -> None:
        try:
            self._ask(EVACUATE)
        except ServerRefusedError as error:
            if error.code == SERVER_NOT_MEMBER:
                self.say(f"{self.node}: verified, the cluster does without it; its process can be stopped")
                return
            raise
        raise ServerRefusedError(f"{self.node} is a member still, or again: another server of that name has come")

    def _ask(self, subject: str, **more: Any) -> dict[str, Any]:
        """Returns the success reply; repeats the request after a temporary error."""
        body = json.dumps({"peer": self.node, **more}).encode()
        while True:
            try:
                connection = self.link.connection(self._left(ASK_SECONDS))
                answer = connection.request(subject, body, timeout=self._left(ASK_SECONDS)).json()
            except (ConnectionLostError, RequestTimeoutError):
                self._wait()
                continue
            except NoRespondersError:
                text = f"{subject} is answered to users of the system account only: {SYSTEM_USER}"
                raise ServerRefusedError(text, 503) from None
            if "error" not in answer:
                self.begun = True
                return answer
            error = ApiError.from_dict(answer["error"])
            if not error.retriable:
                unknown = f"{self.node}: " if error.err_code == SERVER_NOT_MEMBER else ""
                raise ServerRefusedError(f"{unknown}{error.description}", error.err_code)
            self._wait()

    def _wait(self) -> None:
        """Waits and moves on to the next server, as the removed one may be down or not learn of its removal."""
        self.link.next()
        time.sleep(self._left(LOOK_SECONDS))

    def _left(self, most: float) -> float:
        """Returns the seconds that are left, at most `most`. Raises TimeoutError when the time is over."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return min(left, most)


def _progress(left: dict[str, Any]) -> str:
    held = left["held"]
    text = f"{left['name']} ({left['peer']}): {left['assigned']} streams assigned"
    if held is not None:
        text += f", {held['replicas']} replicas, {held['leaders']} leaders, {held['consumers']} consumers there"
    elif not left["online"]:
        text += ", not connected"
    meta = left["meta"]
    text += f"; meta group without it: {meta['current']} of {meta['voters']} caught up, {meta['needed']} needed"
    return text + (f"; stuck: {'; '.join(left['stuck'])}" if left["stuck"] else "")


def run_decommission(servers: ServerOptions, node: str, within: float, *, cancel: bool) -> int:
    """Runs the command and returns the exit code: 0 done, 1 refused, 2 no server reached or the user refused, 3 not
    done in time."""

    def say(text: str) -> None:
        print(text, flush=True)

    work = Decommission(Reconnecting(servers, say), node, within, say)
    try:
        work.cancel() if cancel else work.run()
    except ServerRefusedError as error:
        return fail("decommission", f"refused: {error}", REFUSED)
    except TimeoutError:
        after = "the cluster goes on with it, run the command again" if work.begun else "no answer came, nothing began"
        return fail("decommission", f"not done after {within:.0f} s; {after}", TOO_SLOW if work.begun else NOT_REACHED)
    except NotReachedError as error:
        return fail("decommission", str(error), NOT_REACHED)
    except (JetclusterError, OSError) as error:
        return fail("decommission", f"{', '.join(shown(servers))}: {error}", NOT_REACHED)
    return DONE
