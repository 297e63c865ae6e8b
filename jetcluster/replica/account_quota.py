"""Is there room for what is published: the account's max_memory and max_storage, and what this node may hold.

Asked by a stream's leader before it proposes; never in apply, which may not depend on a node's configuration. What the
leaders here have taken is counted exactly, with what is on its way through the log; what the leaders elsewhere have
taken is what their nodes told last (twice a second while it changes). So an account can overshoot by what is published
through several nodes within that time, and by nothing through one.

As in nats-server, every replica counts, and the limit counts once per replica of the stream that is published to:
refused is what would exceed `limit * replicas`. Codes: 10002 for the account, 10023 for the node.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from jetcluster.errors import INSUFFICIENT_RESOURCES, by_code
from jetcluster.mesh.frames import FrameError
from jetcluster.model.limits import UNLIMITED, AccountLimits
from jetcluster.records import dataclass
from jetcluster.stream.answers import RefusedError

if TYPE_CHECKING:
    from jetcluster.meta.state import Assignment
    from jetcluster.replica.context import NodeContext
    from jetcluster.replica.stream_replica import StreamReplica

NOTICE: Final = "used"
TELL_SECONDS: Final = 0.5
WARN_SECONDS: Final = 10.0
MAX_SIZE: Final = (1 << 63) - 1
_ACCOUNT_FULL: Final = by_code(10002)
_NODE_FULL: Final = by_code(INSUFFICIENT_RESOURCES)
_NOTHING: Final = AccountLimits(max_memory=0, max_storage=0)

Key = tuple[str, bool, int]
"""Account, whether it is about memory streams, and in an account with tiers the number of replicas; else 0."""


@dataclass(slots=True)
class _Share:
    """What a replica here is counted with, and the bounds that were worked out for it."""

    key: Key
    assignment: Assignment
    copies: int
    led: int
    held: int
    limit: int
    """Bytes of the account, all replicas counted; -1: none."""
    node: int
    """Bytes that this node may hold of the kind; -1: any number."""


class AccountQuota:
    """One per node. Nothing is limited until `begin`."""

    def __init__(
        self,
        limits: Callable[[str], AccountLimits] = lambda account: UNLIMITED,
        node: Callable[[bool], int] = lambda memory: -1,
    ) -> None:
        """`limits`: what the configuration says of an account alone; `node(memory)`: bytes of memory or file streams
        that this node may hold, -1 for any number."""
        self._limits = limits
        self._node = node
        self._replicas: Mapping[int, StreamReplica] = {}
        self._context: NodeContext | None = None
        self.led: Counter[Key] = Counter()
        """Bytes of the streams led here, all replicas counted; never less than they have."""
        self.held: Counter[bool] = Counter()
        """Bytes of the replicas here, by storage; never less."""
        self._shares: dict[int, _Share] = {}
        """By group."""
        self._elsewhere: dict[str, Counter[Key]] = {}
        self._told: Counter[Key] = Counter()
        self._tell_at = 0.0
        self._warn_at: dict[str, float] = {}

    def begin(self, context: NodeContext, replicas: Mapping[int, StreamReplica]) -> None:
        self._context, self._replicas = context, replicas
        context.mesh.on_notice(NOTICE, self._on_notice)

    def take(self, replica: StreamReplica, size: int) -> None:
        """Counts `size` bytes that are about to be proposed. Raises RefusedError, and counts nothing then."""
        assignment = replica.assignment
        share = self._shares.get(assignment.gid)
        if share is None or share.assignment is not assignment:
            share = self._count_one(replica)
        weight = size * share.copies
        memory = share.key[1]
        if share.limit >= 0 and self._account(share.key) + weight > share.limit:
            self._count()  # what was counted may be gone again
            share = self._shares.get(assignment.gid) or self._count_one(replica)
            if share.limit >= 0 and self._account(share.key) + weight > share.limit:
                self._warn(share.key[0], "JetStream account limits exceeded")
                raise RefusedError(_ACCOUNT_FULL)
        if 0 <= share.node < self.held[memory] + size:
            self._count()
            share = self._shares.get(assignment.gid) or self._count_one(replica)
            if 0 <= share.node < self.held[memory] + size:
                self._warn("", "JetStream resource limits of this server exceeded")
                raise RefusedError(_NODE_FULL)
        self.led[share.key] += weight
        self.held[memory] += size
        share.led += weight
        share.held += size

    def limits_changed(self) -> None:
        """Of accounts, or of the node: they are asked for once per replica, and not for each message."""
        self._count()

    def forget(self, gid: int) -> None:
        """The replica is gone."""
        share = self._shares.pop(gid, None)
        if share is not None:
            self.led[share.key] -= share.led
            self.held[share.key[1]] -= share.held

    def tick(self, stirred: Iterable[StreamReplica] | None = None) -> None:
        """`stirred`: replicas in which something may have happened since the last tick; None: in any."""
        context = self._context
        assert context is not None
        if stirred is None:
            self._count()
        else:
            for replica in stirred:
                self._count_one(replica)
        now = context.clock.monotonic()
        if any((self._limits(key[0]).tiers is None) == (key[2] > 0) for key in self.led):
            self._count()  # the account got tiers; streams where nothing happens are not among the stirred
        told = Counter({key: max(0, size) for key, size in self.led.items() if self._limited(key)})
        if now >= self._tell_at and (told != self._told or now >= self._tell_at + WARN_SECONDS):
            self._tell_at, self._told = now + TELL_SECONDS, told
            # Of nodes of before, the last row of an account counts: they know no tiers.
            rows = [
                [account, memory, size, *([tier] if tier else [])] for (account, memory, tier), size in told.items()
            ]
            context.mesh.notify(None, NOTICE, json.dumps(rows, separators=(",", ":")).encode())
        members = context.nodes()
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
        self._shares.clear()
        for replica in self._replicas.values():
            self._count_one(replica)

    def _count_one(self, replica: StreamReplica) -> _Share:
        assignment = replica.assignment
        self.forget(assignment.gid)
        memory, copies = assignment.memory, assignment.replicas
        tier = copies if self._limits(assignment.account).tiers is not None else 0
        key = assignment.account, memory, tier
        limit, size = self._limit(key), replica.store.byte_count + replica.ingest.pending_bytes
        led = size * copies if replica.leading else 0
        most = limit * copies if limit >= 0 else -1
        share = self._shares[assignment.gid] = _Share(key, assignment, copies, led, size, most, self._node(memory))
        self.held[memory] += size
        if led:
            self.led[key] += led
        return share

    def _on_notice(self, peer: str, payload: bytes) -> None:
        """What is not in the peer's newest list is not taken any more."""
        try:
            rows = json.loads(payload)
            # A size that cannot be is the peer's miscount, nothing to end its link for.
            told = Counter(
                {(str(row[0]), bool(row[1]), _tier(row)): min(max(0, int(row[2])), MAX_SIZE) for row in rows}
            )
        except (ValueError, TypeError, IndexError, KeyError, RecursionError, OverflowError) as error:
            raise FrameError(f"malformed usage: {error!r}") from error
        self._elsewhere[peer] = told

    def _warn(self, account: str, text: str) -> None:
        assert self._context is not None
        now = self._context.clock.monotonic()
        if now >= self._warn_at.get(account, 0.0):
            self._warn_at[account] = now + WARN_SECONDS
            self._context.log.warning(text, account=account)


def _tier(row: list[object]) -> int:
    """Of what another node tells; versions of before know none."""
    found = row[3] if len(row) > 3 else 0
    if not isinstance(found, int):
        raise TypeError("tier")
    return found
