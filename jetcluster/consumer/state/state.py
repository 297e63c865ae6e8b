"""`ConsumerState`: the replicated state of one consumer, the same on every replica at one applied index.

Only `table.ConsumerTable` changes it, while it applies commands; owners and monitoring read it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import field
from typing import Any, Final, Generic, TypeVar

from jetcluster.consumer.state.letters import MAX_LETTERS, WaitingLetters
from jetcluster.consumer.state.pending import NEVER, Pending, PendingSet
from jetcluster.consumer.state.rules import ConsumerRules
from jetcluster.ordered import OrderedSet
from jetcluster.records import NamedTuple, dataclass

__all__ = ["NEVER", "ConsumerState", "Pending", "StateView"]

K = TypeVar("K", int, bytes)

VERSION: Final = 1
_U64: Final = struct.Struct(">Q")
_ROW: Final = struct.Struct("<BII9Q")
MIN_WAITING_PULLS: Final = 512
"""Waiting pulls of a consumer that are kept; max_waiting of them when that is more."""


class KeyRows(Generic[K]):
    """A set of keys of one consumer, with a row each; only changes are written, once per commit of the store."""

    __slots__ = ("_changes", "_encode", "keys")

    def __init__(self, encode: Callable[[K], bytes]) -> None:
        """`encode` converts a key to its row's key, without the prefix of the consumer's id."""
        self.keys: dict[K, None] = {}
        self._changes: OrderedSet[K] = OrderedSet()
        self._encode: Callable[[K], bytes] = encode

    def add(self, key: K) -> bool:
        """Add `key`; return False when it is present already."""
        if key in self.keys:
            return False
        self.keys[key] = None
        self._changes.add(key)
        return True

    def discard(self, key: K) -> bool:
        """Remove `key`; return False when it is absent."""
        if key not in self.keys:
            return False
        del self.keys[key]
        self._changes.add(key)
        return True

    def clear(self) -> None:
        self._changes.update(self.keys)
        self.keys.clear()

    def write(self, prefix: bytes, put: Callable[[bytes, bytes], None], delete: Callable[[bytes], None]) -> None:
        """Write the rows that changed since the last call; `prefix` is the consumer's id."""
        for key in self._changes:
            if key in self.keys:
                put(prefix + self._encode(key), b"")
            else:
                delete(prefix + self._encode(key))
        self._changes.clear()

    def remove(self, prefix: bytes, delete: Callable[[bytes], None]) -> None:
        """Delete all rows."""
        for key in self._changes | self.keys:
            delete(prefix + self._encode(key))


class StateView(NamedTuple):
    """The counters for clients, which count purged messages as delivered and acked."""

    delivered_cseq: int
    delivered_sseq: int
    floor_cseq: int
    floor_sseq: int
    ack_pending: int
    redelivered: int


@dataclass(slots=True, eq=False)
class ConsumerState:
    """One consumer, as the log has it."""

    cid: int
    rules: ConsumerRules
    created: int
    """Unix nanoseconds."""
    owner: str
    """Peer id of the replica that delivers."""
    delivered_sseq: int
    """Highest stream sequence delivered for the first time, or skipped; deliveries continue above it."""
    epoch: int = 1
    """Number of changes of its owner and of resets, from 1."""
    delivered_cseq: int = 0
    delivered_at: int = 0
    """Time of the last delivery, 0 before the first."""
    floor_cseq: int = 0
    """With `floor_sseq` the ack floor; set by `raise_floor` and `resume`."""
    floor_sseq: int = field(init=False)
    purged_sseq: int = 0
    """Sequence up to which purged messages are shown as delivered and acked. Deliveries do not start from it: some that
    were decided before the purge may be in flight."""
    acked_at: int = 0
    """Time of the last ack, 0 before the first."""
    unacked: PendingSet = field(default_factory=PendingSet)
    last_per_subject_upto: int = 0
    """Stream's last sequence at the creation, up to which last_per_subject wants only the last message of a subject."""
    waits: KeyRows[bytes] = field(default_factory=lambda: KeyRows[bytes](bytes))
    exhausted: KeyRows[int] = field(default_factory=lambda: KeyRows(_U64.pack))
    """With interest retention: messages that reached max_deliver without an ack, kept for this consumer as if they were
    pending. The stream may have removed some of them."""
    letters: WaitingLetters = field(default_factory=WaitingLetters)
    """Messages given up whose dead letter is not confirmed yet. The stream may have removed some of them."""
    pins: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """Group -> (pinned id, time of the pin in Unix nanoseconds)."""
    by_key: bool = False
    """True once messages waited for others of their key: first deliveries are not in the order of the stream since."""
    request: str = ""
    """Id of the last CONSUMER_CREATE that made or changed it: a retry with it changes nothing."""
    counted: tuple[ConsumerRules, tuple[int, int, int], int] | None = None
    """A cached count of `info`, with its rules and position; not replicated."""
    _text: bytes = b""
    """The part of the row after the numbers; b"" when it must be encoded again."""

    def __post_init__(self) -> None:
        self.floor_sseq = self.delivered_sseq

    @property
    def name(self) -> str:
        return self.rules.name

    @property
    def pending(self) -> dict[int, Pending]:
        """Pending messages by stream sequence, ascending; also those that wait for others of their key."""
        return self.unacked.entries

    @property
    def waiting(self) -> dict[bytes, None]:
        """Reply subjects of the pulls that wait at the owner, as keys."""
        return self.waits.keys

    def check(self) -> None:
        """Assert the invariants that hold between two ops."""
        assert 0 <= self.floor_cseq <= self.delivered_cseq, (self.name, self.floor_cseq, self.delivered_cseq)
        assert 0 <= self.floor_sseq <= self.delivered_sseq, (self.name, self.floor_sseq, self.delivered_sseq)
        unacked, order = self.unacked, self.unacked.order
        assert 0 <= unacked.redelivered <= len(unacked) <= len(order), (self.name, unacked.redelivered)
        assert 0 <= unacked.held <= len(unacked.entries), (self.name, unacked.held)
        assert len(self.letters.by_seq) <= MAX_LETTERS, (self.name, len(self.letters.by_seq))
        if order:  # its first may be settled already
            assert order[-1] <= self.delivered_sseq, (self.name, order[-1], self.delivered_sseq)
            assert order[0] > self.floor_sseq or order[0] not in unacked.entries, (self.name, order[0], self.floor_sseq)

    # -- changes (by table and ops only) --------------------------------------------------------------------------

    def raise_floor(self, cseq: int, sseq: int) -> None:
        """Set the ack floor. Asserts that it never goes back."""
        floor = (self.floor_cseq, self.floor_sseq)
        assert cseq >= floor[0] and sseq >= floor[1], (self.name, floor, cseq, sseq)
        self.floor_cseq, self.floor_sseq = cseq, sseq

    def resume(self, delivered: tuple[int, int], floor: tuple[int, int]) -> None:
        """Set the (consumer, stream) sequences of a row or an archive, or of a reset."""
        self.delivered_cseq, self.delivered_sseq = delivered
        self.floor_cseq, self.floor_sseq = floor

    def lowest_wanted(self) -> int:
        """Return a sequence below which no message is wanted."""
        lowest = self.letters.lowest(self.unacked.lowest() or self.delivered_sseq + 1)
        return min(lowest, min(self.exhausted.keys, default=lowest))

    def settle_floor(self) -> None:
        """Raise the floor after entries were removed: to just below the lowest pending one, or to the last delivery
        when none is left. It stays when it is above the lowest one's number, which archives permit. With order per key
        the lowest message and the earliest delivery are not the same one."""
        lowest = self.unacked.lowest()
        if lowest and self.by_key:
            cseq = (self.unacked.first_unacked() or self.delivered_cseq + 1) - 1
            self.raise_floor(max(cseq, self.floor_cseq), max(lowest - 1, self.floor_sseq))
        elif lowest:
            entry = self.unacked.entries[lowest]
            if entry.cseq - 1 > self.floor_cseq:
                self.raise_floor(entry.cseq - 1, max(lowest - 1, self.floor_sseq))
        else:
            self.raise_floor(self.delivered_cseq, self.delivered_sseq)

    def trim(self, first_seq: int) -> list[int]:
        """Remove entries below the stream's first sequence, and return their sequences."""
        lowest = self.unacked.lowest()
        if not lowest or lowest >= first_seq:
            return []
        gone, _ = self.unacked.take_up_to(first_seq - 1)
        self.settle_floor()
        return gone

    def purge(self, first_seq: int) -> bool:
        """Note a purge of the stream below `first_seq`; return False when it changes nothing here."""
        if first_seq - 1 <= max(self.purged_sseq, self.floor_sseq):
            return False
        self.purged_sseq = first_seq - 1
        return True

    def restart(self, seq: int) -> None:
        """Restart at `seq` as a new consumer would (CONSUMER.RESET). The new epoch voids ops decided before. Messages
        from `seq` on are delivered again, so they are not given up any more; letters of those below it still go out."""
        self.epoch += 1
        self.resume((0, seq - 1), (0, seq - 1))
        self.purged_sseq = 0
        self.unacked.clear()
        self.exhausted.clear()
        for above in [above for above in self.letters.by_seq if above >= seq]:
            self.letters.take(above)

    def set_rules(self, rules: ConsumerRules) -> None:
        self.rules = rules
        self.pins = {group: pin for group, pin in self.pins.items() if group in rules.priority_groups}
        self._text = b""

    def order_by_key(self) -> None:
        if not self.by_key:
            self.by_key = True
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
        if len(self.waits.keys) >= max(self.rules.max_waiting, MIN_WAITING_PULLS):
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
        """Return True when a message that matches the filters has yet to be delivered or acked, or its letter waits."""
        if seq > self.delivered_sseq or seq in self.unacked.entries:
            return True
        return seq in self.exhausted.keys or seq in self.letters.by_seq

    # -- rows -----------------------------------------------------------------------------------------------------

    def row(self) -> bytes:
        """Return the row of all fields but the pending, waiting and exhausted ones and letters, which have rows."""
        if not self._text:
            text: dict[str, Any] = {
                "name": self.rules.name,
                "config": self.rules.config,
                "owner": self.owner,
                "request": self.request,
                "pins": {g.hex(): [pin.hex(), since] for g, (pin, since) in self.pins.items()},
            }
            text |= {"by_key": True} if self.by_key else {}
            self._text = json.dumps(text, separators=(",", ":")).encode()
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
        """Undo `row`. Raises ValueError, KeyError or struct.error for bytes of another version."""
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
        state.by_key = bool(text.get("by_key"))
        state.pins = {bytes.fromhex(g): (bytes.fromhex(pin), since) for g, (pin, since) in text["pins"].items()}
        state._text = row[_ROW.size :]
        return state

    def moved(self, owner: str) -> None:
        self.owner = owner
        self.epoch += 1
        self._text = b""
