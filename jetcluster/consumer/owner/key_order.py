"""`KeyOrder`: the selection of a consumer with order per key (docs/consumers.md, "Order per key").

The cursor goes on past messages that must wait for others of their key, or for the member that has their key: the log
has them as held, and they come when their turn is. A new owner reads the keys of what is out and held first, some at a
time, and selects nothing before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol
from zlib import crc32

from jetcluster.consumer.owner.key_queues import NO_KEY, SLOT_SHIFT, KeyQueues
from jetcluster.consumer.owner.key_stocks import NOBODY
from jetcluster.consumer.owner.members import SLOTS
from jetcluster.consumer.state.pending import HELD
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.turn import DELIVER, DELIVER_SOME, Value
from jetcluster.model.order_per_key import KeyWish
from jetcluster.protocol import headers
from jetcluster.store.api import Columns, DamagedError

MAX_WAITING_MESSAGES: Final = 65_536
"""Messages of a consumer that may wait for others of their keys. With so many its cursor stops: other keys wait too."""
FOR_MEMBERS_PERCENT: Final = 75
"""With this part of it waiting no more wait for their members: whoever asks gets what is free."""
MAX_LOOKED_AT: Final = 1024
"""Messages that one selection looks at for those whose keys are free."""
MAX_LOOKED_AT_BYTES: Final = 1 << 20
"""Their headers and payloads, which are read with them; a batch more at most."""
KEYS_PER_STEP: Final = 4096
"""Keys whose waiting messages are looked at in one step after a start."""
MAX_SETTLED_AT_ONCE: Final = 4096
"""Messages that may be settled without an op in one step; with more all keys are read again."""
_NO_LIMIT: Final = 1 << 31
_HASH_MASK: Final = (1 << SLOT_SHIFT) - 1

Claim = Callable[[Columns, int, int], bool]
"""Takes (columns, index, key) of a new message that need not wait for its key: returns True when somebody gets it, who
is noted in the queues then."""


class NewMessages(Protocol):
    """The part of `selection.Selection` that is in the order of the stream."""

    state: ConsumerState
    in_flight: int
    ops_in_flight: int
    vanished: list[int]

    @property
    def at_end(self) -> bool: ...

    def take(self, want: int) -> tuple[Columns, range]: ...

    def give_back(self, columns: Columns, used: int) -> None: ...

    def read(self, seqs: Sequence[int]) -> Columns: ...


class KeyOrder:
    """The next messages of one consumer by key."""

    __slots__ = (
        "_former",
        "_held",
        "_key_of",
        "_loading",
        "_selection",
        "_unchecked",
        "looked_bytes",
        "queues",
        "wish",
    )

    def __init__(self, selection: NewMessages, wish: KeyWish | None, former: KeyQueues | None = None) -> None:
        """`wish` None: the order was switched off, and what is held comes as if it had no key. `former`: the queues of
        before at the same owner, which know who has what is out."""
        self.wish = wish
        self.queues = KeyQueues(_NO_LIMIT if wish is None else wish.limit)
        self._former = former
        self._selection = selection
        self._key_of = key_reader(wish)
        self._held: list[int] = []
        """Passed messages that the log does not have as held yet."""
        self.looked_bytes = 0
        """Bytes that the last `take` read, of what it returned and of what it passed."""
        self._loading: list[int] | None = None
        """Messages whose keys are still to be read, descending; None before that begins."""
        self._unchecked: list[int] = []
        """Keys with waiting messages that may be ready, once all are read."""

    # -- the state of before ----------------------------------------------------------------------------------------

    @property
    def loaded(self) -> bool:
        return self._loading is not None and not self._loading and not self._unchecked

    @property
    def is_spent(self) -> bool:
        """True when the order was switched off and nothing waits any more."""
        busy = self.queues.waiting or self._held or self._selection.ops_in_flight
        return self.wish is None and self.loaded and not busy

    @property
    def waiting(self) -> int:
        """Number of messages that wait or are ready; before all keys are read those that wait by the log."""
        return self.queues.waiting if self.loaded else self._selection.state.unacked.held

    def load(self, want: int) -> bool:
        """Read the keys of at most `want` messages that are out or held; return False when it cannot begin yet, as
        earlier deliveries are in flight. Raises DamagedError and changes nothing then."""
        selection = self._selection
        entries = selection.state.unacked.entries
        if self._loading is None:
            if selection.in_flight or selection.ops_in_flight:
                return False
            self._loading = sorted(entries, reverse=True)
        if self._unchecked:
            self.queues.check(self._unchecked[-KEYS_PER_STEP:])
            del self._unchecked[-KEYS_PER_STEP:]
            return True
        seqs = [seq for seq in reversed(self._loading[-want:]) if seq in entries]
        keys: dict[int, int] = {}
        if self.wish is not None:
            columns = selection.read(seqs)
            keys = dict(zip(columns.seqs, map(self._key_of, columns.subjects, columns.headers), strict=True))
        del self._loading[-want:]
        former = self._former
        for seq in seqs:  # one that is not stored any more has no key
            holder = NOBODY if former is None else former.holder(seq)
            self.queues.restore(seq, keys.get(seq, NO_KEY), held=entries[seq] is HELD, holder=holder)
            if former is not None and former.is_returned(seq):
                self.queues.returned([seq])
        if not self._loading:
            self._former = None
            self._unchecked = self.queues.restored()
        return True

    # -- selection --------------------------------------------------------------------------------------------------

    @property
    def pressing(self) -> bool:
        """True while messages could be sent at once, or it is not known. What waits for a member that does not ask
        could not."""
        return not self.loaded or self.queues.ready

    @property
    def withholds(self) -> bool:
        """True when all that is left waits for others of its keys, or for its members."""
        if self.pressing:
            return False
        return self.full or (self.queues.waiting > 0 and self._selection.at_end)

    @property
    def full(self) -> bool:
        """True when the cursor may not go on, as too many messages wait."""
        return self.queues.waiting + self.queues.left >= MAX_WAITING_MESSAGES

    @property
    def spills(self) -> bool:
        """True when nothing more may wait for its member, as too many messages wait."""
        return (self.queues.waiting + self.queues.left) * 100 >= MAX_WAITING_MESSAGES * FOR_MEMBERS_PERCENT

    def release(self, want: int) -> Columns:
        """Return at most `want` messages that waited and whose turn has come. Raises DamagedError and changes nothing
        then."""
        return self.read(self.queues.take(want))

    def read(self, seqs: list[int]) -> Columns:
        """Return messages that were taken from the queues, ascending. Raises DamagedError, with all given back."""
        try:
            columns = self._selection.read(seqs)
        except DamagedError:
            self.queues.give_back(seqs)
            raise
        if len(columns.seqs) < len(seqs):
            stored = set(columns.seqs)
            gone = [seq for seq in seqs if seq not in stored]
            self._selection.vanished += gone
            self.queues.settle(gone)
        return columns

    def take(self, want: int, claim: Claim | None = None) -> Columns:
        """Return at most `want` new messages whose keys are free, and with `claim` that somebody claims; pass those
        that must wait. Empty when there are none among the next ones. Raises DamagedError and changes nothing then."""
        selection, queues, key_of = self._selection, self.queues, self._key_of
        parts: list[Columns] = []
        found = looked = self.looked_bytes = 0
        count = want
        while found < want and looked < MAX_LOOKED_AT and self.looked_bytes < MAX_LOOKED_AT_BYTES and not self.full:
            count = min(count, MAX_WAITING_MESSAGES - queues.waiting - queues.left)
            try:
                columns, _ = selection.take(count)
            except DamagedError:
                if parts:
                    break
                raise
            self.looked_bytes += sum(map(len, columns.payloads)) + sum(map(len, columns.headers))
            free: list[int] = []
            for at, (seq, subject, block) in enumerate(
                zip(columns.seqs, columns.subjects, columns.headers, strict=True)
            ):
                if found == want:
                    selection.give_back(columns, at)
                    break
                looked += 1
                key = key_of(subject, block)
                if claim is None:
                    goes = queues.offer(seq, key)
                elif not (goes := claim(columns, at, key)):
                    queues.park(seq, key)
                if goes:
                    free.append(at)
                    found += 1
                else:
                    self._held.append(seq)
            parts.append(columns.pick(free))
            if selection.at_end:
                break
            count *= 2
        return _joined(parts)

    def give_back(self, seqs: Iterable[int], *, new: bool) -> None:
        """Take back selected messages that nobody took: they are the next of their keys. `new`: the log has not passed
        them yet."""
        back = list(seqs)
        self.queues.give_back(back)
        if new:
            self._held += back

    @property
    def passed(self) -> int:
        """Number of messages that the next op will hold."""
        return len(self._held)

    def op(self, seqs: list[int]) -> tuple[int, Value]:
        """Return the op, as (kind, value), of the new messages `seqs` and of all that were passed."""
        if not self._held:
            return DELIVER, seqs
        held, self._held = sorted(self._held), []
        return DELIVER_SOME, (seqs, held)

    def hold(self, seq: int, member: int | None) -> None:
        """Note that a member gets a message once more which is out; also while the keys are being read. None: it is not
        known who gets it."""
        member = NOBODY if member is None else member
        self.queues.hold(seq, member)
        if self._former is not None:
            self._former.hold(seq, member)

    def returned(self, seqs: Iterable[int]) -> None:
        """Note that members gave messages back, which are due later; also while the keys are being read."""
        back = list(seqs)
        self.queues.returned(back)
        if self._former is not None:
            self._former.returned(back)

    def settle(self, seqs: Iterable[int]) -> None:
        """Note that messages are settled, or no longer stored."""
        self.queues.settle(seqs)

    def settle_removed(self, seqs: Sequence[int]) -> bool:
        """Note that messages are no longer stored; False: they are so many that all keys must be read again."""
        if len(seqs) > MAX_SETTLED_AT_ONCE:
            return False
        self.queues.settle(seqs)
        return not self.queues.is_sparse


def key_reader(wish: KeyWish | None) -> Callable[[bytes, bytes], int]:
    """Return a function from a message's subject and header block to its key: a hash, or NO_KEY."""
    if wish is None:
        return lambda subject, block: NO_KEY
    if name := wish.header:

        def by_header(subject: bytes, block: bytes) -> int:
            value = headers.get(block, name) if block else None
            return NO_KEY if value is None else _hashed(value)

        return by_header
    if number := wish.token:

        def by_token(subject: bytes, block: bytes) -> int:
            tokens = subject.split(b".", number)
            return NO_KEY if len(tokens) < number else _hashed(tokens[number - 1])

        return by_token
    return lambda subject, block: _hashed(subject)


def _hashed(key: bytes) -> int:
    """Return the slot of a key, which is the same in all processes, and behind it a hash that differs between them:
    nobody can choose keys that collide."""
    return (crc32(key) % SLOTS << SLOT_SHIFT | hash(key) & _HASH_MASK) or 1


def _joined(parts: list[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return Columns(*([value for part in parts for value in part[field]] for field in range(5)))  # type: ignore[arg-type]
