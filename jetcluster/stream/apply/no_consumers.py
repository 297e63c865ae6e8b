"""`NoConsumers`: the extension of a stream's state machine that has none, for stores whose messages alone matter."""

from __future__ import annotations

from collections.abc import Sequence

from jetcluster.stream.log.commands import UnknownCommandError
from jetcluster.stream.ports import Extension, Result, Sift
from jetcluster.stream.rules import StreamRules


class NoConsumers(Extension):
    """Knows none of the commands of consumers, and wants no message."""

    @property
    def public_count(self) -> int:
        return 0

    def reload(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def apply(self, kind: int, ts: int, index: int, body: bytes, sift: Sift) -> Result:
        raise UnknownCommandError(f"kind {kind}: no extension")

    def configure(self, rules: StreamRules, sift: Sift) -> None:
        pass

    def floor_of(self, name: str) -> int | None:
        return None

    def wanted(self, seq: int, subject: bytes) -> bool:
        return False

    def purged(self) -> None:
        pass

    def trimmed(self) -> None:
        pass

    def removed(self, seqs: Sequence[int]) -> None:
        pass

    def stored(self, first_seq: int, last_seq: int) -> None:
        pass
