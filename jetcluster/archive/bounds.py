"""`Bounds`: which rows a query wants, and so which files and row groups of an archive it can leave out.

Sequences and subjects are exact: `mask` keeps just the rows within. Times leave out files and row groups only, as
Spark applies a filter on time again; an archive has statistics of its rows' times, so that is sound although times may
go back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from jetcluster.protocol import subjects

ALL: Final = (">",)
MAX_SEQ: Final = (1 << 63) - 1


@dataclass(frozen=True)
class Bounds:
    """Sequences [low, high), times from `first_time` to `last_time` in Unix nanoseconds (None: any), and filters."""

    low: int = 0
    high: int = MAX_SEQ
    first_time: int | None = None
    last_time: int | None = None
    subjects: tuple[str, ...] = ALL

    def may_hold(
        self,
        seqs: tuple[int, int] | None = None,
        times: tuple[int, int] | None = None,
        names: tuple[str, str] | None = None,
    ) -> bool:
        """Returns whether rows with these smallest and largest values may be wanted; None: unknown."""
        if seqs is not None and (seqs[1] < self.low or seqs[0] >= self.high):
            return False
        if times is not None:
            if self.first_time is not None and times[1] < self.first_time:
                return False
            if self.last_time is not None and times[0] > self.last_time:
                return False
        return names is None or any(_overlaps(one, *names) for one in self.subjects)

    def mask(self, batch: Any) -> Any:
        """Returns which rows of a batch with `seq`, `subject` and `subject_raw` are wanted; None for all of them."""
        import pyarrow.compute as pc

        seqs = batch.column("seq")
        reach = pc.min_max(seqs).as_py()
        found = None
        if batch.num_rows and (reach["min"] < self.low or reach["max"] >= self.high):
            found = pc.and_(pc.greater_equal(seqs, self.low), pc.less(seqs, self.high))
        if self.subjects == ALL:
            return found
        matching = self._matching(batch)
        return matching if found is None else pc.and_(found, matching)

    def _matching(self, batch: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        names, raw = batch.column("subject"), batch.column("subject_raw")
        if raw.null_count < batch.num_rows:  # some are no UTF-8
            texts = zip(names.to_pylist(), raw.to_pylist(), strict=True)
            return pa.array([self._wants(name.encode() if own is None else own) for name, own in texts], pa.bool_())
        wanted = [name for name in pc.unique(names).to_pylist() if self._wants(name.encode())]
        return pc.is_in(names, pa.array(wanted, names.type))

    def _wants(self, subject: bytes) -> bool:
        return any(subjects.matches(subject, one.encode()) for one in self.subjects)


def _overlaps(pattern: str, smallest: str, largest: str) -> bool:
    """Returns whether a subject between the two, in the order of UTF-8, may match the pattern."""
    known: list[str] = []
    for token in pattern.split("."):
        if token in ("*", ">"):
            prefix = ".".join(known) + ("." if known else "")
            return smallest[: len(prefix)] <= prefix <= largest
        known.append(token)
    return smallest <= pattern <= largest
