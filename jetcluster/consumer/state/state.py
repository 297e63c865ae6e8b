"""`ConsumerState`: the replicated state of one consumer, the same on every replica at one applied index.

Changed only by `table.ConsumerTable` while it applies commands; owners and monitoring read it. `KeyRows` are sets of
keys in it that have a row each in the store.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from jetcluster.consumer.state.pending import NEVER, Pending, PendingSet
from jetcluster.consumer.state.rules import ConsumerRules
from jetcluster.ordered import OrderedSet
from jetcluster.records import dataclass

__all__ = ["NEVER", "ConsumerState", "Pending", "StateView"]

K = TypeVar("K", int, bytes)

VERSION: Final = 1
_U64: Final = struct.Struct(">Q")
_ROW: Final = struct.Struct("<BII9Q")
WAITING_AT_LEAST: Final = 512
"""Waiting pulls of a consumer that are remembered; its max_waiting when that is more."""


class KeyRows(Generic[K]):
    """A set of keys of one consumer, a row each; only what changed is written, once per commit of the store."""

    __slots__ = ("_changes", "_encode", "keys")

    def __init__(self, encode: Callable[[K], bytes]) -> None:
        """`encode` makes of a key what is its row's key, behind the consumer's id."""
        self.keys: dict[K, None] = {}
        self._changes: OrderedSet[K] = OrderedSet()
        self._encode: Callable[[K], bytes] = encode

    def add(self, key: K) -> bool:
        """False when it is there already."""
        if key in self.keys:
            return False
        self.keys[key] = None
        self._changes.add(key)
        return True

    def discard(self, key: K) -> bool:
        """False when it is not there."""
        if key not in self.keys:
            return False
        del self.keys[key]
        self._changes.add(key)
        return True

    def clear(self) -> None:
        self._changes.update(self.keys)
        self.keys.clear()

    def write(self, prefix: bytes, put: Callable[[bytes, bytes], None], delete: Callable[[bytes], None]) -> None:
        """The rows that changed since the last call; `prefix` is the consumer's id."""
        for key in self._changes:
            if key in self.keys:
                put(prefix + self._encode(key), b"")
            else:
                delete(prefix + self._encode(key))
        self._changes.clear()

    def remove(self, prefix: bytes, delete: Callable[[bytes], None]) -> None:
        """All rows."""
        for key in self._changes | self.keys:
            delete(prefix + self._encode(key))


class StateView(NamedTuple):
    """The counters as they are to be shown: what was purged is delivered and acked."""

    delivered_cseq: int
    delivered_sseq: int
    floor_cseq: int
    floor_sseq: int
    ack_pending: int
    redelivered: int


@dataclass(slots=True, eq=False)
class ConsumerState:
    cid: int
    rules: ConsumerRules
    created: int
    """Unix nanoseconds."""
    owner: str
    """Peer id of the replica that delivers."""
    delivered_sseq: int
    """Highest stream sequence delivered for the first time, or skipped; deliveries go on above it."""
    epoch: int = 1
    """Counts its owners, and its resets."""
    delivered_cseq: int = 0
    delivered_at: int = 0
    """Time of the last delivery, 0 before the first."""
    floor_cseq: int = 0
    """With `floor_sseq` the ack floor: written by `raise_floor`, and where a position begins anew (`resume`)."""
    floor_sseq: int = field(init=False)
    purged_sseq: int = 0
    """Sequence up to which what a purge took is shown as delivered and acked. Deliveries do not start from it: some
    that were decided before the purge may be in flight."""
    acked_at: int = 0
    """Time of the last ack, 0 before the first."""
    unacked: PendingSet = field(default_factory=PendingSet)
    last_per_subject_upto: int = 0
    """With deliver policy last_per_subject: up to this sequence (the stream's last when the consumer was created)
    only the last message of each subject is wanted, everything above."""
    waits: KeyRows[bytes] = field(default_factory=lambda: KeyRows[bytes](bytes))
    exhausted: KeyRows[int] = field(default_factory=lambda: KeyRows(_U64.pack))
    """In a stream with interest retention: messages that were delivered as often as is permitted and never acked.
    They are kept for this consumer as if they were pending. Some of them may be gone from the stream."""
    pins: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """Group -> (pinned id, since when in Unix nanoseconds)."""
    request: str = ""
    """Id of the last CONSUMER_CREATE that made or changed it: a retry of it changes nothing."""
    counted: tuple[ConsumerRules, tuple[int, int, int], int] | None = None
    """A count of `info`, with the rules and the place that it is for; not replicated."""
    _text: bytes = b""
    """The part of the row that is not numbers; b"" when it has to be made anew."""

    def __post_init__(self) -> None:
        self.floor_sseq = self.delivered_sseq

    @property
    def name(self) -> str:
        return self.rules.name

    @property
    def pending(self) -> dict[int, Pending]:
        """Pending messages by stream sequence, in order of first delivery, which is ascending."""
        return self.unacked.entries

    @property
    def waiting(self) -> dict[bytes, None]:
        """Reply subjects of the pulls that wait at the owner."""
        return self.waits.keys

    def check(self) -> None:
        """Asserts what holds between two ops."""
        assert 0 <= self.floor_cseq <= self.delivered_cseq, (self.name, self.floor_cseq, self.delivered_cseq)
        assert 0 <= self.floor_sseq <= self.delivered_sseq, (self.name, self.floor_sseq, self.delivered_sseq)
        unacked, order = self.unacked, self.unacked.order
        assert 0 <= unacked.redelivered <= len(unacked.entries) <= len(order), (self.name, unacked.redelivered)
        if order:  # the first may be gone already
            assert order[-1] <= self.delivered_sseq, (self.name, order[-1], self.delivered_sseq)
            assert order[0] > self.floor_sseq or order[0] not in unacked.entries, (self.name, order[0], self.floor_sseq)

    # -- changes (table and ops only) -----------------------------------------------------------------------------

    def raise_floor(self, cseq: int, sseq: int) -> None:
        """The ack floor stands there now. Asserts that it never goes back."""
        floor = (self.floor_cseq, self.floor_sseq)
        assert cseq >= floor[0] and sseq >= floor[1], (self.name, floor, cseq, sseq)
        self.floor_cseq, self.floor_sseq = cseq, sseq

    def resume(self, delivered: tuple[int, int], floor: tuple[int, int]) -> None:
        """(consumer, stream) sequences out of a row or an archive, wherever the new consumer began."""
        self.delivered_cseq, self.delivered_sseq = delivered
        self.floor_cseq, self.floor_sseq = floor

    def lowest_wanted(self) -> int:
        """No message below it is wanted."""
        lowest = self.unacked.lowest() or self.delivered_sseq + 1
        return min(lowest, min(self.exhausted.keys, default=lowest))

    def settle_floor(self) -> None:
        """After entries went, the floor stands right below the lowest one, or where deliveries stand when none is
        left. It stays where it is when the number of the lowest one is below it: archives have such."""
        lowest = self.unacked.lowest()
        if lowest:
            entry = self.unacked.entries[lowest]
            if entry.cseq - 1 > self.floor_cseq:
                self.raise_floor(entry.cseq - 1, max(lowest - 1, self.floor_sseq))
        else:
            self.raise_floor(self.delivered_cseq, self.delivered_sseq)

    def trim(self, first_seq: int) -> bool:
        """Forgets entries below the stream's first sequence; False when there is none."""
        lowest = self.unacked.lowest()
        if not lowest or lowest >= first_seq:
            return False
        self.unacked.take_up_to(first_seq - 1)
        self.settle_floor()
        return True

    def purge(self, first_seq: int) -> bool:
        """A purge of the whole stream up to `first_seq`; False when it changes nothing here."""
        if first_seq - 1 <= max(self.purged_sseq, self.floor_sseq):
            return False
        self.purged_sseq = first_seq - 1
        return True

    def restart(self, seq: int) -> None:
        """CONSUMER.RESET: as if created to begin at `seq`. Ops that were decided before are of an old epoch."""
        self.epoch += 1
        self.resume((0, seq - 1), (0, seq - 1))
        self.purged_sseq = 0
        self.unacked.clear()
        self.exhausted.clear()

    def set_rules(self, rules: ConsumerRules) -> None:
        self.rules = rules
        self.pins = {group: pin for group, pin in self.pins.items() if group in rules.priority_groups}
        self._text = b""

    def pin(self, group: bytes, pin: bytes, ts: int) -> int:
        if group not in self.rules.priority_groups:
            return 0
        if pin:
            self.pins[group] = (pin, ts)
        elif self.pins.pop(group, None) is None:
            return 0
        self._text = b""
        return 1

    def wait(self, reply: bytes) -> bool:
        if len(self.waits.keys) >= max(self.rules.max_waiting, WAITING_AT_LEAST):
            return False
        return self.waits.add(reply)

    # -- views ----------------------------------------------------------------------------------------------------

    def view(self) -> StateView:
        floor = max(self.floor_sseq, self.purged_sseq)
        delivered = max(self.delivered_sseq, self.purged_sseq)
        unacked = self.unacked
        return StateView(
            self.delivered_cseq, delivered, self.floor_cseq, floor, len(unacked), unacked.redelivered
        )  # fmt: skip

    def wants(self, seq: int) -> bool:
        """The message has yet to be delivered or acknowledged, provided it matches the filters."""
        return seq > self.delivered_sseq or seq in self.unacked.entries or seq in self.exhausted.keys

    # -- rows -----------------------------------------------------------------------------------------------------

    def row(self) -> bytes:
        """Everything but what is pending or waiting."""
        if not self._text:
            self._text = json.dumps(
                {
                    "name": self.rules.name,
                    "config": self.rules.config,
                    "owner": self.owner,
                    "request": self.request,
                    "pins": {g.hex(): [pin.hex(), since] for g, (pin, since) in self.pins.items()},
                },
                separators=(",", ":"),
            ).encode()
        head = _ROW.pack(
            VERSION,
            self.cid,
            self.epoch,
            self.created,
            self.delivered_cseq,
            self.delivered_sseq,
            self.delivered_at,
            self.floor_cseq,
            self.floor_sseq,
            self.acked_at,
            self.last_per_subject_upto,
            self.purged_sseq,
        )
        return head + self._text

    @classmethod
    def from_row(cls, row: bytes) -> ConsumerState:
        """Undoes `row`. Raises ValueError, KeyError or struct.error for bytes of another version."""
        version, cid, epoch, created, *numbers = _ROW.unpack_from(row)
        if version != VERSION:
            raise ValueError(f"a consumer row of version {version}")
        text: dict[str, Any] = json.loads(row[_ROW.size :].decode())
        state = cls(cid, ConsumerRules(text["name"], text["config"]), created, text["owner"], 0)
        state.epoch = epoch
        state.resume((numbers[0], numbers[1]), (numbers[3], numbers[4]))
        state.delivered_at, state.acked_at = numbers[2], numbers[5]
        state.last_per_subject_upto, state.purged_sseq = numbers[6:]
        state.request = text["request"]
        state.pins = {bytes.fromhex(g): (bytes.fromhex(pin), since) for g, (pin, since) in text["pins"].items()}
        state._text = row[_ROW.size :]
        return state

    def moved(self, owner: str) -> None:
        self.owner = owner
        self.epoch += 1
        self._text = b""
