"""Room for published messages: the account's max_memory and max_storage, and the bytes that this node may hold.

A stream's leader asks before it proposes. Apply never asks: it must not depend on a node's configuration. The bytes of
streams led here are exact and include commands on their way through the log; for streams led elsewhere the last report
of their node counts (twice a second while it changes). So an account can overshoot only by what several nodes accept
within that time. Of a node whose link is down only the streams without other replicas count: others lead the rest, and
would count it a second time.

Far from every limit a replica is granted bytes in advance, which count as used at once, so that it asks once for many
commands (`QuotaShare.left`). Close to a limit all replicas are counted anew, and grants are void.

As in nats-server, every replica counts. A limit is for all replicas together, except a tier's, which is per replica of
its streams: `limit * replicas`. Codes: 10002 for the account, 10023 for the node.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Final

from jetcluster.clock import Clock
from jetcluster.errors import ACCOUNT_FULL, INSUFFICIENT_RESOURCES, by_code
from jetcluster.logs import Log
from jetcluster.mesh.frames import FrameError
from jetcluster.meta.state import Assignment
from jetcluster.model.limits import UNLIMITED, AccountLimits
from jetcluster.records import NamedTuple, dataclass
from jetcluster.stream.lead.answers import RefusedError

if TYPE_CHECKING:
    from jetcluster.mesh.api import NodeInfo
    from jetcluster.mesh.core import MeshCore

NOTICE: Final = "used"
TELL_SECONDS: Final = 0.5
WARN_SECONDS: Final = 10.0
MAX_SIZE: Final = (1 << 63) - 1
GRANT_BYTES: Final = 256 << 10
"""Bytes granted to a replica in advance,"""
FAR_BYTES: Final = 64 * GRANT_BYTES
"""while more than this remains (for an account, times replicas)."""
SMALL_BYTES: Final = 64 << 10
"""Size of a command for which a node that is not full has room."""
_ACCOUNT_FULL: Final = by_code(ACCOUNT_FULL)
_NODE_FULL: Final = by_code(INSUFFICIENT_RESOURCES)
_NOTHING: Final = AccountLimits(max_memory=0, max_storage=0)

Key = tuple[str, bool, int]
"""Account, True for memory streams, and the number of replicas in an account with tiers, else 0."""


class _Bounds(NamedTuple):
    """The account and the limits of all streams of an account with the same storage and replicas."""

    key: Key
    limit: int
    """See `QuotaShare.limit`."""
    node: int
    """See `QuotaShare.node`."""


class Holding(NamedTuple):
    """One replica of this node, as the quota counts it."""

    assignment: Assignment
    size: int
    """Stored bytes, and those on their way through the log."""
    leading: bool


@dataclass(slots=True)
class QuotaShare:
    """The count of one replica here, and its bounds."""

    key: Key
    assignment: Assignment
    copies: int
    led: int
    held: int
    limit: int
    """Bytes of the account over all replicas, -1 for no limit."""
    node: int
    """Bytes of this storage that the node may hold, -1 for no limit."""
    left: int = 0
    """Bytes granted in advance, taken without asking. 0 once a newer share replaces this one."""


class AccountQuota:
    """The bytes in use by account and storage. One per node."""

    def __init__(
        self,
        mesh: MeshCore,
        clock: Clock,
        log: Log,
        nodes: Callable[[], Container[str]],
        holdings: Callable[[], Iterable[Holding]],
        limits: Callable[[str], AccountLimits] = lambda account: UNLIMITED,
        node: Callable[[bool], int] = lambda memory: -1,
        look: Callable[[int], bool] = lambda stored: False,
        by_disk: Callable[[], bool] = lambda: False,
    ) -> None:
        """`nodes`: the cluster's members. `holdings`: all replicas of this node. `node(memory)`: bytes of such streams
        that this node may hold, -1 for no limit. `look` takes the bytes of file streams here twice a second;
        True: `node` changed by that. `by_disk`: `node` is the room on the disk, not a configured limit."""
        self._limits = limits
        self._node = node
        self._look = look
        self._by_disk = by_disk
        self._refused = 0
        """Bytes of file streams that found no room on this node at the last request, 0 if there was room."""
        self._mesh, self._clock, self._log, self._nodes, self._holdings = mesh, clock, log, nodes, holdings
        self.led: Counter[Key] = Counter()
        """Bytes of the streams led here, over all replicas; an upper bound."""
        self.held: Counter[bool] = Counter()
        """Bytes of the replicas here, by storage; an upper bound."""
        self._shares: dict[int, QuotaShare] = {}
        """By group."""
        self._bounds: dict[tuple[str, bool, int], _Bounds] = {}
        """By account, storage (True: memory) and replicas; found anew after each tick."""
        self._alone: Counter[Key] = Counter()
        """The part of `led` in streams with one replica."""
        self._elsewhere: dict[str, Counter[Key]] = {}
        """By peer."""
        self._alone_elsewhere: dict[str, Counter[Key]] = {}
        self._told: Counter[Key] | None = Counter()
        """The last report; None while a peer waits for one."""
        self._tell_at = 0.0
        self._warn_at: dict[str, float] = {}
        mesh.on_notice(NOTICE, self._on_notice)
        mesh.on_peers(self._on_up, self._on_down)

    def take(self, assignment: Assignment, size: int, holding: Callable[[], Holding]) -> QuotaShare:
        """Count `size` bytes that are about to be proposed to the stream of `assignment`, whose replica here is
        `holding`. Raises RefusedError, and then counts nothing. Later commands may use what is `left` of the share
        while the assignment stays the same."""
        share = self._shares.get(assignment.gid)
        if share is None or share.assignment is not assignment:
            share = self._count_one(holding())
        weight = size * share.copies
        memory = share.key[1]
        if share.limit >= 0 and self._account(share.key) + weight > share.limit:
            self._count()  # counted bytes may have been freed
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
                    self._refused = min(size, SMALL_BYTES)
                raise RefusedError(_NODE_FULL)
        room = share.limit < 0 or self._account(share.key) + weight + FAR_BYTES * share.copies <= share.limit
        if room and (share.node < 0 or self.held[memory] + size + FAR_BYTES <= share.node):
            ahead = max(0, GRANT_BYTES - share.left)
            share.left += ahead
            size += ahead
            weight = size * share.copies
        self._add_led(share.key, share.copies, weight)
        self.held[memory] += size
        share.led += weight
        share.held += size
        return share

    @property
    def file_room(self) -> int:
        """Bytes that this node may hold in files beside what it holds."""
        most = self._node(False)
        return MAX_SIZE if most < 0 else max(0, most - self.held[False])

    def trouble(self) -> str:
        """The node's trouble, "" for none: even small messages to file streams find no room here, so another node
        should lead them. None where the limit is configured: as a follower the node would hold the same bytes."""
        if not self._refused or not self._by_disk():
            return ""
        most = self._node(False)
        if most < 0 or self.held[False] + self._refused <= most:
            self._refused = 0
            return ""
        return f"of the disk's room no more than {most} bytes are for streams, and they are used up"

    def limits_changed(self) -> None:
        """Recompute the bounds of all replicas: limits of accounts or of the node changed."""
        self._count()

    def forget(self, gid: int) -> None:
        """Drop the count of a replica that is gone."""
        share = self._shares.pop(gid, None)
        if share is not None:
            share.left = 0
            self._add_led(share.key, share.copies, -share.led)
            self.held[share.key[1]] -= share.held

    def recount(self, stirred: Iterable[Holding]) -> None:
        """Count replicas that may have changed."""
        for holding in stirred:
            self._count_one(holding)

    def tick(self, stirred: Iterable[Holding] | None = None) -> None:
        """`stirred`: the replicas that may have changed since the last tick; None for all."""
        self._bounds.clear()
        if stirred is None:
            self._count()
        else:
            self.recount(stirred)
        if self._look(self.held[False]):
            self._count()
        now = self._clock.monotonic()
        if any((self._limits(key[0]).tiers is None) == (key[2] > 0) for key in self.led):
            self._count()  # the account got tiers; idle streams are not among the stirred
        told = Counter({key: max(0, size) for key, size in self.led.items() if self._limited(key)})
        if now >= self._tell_at and (told != self._told or now >= self._tell_at + WARN_SECONDS):
            self._tell_at, self._told = now + TELL_SECONDS, told
            rows = [[*key, size, min(size, max(0, self._alone[key]))] for key, size in told.items()]
            self._mesh.notify(None, NOTICE, json.dumps(rows, separators=(",", ":")).encode())
        members = self._nodes()
        for peer in [peer for peer in self._elsewhere if peer not in members]:
            del self._elsewhere[peer], self._alone_elsewhere[peer]

    def _add_led(self, key: Key, copies: int, size: int) -> None:
        self.led[key] += size
        if copies == 1:
            self._alone[key] += size

    def _account(self, key: Key) -> int:
        return self.led[key] + sum(told[key] for told in self._elsewhere.values())

    def _limited(self, key: Key) -> bool:
        return self._limit(key) >= 0

    def _limit(self, key: Key) -> int:
        """Bytes; 0 for a tier that the account does not have."""
        limits = self._limits(key[0])
        if limits.tiers is not None:
            limits = limits.tiers.get(f"R{key[2]}", _NOTHING)
        return limits.max_memory if key[1] else limits.max_storage

    def _count(self) -> None:
        self._bounds.clear()
        self.led, self.held, self._alone = Counter(), Counter(), Counter()
        for share in self._shares.values():
            share.left = 0
        self._shares.clear()
        for holding in self._holdings():
            self._count_one(holding)

    def _count_one(self, holding: Holding) -> QuotaShare:
        assignment, size, leading = holding
        self.forget(assignment.gid)
        kind = _, memory, copies = assignment.account, assignment.memory, assignment.replicas
        bounds = self._bounds.get(kind) or self._bounds_of(*kind)
        key, most, node = bounds
        led = size * copies if leading else 0
        share = self._shares[assignment.gid] = QuotaShare(key, assignment, copies, led, size, most, node)
        self.held[memory] += size
        if led:
            self._add_led(key, copies, led)
        return share

    def _bounds_of(self, account: str, memory: bool, copies: int) -> _Bounds:
        tier = copies if self._limits(account).tiers is not None else 0
        key = account, memory, tier
        limit = self._limit(key)
        most = limit * max(tier, 1) if limit >= 0 else -1
        found = self._bounds[account, memory, copies] = _Bounds(key, most, self._node(memory))
        return found

    def _on_notice(self, peer: str, payload: bytes) -> None:
        """Replace the previous list of a peer's usage. Raises FrameError."""
        try:
            rows = json.loads(payload)
            # An impossible size is the peer's miscount, and no reason to end its link.
            told, alone = (
                Counter({(str(row[0]), bool(row[1]), int(row[2])): min(max(0, int(row[at])), MAX_SIZE) for row in rows})
                for at in (3, -1)  # an older version does not say how much is in streams with one replica
            )
        except (ValueError, TypeError, IndexError, KeyError, RecursionError, OverflowError) as error:
            raise FrameError(f"malformed usage: {error!r}") from error
        self._elsewhere[peer], self._alone_elsewhere[peer] = told, alone

    def _on_up(self, info: NodeInfo) -> None:
        self._told = None

    def _on_down(self, info: NodeInfo) -> None:
        if info.peer_id in self._elsewhere:
            self._elsewhere[info.peer_id] = self._alone_elsewhere[info.peer_id]

    def _warn(self, account: str, text: str) -> None:
        now = self._clock.monotonic()
        if now >= self._warn_at.get(account, 0.0):
            self._warn_at[account] = now + WARN_SECONDS
            self._log.warning(text, account=account)
