"""All accounts of a node: one router each, and the mesh's access to them (`protocol.interest.Switchboard`)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from jetcluster.budget import BusyError, LoopBudget, Steps, exhaust
from jetcluster.clock import Clock, Rng, SystemClock, Timers
from jetcluster.model.subjects import MAX_TOKENS
from jetcluster.protocol import subjects
from jetcluster.protocol.bus import Outgoing
from jetcluster.protocol.interest import InterestListener, RemotePeer, Switchboard
from jetcluster.server.accounts.router import Router
from jetcluster.server.accounts.subscription import AnySubscription, ClientSubscription, LeafInterest, LeafPeer

if TYPE_CHECKING:
    # Only for the type checker: a server without JetStream does not load it.
    from jetcluster.consumer.owner.delivery import DeliveryBus

log = logging.getLogger("jetcluster.server")

MAX_DIRECT_REMOVALS: Final = 256
"""Subscriptions removed at once, without steps."""
MAX_MARKED_SUBSCRIPTIONS: Final = 16_384
"""Subscriptions of a gone owner marked as closed at once, in 1 ms; with more, the router remembers the owner."""
REMOVALS_PER_STEP: Final = 32
RETRY_SECONDS: Final = 0.01
"""Pause before the loop is asked for time again when too many jobs wait (BusyError)."""
DEFAULT_ACCOUNT = "$G"
"""The account of clients when no accounts are configured."""
MAX_ACCOUNTS = 65_536
"""Largest number of accounts; the interest of peers in further ones is ignored, as they could invent names."""
MAX_KEPT_INTERESTS = 64
"""Interests of one peer kept for an account without a router; with more the router is made at once, so that the
account's first client does not wait for them."""
MAX_WANTED_TOKENS = 2 * MAX_TOKENS
"""Tokens of a peer's subject: those of a client's or a stream's subject after the prefix of an import."""
Wants = dict[tuple[bytes, bytes | None], int]
"""(subject, queue) -> number of members."""


class Removals:
    """The removals of subscriptions of clients, peers and leaf links that are gone.

    A few are removed at once, many (there may be a million) in steps, as one job of the loop's budget. They get no
    messages from the moment at which their owner is gone."""

    def __init__(self, budget: LoopBudget, timers: Timers) -> None:
        self._budget = budget
        self._timers = timers
        self._waiting: deque[Iterator[None]] = deque()
        self._at_work = False

    def of_client(self, router: Router, client: object, subscriptions: dict[bytes, ClientSubscription]) -> None:
        """Removes all `subscriptions`, a dict that this object owns from now on."""
        # Shadows are in routes of other accounts, which do not leave out the owners that are gone here.
        marked = len(subscriptions) <= MAX_MARKED_SUBSCRIPTIONS or router.shadows is not None
        if marked:
            for subscription in subscriptions.values():
                subscription.closed = True
        self._begin(router, None if marked else client, len(subscriptions), _taken_out(router, subscriptions))

    def of_peer(self, router: Router, peer: RemotePeer) -> None:
        self._begin(router, peer, router.peers.wanted_by(peer), router.peers.dropping_peer(peer))

    def of_leaf(self, router: Router, link: LeafPeer) -> None:
        self._begin(router, link, router.peers.wanted_by(link), router.peers.dropping_leaf(link))

    def _begin(self, router: Router, owner: object | None, count: int, steps: Iterator[None]) -> None:
        if count <= MAX_DIRECT_REMOVALS:
            exhaust(steps)
            return
        if owner is not None:
            router.gone.add(owner)
            steps = _then(steps, lambda: router.gone.discard(owner))
        next(steps, None)  # runs the code before the first step now
        self._waiting.append(steps)
        self._go_on()

    def _go_on(self) -> None:
        if self._at_work or not self._waiting:
            return
        self._at_work = True
        try:
            self._budget.start(self, self._steps(), self._rest, self._failed)
        except BusyError:
            self._timers.call_later(RETRY_SECONDS, self._rest, None)

    def _steps(self) -> Steps[None]:
        while self._waiting:
            steps = self._waiting.popleft()
            for _ in range(REMOVALS_PER_STEP):
                try:
                    next(steps)
                except StopIteration:
                    break
            else:
                self._waiting.append(steps)
            yield

    def _rest(self, _: None) -> None:
        self._at_work = False
        self._go_on()

    def _failed(self, error: Exception) -> None:
        log.error("subscriptions of a connection could not be removed", exc_info=error)
        self._rest(None)


def _taken_out(router: Router, subscriptions: dict[bytes, ClientSubscription]) -> Generator[None, None, None]:
    while subscriptions:
        _, subscription = subscriptions.popitem()
        subscription.closed = True
        router.take_out(subscription)
        yield


def _then(steps: Iterator[None], last: Callable[[], None]) -> Generator[None, None, None]:
    try:
        yield from steps
    finally:
        last()


class Accounts:
    """Routers by account name, made at first use. Their subject spaces are separate.

    A peer's interest in an account that is not used here is kept without a router, which would cost kilobytes and
    subscriptions of its own that are announced to all other nodes."""

    def __init__(self, rng: Rng, removals: Removals | None = None, clock: Clock | None = None) -> None:
        """Without `removals`, a peer's interest is removed in one step."""
        self._rng = rng
        self._clock = clock or SystemClock()
        self._removals = removals
        self._routers: dict[str, Router] = {}
        self._heard: dict[str, dict[RemotePeer, Wants]] = {}
        self._listener: InterestListener | None = None
        self._watch: Callable[[Router], None] | None = None

    def __getitem__(self, name: str) -> Router:
        router = self._routers.get(name)
        if router is None:
            router = self._routers[name] = Router(name, self._rng, self._clock, self._changed)
            if self._watch is not None:
                self._watch(router)
            for peer, wants in self._heard.pop(name, {}).items():
                for (subject, queue), count in wants.items():
                    router.peers.set_interest(peer, subject, queue, count)
        return router

    def known(self, name: str) -> Router | None:
        return self._routers.get(name)

    def __iter__(self) -> Iterator[Router]:
        return iter(list(self._routers.values()))

    def listen(self, listener: InterestListener) -> None:
        self._listener = listener

    def watch(self, watch: Callable[[Router], None] | None) -> None:
        self._watch = watch

    def _changed(self, account: str, subject: bytes, queue: bytes | None, count: int) -> None:
        if self._listener is not None:
            self._listener(account, subject, queue, count)

    @property
    def subscriptions(self) -> int:
        """Number of subscriptions of all accounts, including those of peers."""
        return sum(router.index.count for router in self._routers.values())

    def subscribers(self, account: str, subject: bytes, queue: bytes | None) -> int:
        """Counts the subscriptions of this node's clients and leaf nodes that match `subject`, or that are within it if
        it has wildcards. `queue`: counts only members of that group."""
        router = self._routers.get(account)
        return 0 if router is None else sum(_counted(s, subject, queue) for s in router.index)

    def interests(self) -> Iterator[tuple[str, bytes, bytes | None, int]]:
        for router in self:
            for subject, queue, count in router.local.entries():
                yield router.account, subject, queue, count

    def set_remote_interest(
        self, peer: RemotePeer, account: str, subject: bytes, queue: bytes | None, count: int
    ) -> None:
        if subject.count(b".") >= MAX_WANTED_TOKENS:
            return
        if account in self._routers or self._hear(peer, account, subject, queue, count):
            self[account].peers.set_interest(peer, subject, queue, count)

    def _hear(self, peer: RemotePeer, account: str, subject: bytes, queue: bytes | None, count: int) -> bool:
        """Keeps a peer's interest in an account without a router; returns True when it needs one now."""
        known = self._heard.get(account)
        if known is None:
            if count <= 0 or len(self._routers) + len(self._heard) >= MAX_ACCOUNTS:
                return False
            known = self._heard[account] = {}
        wants = known.setdefault(peer, {})
        if count > 0:
            wants[subject, queue] = count
            return len(wants) > MAX_KEPT_INTERESTS
        wants.pop((subject, queue), None)
        if not wants:
            del known[peer]
        if not known:
            del self._heard[account]
        return False

    def drop_peer(self, peer: RemotePeer) -> None:
        for account, known in list(self._heard.items()):
            if known.pop(peer, None) is not None and not known:
                del self._heard[account]
        for router in self:
            if self._removals is None:
                router.peers.drop_peer(peer)
            else:
                self._removals.of_peer(router, peer)

    def deliver_from_peer(
        self,
        peer: RemotePeer,
        account: str,
        subject: bytes,
        reply: bytes,
        queues: list[bytes],
        headers: bytes,
        payload: bytes,
    ) -> None:
        router = self._routers.get(account)
        if router is not None:  # else the account is not used here
            router.deliver_from_peer(peer, subject, reply, queues, headers, payload)

    def deliver_many_from_peer(
        self, peer: RemotePeer, account: str, target: bytes, queues: list[bytes], messages: Sequence[Outgoing]
    ) -> None:
        if account in self._routers:
            self[account].deliver_many_from_peer(peer, target, queues, messages)

    def deliver_each_from_peer(
        self, peer: RemotePeer, account: str, messages: Sequence[Outgoing], failed: Callable[[], None]
    ) -> None:
        router = self._routers.get(account)
        if router is not None:
            router.deliver_each_from_peer(peer, messages, failed)

    def backlog_here(self, account: str, target: bytes) -> int:
        return self[account].backlog_here(target) if account in self._routers else 0

    def backlog_told(self, peer: RemotePeer, account: str, target: bytes, mark: int, waiting: int) -> None:
        if account in self._routers:
            self[account].peers.backlog.answered(peer, target, mark, waiting)

    def valve_told(self, peer: RemotePeer, account: str, subject: bytes, closed: bool) -> None:
        if account in self._routers:
            self[account].peers.valve_told(peer, subject, closed)


def _counted(subscription: AnySubscription, subject: bytes, queue: bytes | None) -> int:
    if not isinstance(subscription, ClientSubscription | LeafInterest):
        return 0
    if queue is not None and subscription.queue != queue:
        return 0
    if subjects.is_literal(subject):
        wanted = subjects.matches(subject, subscription.subject)
    else:
        wanted = subjects.is_subset(subscription.subject, subject)
    return (subscription.count if isinstance(subscription, LeafInterest) else 1) if wanted else 0


def _contracts(accounts: Accounts, router: Router) -> tuple[Switchboard, DeliveryBus]:
    """Lets the type checker compare these classes with the protocols of the rooms below."""
    return accounts, router
