"""The judges of order per key: `InTurn` of when a key's next message may come, `OneOwner` of whom it may come to."""

from __future__ import annotations

from tests.sim.cluster.judges import require


class InTurn:
    """Deliveries of a consumer with order per key: a message comes only when less than `limit` earlier ones of its key,
    or others of it that are out, have yet to be settled. A client settles a message when it sends the word, which may
    count from then on. What was delivered may come again, or late, at any time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._keys: dict[int, str] = {}
        """The key of each message that is known to be stored."""
        self._out: set[int] = set()
        """Messages that somebody was sent."""
        self._settled: set[int] = set()

    def stored(self, seq: int, key: str) -> None:
        self._keys[seq] = key

    def settling(self, seq: int) -> None:
        """An ack or a term goes out, or the message is being removed: it may count or not."""
        self._settled.add(seq)

    def take(self, seq: int, key: str) -> None:
        require(self._keys.setdefault(seq, key) == key, f"{seq} is of key {key}, and was stored as {self._keys[seq]}")
        if seq not in self._out and seq not in self._settled:
            open_ones = [one for one, of in self._keys.items() if of == key and one not in self._settled]
            before = sorted(one for one in open_ones if one < seq or one in self._out)
            require(len(before) < self._limit, f"{seq} was delivered while {before} of {key} were not settled")
        self._out.add(seq)


class OneOwner:
    """Keys of a consumer whose clients are members: a message that comes for the first time comes to the client that
    has the others of its key which are out. Who got one has it until it is settled, or for `hold` seconds, which are
    less than the ack wait."""

    def __init__(self, hold: float) -> None:
        self._hold = hold
        self._out: dict[int, tuple[str, str, float]] = {}
        """Message -> (key, client, until when it has it)."""
        self._settled: set[int] = set()

    def settling(self, seq: int) -> None:
        """An ack or a term goes out, or the message is being removed: it may count or not, then or later."""
        self._settled.add(seq)
        self._out.pop(seq, None)

    def refusing(self, seq: int) -> None:
        """A NAK goes out: it may count or not."""
        self._out.pop(seq, None)

    def take(self, seq: int, key: str, client: str, count: int, now: float) -> None:
        """`count`: how often the message was delivered."""
        others = [
            one
            for one, (of, who, until) in self._out.items()
            if of == key and who != client and one != seq and until > now
        ]
        if count == 1:
            require(not others, f"{seq} of {key} came to {client} while others have {others}")
        if seq not in self._settled:
            self._out[seq] = key, client, now + self._hold
