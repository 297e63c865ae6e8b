"""Is there room for what is published: the account's max_memory and max_storage, and what this node may hold.

Asked by a stream's leader before it proposes; never in apply, which may not depend on a node's configuration. What the
leaders here have taken is counted exactly, with what is on its way through the log; what the leaders elsewhere have
taken is what their nodes told last (twice a second while it changes). So an account can overshoot by what is published
through several nodes within that time, and by nothing through one.

Far from every limit a replica is granted some bytes ahead, which count from then on, so that it asks once for many
commands (`QuotaShare.left`). Whenever there might be too little, all is counted anew, and what was granted is void.

As in nats-server, every replica counts. The limit is that of all replicas together; only a tier's counts once per
replica of its streams: `limit * replicas`. Codes: 10002 for the account, 10023 for the node.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from jetcluster.clock import Clock
from jetcluster.errors import INSUFFICIENT_RESOURCES, by_code
from jetcluster.logs import Log
from jetcluster.mesh.frames import FrameError
from jetcluster.meta.state import Assignment
from jetcluster.model.limits import UNLIMITED, AccountLimits
from jetcluster.records import dataclass
from jetcluster.stream.lead.answers import RefusedError

if TYPE_CHECKING:
    from jetcluster.mesh.core import MeshCore

NOTICE: Final = "used"
TELL_SECONDS: Final = 0.5
WARN_SECONDS: Final = 10.0
MAX_SIZE: Final = (1 << 63) - 1
AHEAD: Final = 256 << 10
"""Bytes granted ahead to a replica,"""
FAR: Final = 64 * AHEAD
"""while so many more would be left (for the account, times replicas)."""
SMALL: Final = 64 << 10
"""Bytes of a command that finds room on a node which is not full."""
_ACCOUNT_FULL: Final = by_code(10002)
_NODE_FULL: Final = by_code(INSUFFICIENT_RESOURCES)
_NOTHING: Final = AccountLimits(max_memory=0, max_storage=0)

Key = tuple[str, bool, int]
"""Account, whether it is about memory streams, and in an account with tiers the number of replicas; else 0."""


class Holding(NamedTuple):
    """One replica of this node, as far as it counts."""

    assignment: Assignment
    size: int
    """Bytes that it stores, with those on their way through the log."""
    leading: bool


@dataclass(slots=True)
class QuotaShare:
    """The count of one replica here, and the bounds that were worked out for it."""

    key: Key
    assignment: Assignment
    copies: int
    led: int
    held: int
    limit: int
    """Bytes of the account, all replicas counted; -1: none."""
    node: int
    """Bytes that this node may hold of the kind; -1: any number."""
    left: int = 0
    """Bytes granted ahead and counted already: the replica takes from them without asking. 0 once it is counted anew,
    by another share."""


class AccountQuota:
    """One per node. Nothing is limited until `begin`."""

    def __init__(
        self,
        limits: Callable[[str], AccountLimits] = lambda account: UNLIMITED,
        node: Callable[[bool], int] = lambda memory: -1,
        look: Callable[[int], bool] = lambda stored: False,
        by_disk: Callable[[], bool] = lambda: False,
    ) -> None:
        """`limits`: what the configuration says of an account alone; `node(memory)`: bytes of memory or file streams
        that this node may hold, -1 for any number. `look` is told twice a second how many bytes of file streams are
        here, and says whether `node` is another one by that. `by_disk`: `node` is what there is room for, and nobody's
        wish."""
        self._limits = limits
        self._node = node
        self._look = look
        self._by_disk = by_disk
        self._refused = 0
        """Bytes of file streams that this node had no room for, when it was asked last; 0: there is room."""
        self._mesh: MeshCore
        self._clock: Clock
        self._log: Log
        self._nodes: Callable[[], Container[str]]
        self._holdings: Callable[[], Iterable[Holding]] = tuple
        self.led: Counter[Key] = Counter()
        """Bytes of the streams led here, all replicas counted; never less than they have."""
        self.held: Counter[bool] = Counter()
        """Bytes of the replicas here, by storage; never less."""
        self._shares: dict[int, QuotaShare] = {}
        """By group."""
        self._elsewhere: dict[str, Counter[Key]] = {}
        self._told: Counter[Key] = Counter()
        self._tell_at = 0.0
        self._warn_at: dict[str, float] = {}

    def begin(
        self,
        mesh: MeshCore,
        clock: Clock,
        log: Log,
        nodes: Callable[[], Container[str]],
        holdings: Callable[[], Iterable[Holding]],
    ) -> None:
        """`nodes`: the cluster's members by peer id. `holdings`: all replicas of this node."""
        self._mesh, self._clock, self._log, self._nodes, self._holdings = mesh, clock, log, nodes, holdings
        mesh.on_notice(NOTICE, self._on_notice)

    def take(self, assignment: Assignment, size: int, holding: Callable[[], Holding]) -> QuotaShare:
        """Counts `size` bytes that are about to be proposed to the stream of `assignment`, of which `holding` is this
        node's replica. Raises RefusedError, and counts nothing then. The next ones may be taken from what is `left` of
        the share, as long as the assignment is the same."""
        share = self._shares.get(assignment.gid)
        if share is None or share.assignment is not assignment:
            share = self._count_one(holding())
        weight = size * share.copies
        memory = share.key[1]
        if share.limit >= 0 and self._account(share.key) + weight > share.limit:
            self._count()  # what was counted may be gone again
            share = self._shares.get(assignment.gid) or self._count_one(holding())
            if share.limit >= 0 and self._account(share.key) + weight > share.limit:
                self._warn(share.key[0], "JetStream account limits exceeded")
                raise RefusedError(_ACCOUNT_FULL)
        if 0 <= share.node < self.held[memory] + size:
            self._count()
            share = self._shares.get(assignment.gid) or self._count_one(holding())
            if 0 <= share.node < self.held[memory] + size:
                self._warn("", "JetStream resource limits of this server exceeded")
                if not memory:
                    self._refused = min(size, SMALL)
                raise RefusedError(_NODE_FULL)
        room = share.limit < 0 or self._account(share.key) + weight + FAR * share.copies <= share.limit
        if room and (share.node < 0 or self.held[memory] + size + FAR <= share.node):
            ahead = max(0, AHEAD - share.left)
            share.left += ahead
            size += ahead
            weight = size * share.copies
        self.led[share.key] += weight
        self.held[memory] += size
        share.led += weight
        share.held += size
        return share

    def trouble(self) -> str:
        """For the node's health: "" unless what is published to file streams finds no room on this node, not even if
        it is small: somebody else should lead them. Not where the configuration says how much the node may hold: as a
        follower it would hold more."""
        if not self._refused or not self._by_disk():
            return ""
        most = self._node(False)
        if most < 0 or self.held[False] + self._refused <= most:
            self._refused = 0
            return ""
        return f"of the disk's room no more than {most} bytes are for streams, and they are used up"

    def limits_changed(self) -> None:
        """Those of accounts, or of the node: they are asked for once per replica, and not for each message."""
        self._count()

    def forget(self, gid: int) -> None:
        """The replica is gone."""
        share = self._shares.pop(gid, None)
        if share is not None:
            share.left = 0
            self.led[share.key] -= share.led
            self.held[share.key[1]] -= share.held

    def tick(self, stirred: Iterable[Holding] | None = None) -> None:
        """`stirred`: replicas in which something may have happened since the last tick; None: in any."""
        if stirred is None:
            self._count()
        else:
            for holding in stirred:
                self._count_one(holding)
        if self._look(self.held[False]):
            self._count()
        now = self._clock.monotonic()
        if any((self._limits(key[0]).tiers is None) == (key[2] > 0) for key in self.led):
            self._count()  # the account got tiers; streams where nothing happens are not among the stirred
        told = Counter({key: max(0, size) for key, size in self.led.items() if self._limited(key)})
        if now >= self._tell_at and (told != self._told or now >= self._tell_at + WARN_SECONDS):
            self._tell_at, self._told = now + TELL_SECONDS, told
            rows = [[account, memory, tier, size] for (account, memory, tier), size in told.items()]
            self._mesh.notify(None, NOTICE, json.dumps(rows, separators=(",", ":")).encode())
        members = self._nodes()
        for peer in [peer for peer in self._elsewhere if peer not in members]:
            del self._elsewhere[peer]

    def _account(self, key: Key) -> int:
        return self.led[key] + sum(told[key] for told in self._elsewhere.values())

    def _limited(self, key: Key) -> bool:
        return self._limit(key) >= 0

    def _limit(self, key: Key) -> int:
        """Bytes. 0 of a tier that the account does not have."""
        limits = self._limits(key[0])
        if limits.tiers is not None:
            limits = limits.tiers.get(f"R{key[2]}", _NOTHING)
        return limits.max_memory if key[1] else limits.max_storage

    def _count(self) -> None:
        self.led, self.held = Counter(), Counter()
        for share in self._shares.values():
            share.left = 0
        self._shares.clear()
        for holding in self._holdings():
            self._count_one(holding)

    def _count_one(self, holding: Holding) -> QuotaShare:
        assignment, size, leading = holding
        self.forget(assignment.gid)
        memory, copies = assignment.memory, assignment.replicas
        tier = copies if self._limits(assignment.account).tiers is not None else 0
        key = assignment.account, memory, tier
        limit = self._limit(key)
        led = size * copies if leading else 0
        most = limit * max(tier, 1) if limit >= 0 else -1
        share = self._shares[assignment.gid] = QuotaShare(key, assignment, copies, led, size, most, self._node(memory))
        self.held[memory] += size
        if led:
            self.led[key] += led
        return share

    def _on_notice(self, peer: str, payload: bytes) -> None:
        """Takes over a peer's list of usage in place of the one before. Raises FrameError."""
        try:
            rows = json.loads(payload)
            # A size that cannot be is the peer's miscount, nothing to end its link for.
            told = Counter(
                {(str(row[0]), bool(row[1]), int(row[2])): min(max(0, int(row[3])), MAX_SIZE) for row in rows}
            )
        except (ValueError, TypeError, IndexError, KeyError, RecursionError, OverflowError) as error:
            raise FrameError(f"malformed usage: {error!r}") from error
        self._elsewhere[peer] = told

    def _warn(self, account: str, text: str) -> None:
        now = self._clock.monotonic()
        if now >= self._warn_at.get(account, 0.0):
            self._warn_at[account] = now + WARN_SECONDS
            self._log.warning(text, account=account)
