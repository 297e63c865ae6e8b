"""The committed figures (`bench/counts.toml`), and what may not be far from them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MORE: Final = 0.03
"""A row that takes more than this above its figure fails. Two counts of one program differ by less than 0.005."""
LESS: Final = 0.10
"""A row that takes more than this below its figure fails, too: the figure would let a later commit take it back."""
WRITE: Final = "python -m bench counts --write"
_HEAD: Final = f"# Instructions per message, and where they were counted. Written by `{WRITE}`.\n"


@dataclass(slots=True, frozen=True)
class Record:
    """Instructions per message by row, and what they depend on beside the source (`meter.environment`)."""

    rows: dict[str, float]
    environment: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Record:
        """Raises FileNotFoundError, TOMLDecodeError, KeyError."""
        found = tomllib.loads(path.read_text())
        return cls({name: float(count) for name, count in found["instructions"].items()}, dict(found["environment"]))

    def write(self, path: Path) -> None:
        rows = "".join(f"{name} = {round(count)}\n" for name, count in self.rows.items())
        environment = "".join(f"{name} = {json.dumps(text)}\n" for name, text in self.environment.items())
        path.write_text(f"{_HEAD}\n[instructions]\n{rows}\n[environment]\n{environment}")

    def differences(self, environment: Mapping[str, str]) -> list[str]:
        """A line for each part of this environment that is not as it was where the figures come from."""
        names = dict.fromkeys([*self.environment, *environment])
        pairs = [(name, self.environment.get(name, "none"), environment.get(name, "none")) for name in names]
        return [f"{name} is {here}, was {there}" for name, there, here in pairs if there != here]


def problems(found: Mapping[str, float], figures: Mapping[str, float]) -> list[str]:
    """A line for each row that is too far from its figure, or has none, or was not counted."""
    lines = []
    for name in dict.fromkeys([*figures, *found]):
        if name not in found or name not in figures:
            lines.append(f"{name}: {'not counted' if name in figures else 'has no figure'}")
            continue
        share = found[name] / figures[name] - 1
        if share > MORE or share < -LESS:
            side, most = ("more", MORE) if share > 0 else ("less", LESS)
            text = f"{found[name]:,.0f} instructions per message, {abs(share):.1%} {side} than {figures[name]:,.0f}"
            lines.append(f"{name}: {text} ({most:.0%} may be)")
    return lines


def expected(parent: Mapping[str, float], before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """The figures for a machine that is not the file's: what the parent commit takes there, times what this commit says
    of itself by changing the file from `before` to `now`."""
    return {name: parent[name] * now[name] / before[name] for name in now if name in parent and name in before}
