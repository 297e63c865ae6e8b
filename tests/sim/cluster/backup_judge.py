"""The judge of an archive of a stream, and of what was made of it. Pure, as those in `judges`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tests.sim.cluster.judges import require


class Stored(NamedTuple):
    """A message, as a reader sees it."""

    subject: str
    time: str
    headers: tuple[tuple[str, str], ...]
    payload: bytes


class Backup:
    """One archive. `stored`, `removed` and `confirmed` are what was acknowledged before somebody asked for it: payloads
    by sequence, sequences that were removed, and such whose acks the consumer has."""

    def __init__(self, stored: Mapping[int, bytes], removed: Iterable[int], confirmed: Iterable[int]) -> None:
        self._stored = dict(stored)
        self._removed = set(removed)
        self._confirmed = set(confirmed)
        self._may_go: set[int] = set()
        self._may_be_acked: set[int] = set()
        self._state: Mapping[str, Any] = {}
        self._seqs: set[int] = set()

    def opened(self, state: Mapping[str, Any], removing: Iterable[int], acking: Iterable[int]) -> None:
        """The server has said of which `state` it is. By then these were perhaps removed, or acknowledged."""
        self._state = state
        self._may_go = set(removing)
        self._may_be_acked = set(acking)

    def restored(
        self, where: str, contents: Mapping[int, Stored], original: Mapping[int, Stored], gone: Mapping[int, bytes]
    ) -> None:
        """All that a stream has which was made of it, all that the original still has at the end, and the payloads of
        what may have been removed from it."""
        self._seqs = set(contents)
        state, seqs = self._state, self._seqs
        lost = sorted(self._stored.keys() - self._may_go - seqs)
        require(not lost, f"{where}: {lost[:5]} were acknowledged before the archive was taken, and are not in it")
        require(not (there := seqs & self._removed), f"{where}: {sorted(there)[:5]} were removed and are there")
        require(len(seqs) == state["messages"], f"{where}: {len(seqs)} messages, the archive has {state['messages']}")
        if seqs:
            ends, told = (min(seqs), max(seqs)), (state["first_seq"], state["last_seq"])
            require(ends[0] == told[0] and ends[1] <= told[1], f"{where}: from {ends[0]} to {ends[1]}, not {told}")
        for seq, message in contents.items():
            if (known := original.get(seq)) is not None:
                require(message == known, f"{where}: {seq} is {message}, and was {known}")
            else:
                require(message.payload == gone.get(seq), f"{where}: {seq} is {message}, and was {gone.get(seq)!r}")

    def went_on(self, where: str, seq: int) -> None:
        """The sequence of the first message that came to the new stream by itself."""
        wanted = self._state["last_seq"] + 1
        require(seq == wanted, f"{where}: its next message is {seq}, not {wanted}")

    def delivered(self, where: str, seqs: Iterable[int]) -> None:
        """All that the consumer in the new stream gave out; after `restored`."""
        found = set(seqs)
        again = sorted(found & self._confirmed)
        require(not again, f"{where}: {again[:5]} come again, and were acknowledged before the archive was taken")
        skipped = sorted(self._seqs - self._may_be_acked - found)
        require(not skipped, f"{where}: {skipped[:5]} were never acknowledged and do not come")
