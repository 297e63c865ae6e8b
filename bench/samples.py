"""`Samples`: the raw figures of a run, in a JSON file that is written after each turn, so that a run can be cut."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from bench.row import Measured


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of one contender in one round; `value` is None where it failed, and `error` says why."""

    round: int
    contender: str
    row: str
    value: float | None
    cpu_us: float | None = None
    client: float | None = None
    error: str = ""


@dataclass(slots=True)
class Samples:
    path: Path | None = None
    seconds: float = 0.0
    """Length of each load."""
    date: str = ""
    conditions: dict[str, str] = field(default_factory=dict)
    fsync_ms: list[float] = field(default_factory=list)
    """p50 of append + fdatasync on the same disk, before each round."""
    load: list[float] = field(default_factory=list)
    """The machine's load average before each round. The first: above 0.5 somebody else was using it."""
    samples: list[Sample] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises OSError, ValueError."""
        found = json.loads(path.read_text())
        found["samples"] = [Sample(**one) for one in found["samples"]]
        return cls(path, **found)

    def write(self) -> None:
        """Into its file, whole or not at all; nothing where it has none."""
        if self.path is None:
            return
        told = asdict(self)
        del told["path"]
        rows = ",\n".join(json.dumps(one) for one in told.pop("samples"))
        text = json.dumps(told, indent=1).removesuffix("\n}") + ',\n "samples": [\n' + rows + "\n]}\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(text)
        part.replace(self.path)

    def add(self, number: int, contender: str, row: str, found: Measured | str) -> None:
        """A figure, or why there is none; takes the place of an earlier failure."""
        self.samples = [
            one for one in self.samples if (one.round, one.contender, one.row) != (number, contender, row)
        ]  # fmt: skip
        if isinstance(found, str):
            self.samples.append(Sample(number, contender, row, None, error=found))
        else:
            self.samples.append(Sample(number, contender, row, found.value, found.cpu_us, found.client))

    def has(self, number: int, contender: str, row: str) -> bool:
        """It was measured; one that failed was not."""
        return any(
            (one.round, one.contender, one.row) == (number, contender, row) and one.value is not None
            for one in self.samples
        )

    @property
    def rounds(self) -> int:
        return max((one.round for one in self.samples), default=0)

    def _of(self, contender: str, row: str) -> list[Sample]:
        return [one for one in self.samples if one.contender == contender and one.row == row]

    def values(self, contender: str, row: str) -> list[float]:
        return [one.value for one in self._of(contender, row) if one.value is not None]

    def median(self, contender: str, row: str) -> float | None:
        return _median(self.values(contender, row))

    def cpu(self, contender: str, row: str) -> float | None:
        return _median([one.cpu_us for one in self._of(contender, row) if one.cpu_us is not None])

    def client(self, contender: str, row: str) -> float | None:
        return _median([one.client for one in self._of(contender, row) if one.client is not None])

    def errors(self, contender: str, row: str) -> list[str]:
        return [one.error for one in self._of(contender, row) if one.error]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
