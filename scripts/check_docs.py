"""`make docs`: every relative link and every `make` target that a Markdown page names must exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)")
MAKE = re.compile(r"`make ([a-z]+)`")


def problems() -> list[str]:
    targets = set(re.findall(r"^([a-z]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    found = []
    for page in [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")]:
        text = page.read_text()
        found += [
            f"{page.relative_to(TOP)}: no file {link}"
            for link in LINK.findall(text)
            if not (page.parent / link).exists()
        ]
        found += [f"{page.relative_to(TOP)}: no target make {t}" for t in MAKE.findall(text) if t not in targets]
    return found


if __name__ == "__main__":
    lines = problems()
    print("\n".join(lines) or "docs: every link and make target exists")
    sys.exit(bool(lines))
