"""docs/findings.md from the catalogue: `page()` is the whole text. `python -m jetcluster.doctor.page` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jetcluster.doctor.catalogue import KINDS

INTRODUCTION: Final = """\
# Findings

What `jetcluster doctor`, the page *Findings* of the console and `$SYS.REQ.SERVER.PING.FINDINGS` say is wrong. Each has
a code that never changes its meaning. **bad**: something does not work, or the next fault loses something. **warn**: it
gets bad unless somebody acts. **note**: it works, and somebody may not have meant it. A finding also has its subject,
the figures that it rests on, and the arithmetic in its reason.

`jetcluster doctor` asks the cluster, exits with 1 if anything is bad, and with `--config FILE` looks at its machine as
well. Each server judges itself, its streams and the consumers that it owns; the one that is asked with
`{"cluster": true}` (`/findingsz?cluster=1`) adds what only all servers together show.

The last column leads to the [symptom](symptoms.md), where there is one: its text, why, and what to do at length.

This page is made from the catalogue (`python -m jetcluster.doctor.page > docs/findings.md`).
"""
GROUPS: Final[Mapping[str, str]] = {
    "1": "A server",
    "2": "The cluster",
    "3": "Streams",
    "4": "Consumers",
    "5": "Configuration",
    "6": "The machine",
}
_HEAD: Final = "| code | | what you see | why | what to do | more |\n|---|---|---|---|---|---|"


def page() -> str:
    """Returns docs/findings.md."""
    parts = [INTRODUCTION]
    for digit, title in GROUPS.items():
        rows = [
            f'| <a id="{kind.code.lower()}"></a>{kind.code} | {kind.severity.value} | {kind.seen} | {kind.reason} '
            f"| {kind.remedy} | [{_title(kind.more)}]({kind.more}) |"
            for kind in KINDS
            if kind.code[2] == digit
        ]
        parts.append("\n".join([f"## {title}\n", _HEAD, *rows, ""]))
    return "\n".join(parts)


def _title(place: str) -> str:
    path, _, anchor = place.partition("#")
    if anchor:
        return anchor.replace("-", " ")
    return path.removesuffix(".md").replace("/", ", ").replace("-", " ")


if __name__ == "__main__":
    print(page(), end="")
