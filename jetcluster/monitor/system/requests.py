"""`$SYS.REQ.>`: requests of the system account, and the few that every account may make.

Every server receives requests to all servers through ordinary interest, and answers for itself. Requests are control
plane: bounded queues, answered one after the other, with a turn of the event loop between two. Answers that grow with
streams, consumers or connections have a queue of their own, of which a few are made side by side: a list of very many
consumers takes seconds, and whether the server is well and what it leads are answered meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from jetcluster.cancelling import cancelled
from jetcluster.logs import get_logger
from jetcluster.node.node import Node
from jetcluster.ordered import OrderedSet
from jetcluster.protocol.bus import Origin, is_no_request
from jetcluster.records import NamedTuple

if TYPE_CHECKING:
    from jetcluster.protocol.bus import Bus, Subscription


class SystemRequest(NamedTuple):
    """`scope`: `ping` (to all servers), `server` (to this one), `account` (about `account`), `own` (from an account
    about itself), `user`."""

    scope: str
    kind: str
    account: str
    body: bytes
    origin: Origin


Answer = Callable[[SystemRequest], Awaitable[bytes]]
"""The reply to a request; b"" for none."""


log = get_logger("monitor")

MAX_QUEUED = 1024
"""Requests waiting; beyond it the newest is dropped and counted."""
MAX_OF_OTHERS = 32
"""Requests waiting from one account other than the system account, so that it cannot keep operators from their
answers."""

VIEWS = (
    "IDZ", "STATSZ", "VARZ", "SUBSZ", "CONNZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "ACCOUNTZ", "JSZ", "HEALTHZ", "PROFILEZ",
    "EXPVARZ", "IPQUEUESZ", "RAFTZ", "FINDINGS", "HISTORY",
)  # fmt: skip
BESIDE = frozenset({"FINDINGS", "HISTORY"})
"""Views that may wait for other servers, or for the disk: they are made beside the queue,"""
MAX_BESIDE = 4
"""at most so many at a time,"""
MAX_LATER = 64
"""and so many wait for their turn; beyond it the newest is dropped and counted."""
GROWING = frozenset({"JSZ", "CONNZ", "SUBSZ", "ROUTEZ", "LEAFZ", "ACCOUNTZ", "STATZ", "CONNS"})
"""Kinds for which no other waits: an answer may take seconds, in steps."""
MAX_GROWING = 4
"""Answers of these kinds that are made at the same time."""
COMMANDS = ("RELOAD", "KICK", "LDM")
"""Requests to one server only."""
OF_ACCOUNT = ("SUBSZ", "CONNZ", "LEAFZ", "JSZ", "INFO", "STATZ", "CONNS")
OF_OWN_ACCOUNT = {
    "$SYS.REQ.ACCOUNT.PING.STATZ": "STATZ",
    "$SYS.REQ.ACCOUNT.PING.CONNZ": "CONNZ",
    "$SYS.REQ.SERVER.PING.CONNZ": "CONNZ",
}
"""Requests of an ordinary account; the answers are about that account."""
USER_INFO = "$SYS.REQ.USER.INFO"


class SystemServices:
    """`start` subscribes, `stop` unsubscribes and drops what waits."""

    def __init__(self, node: Node, load: Callable[[], Awaitable[Answer]]) -> None:
        """`load` is called on the first request; what it raises is logged, and the requests that wait are dropped."""
        self.dropped = 0
        """Requests not answered because too many were waiting."""
        self._node = node
        self._load = load
        self._answer: Answer | None = None
        self._loading = asyncio.Lock()
        self._subscriptions: list[tuple[Bus, Subscription]] = []
        self._accounts: set[str] = set()
        self._queues: tuple[deque[tuple[Bus, bytes, str, SystemRequest]], ...] = (deque(), deque())
        """Requests waiting; the second for `GROWING`."""
        self._of_others: Counter[str] = Counter()
        """Requests waiting, by account."""
        self._workers: tuple[OrderedSet[asyncio.Task[None]], ...] = (OrderedSet(), OrderedSet())
        """Tasks that empty the queues."""
        self._beside: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._later: deque[tuple[Bus, bytes, SystemRequest]] = deque()
        """Requests for `BESIDE` that wait until others have ended."""

    def start(self) -> None:
        node = self._node
        system = node.options.system_account_name
        bus = node.server.account(system)
        ping, own = "$SYS.REQ.SERVER.PING", f"$SYS.REQ.SERVER.{node.server.server_id}"
        self._serve(bus, ping, "ping", "STATSZ")
        for kind in VIEWS:
            self._serve(bus, f"{ping}.{kind}", "ping", kind)
            self._serve(bus, f"{own}.{kind}", "server", kind)
        for kind in COMMANDS:
            self._serve(bus, f"{own}.{kind}", "server", kind)
        for kind in OF_ACCOUNT:
            self._serve(bus, f"$SYS.REQ.ACCOUNT.*.{kind}", "account", kind)
        self._serve_user_info(bus)
        for name in ("$G", *(node.options.accounts or ())):
            node.server.account(name)
        for router in node.server.accounts:
            self._serve_account(router)
        node.server.accounts.watch(self._serve_account)

    async def stop(self) -> None:
        self._node.server.accounts.watch(None)
        for bus, subscription in self._subscriptions:
            bus.unsubscribe(subscription)
        self._subscriptions.clear()
        self._clear()
        await cancelled([*self._beside, *self._workers[0], *self._workers[1]])

    # ---- subscriptions

    def _serve(self, bus: Bus, subject: str, scope: str, kind: str, *, local_only: bool = False) -> None:
        def take(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            account = bus.account if scope in ("own", "user") else ""
            if scope == "account":
                account = subject.split(b".")[3].decode("utf-8", "replace")
                if account == "PING":
                    account = "" if kind == "STATZ" else bus.account
            body = b"" if scope == "user" else payload
            self._take(bus, reply, SystemRequest(scope, kind, account, body, origin))

        self._subscriptions.append((bus, bus.subscribe(subject.encode(), take, local_only=local_only)))

    def _serve_account(self, bus: Bus) -> None:
        name = bus.account
        if name == self._node.options.system_account_name or name in self._accounts:
            return
        self._accounts.add(name)
        for subject, kind in OF_OWN_ACCOUNT.items():
            self._serve(bus, subject, "own", kind)
        self._serve_user_info(bus)

    def _serve_user_info(self, bus: Bus) -> None:
        self._serve(bus, USER_INFO, "user", "INFO", local_only=True)

    # ---- requests

    def _take(self, bus: Bus, reply: bytes, request: SystemRequest) -> None:
        if is_no_request(request.origin) or (not reply and request.kind not in COMMANDS):
            return
        asker = request.origin.account  # also of an account that imports the system account's requests
        if sum(map(len, self._queues)) >= MAX_QUEUED or self._of_others[asker] >= MAX_OF_OTHERS:
            self.dropped += 1
            return
        if asker != self._node.options.system_account_name:
            self._of_others[asker] += 1
        grows = request.kind in GROWING
        queue, workers = self._queues[grows], self._workers[grows]
        queue.append((bus, reply, asker, request))
        if sum(not worker.done() for worker in workers) < (MAX_GROWING if grows else 1):
            worker = asyncio.get_running_loop().create_task(self._work(queue))
            workers.add(worker)
            worker.add_done_callback(partial(self._worked, grows))

    def _worked(self, grows: bool, worker: asyncio.Task[None]) -> None:
        self._workers[grows].discard(worker)

    def _clear(self) -> None:
        for queue in self._queues:
            queue.clear()
        self._later.clear()
        self._of_others.clear()

    async def _work(self, queue: deque[tuple[Bus, bytes, str, SystemRequest]]) -> None:
        try:
            async with self._loading:
                answer = self._answer = self._answer or await self._load()
        except Exception:
            # The program was replaced under the running server: what is not loaded yet may not fit any more.
            log.exception("system requests cannot be answered, the server needs a restart")
            self._clear()
            return
        while queue:
            bus, reply, asker, request = queue.popleft()
            if asker in self._of_others:
                self._of_others[asker] -= 1
            if request.kind not in BESIDE:
                await self._reply(answer, bus, reply, request)
            elif len(self._later) < MAX_LATER:
                self._later.append((bus, reply, request))
                self._start_beside(answer)
            else:
                self.dropped += 1
            await asyncio.sleep(0)

    def _start_beside(self, answer: Answer) -> None:
        while self._later and len(self._beside) < MAX_BESIDE:
            task = asyncio.get_running_loop().create_task(self._reply(answer, *self._later.popleft()))
            self._beside.add(task)
            task.add_done_callback(partial(self._ended, answer))

    def _ended(self, answer: Answer, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        self._start_beside(answer)

    async def _reply(self, answer: Answer, bus: Bus, reply: bytes, request: SystemRequest) -> None:
        encoded = await answer(request)
        if encoded and reply:
            bus.publish(reply, encoded)
