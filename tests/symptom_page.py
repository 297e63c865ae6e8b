"""The pages of symptoms (docs/symptoms): what each section shows is what a test has seen.

A section's id is the anchor of its heading. The lines of its `text` blocks are what an operator sees; `…` stands for
what differs from case to case. A test that makes the symptom calls `shown(id, ...)` with what it has seen.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from jetcluster.records import NamedTuple
from scripts.check_docs import anchor_of

TOP = Path(__file__).resolve().parents[1]
INDEX = TOP / "docs" / "symptoms.md"
PAGES = TOP / "docs" / "symptoms"
_SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n)*)", re.MULTILINE)
_TEXT = re.compile(r"^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Symptom(NamedTuple):
    """One section."""

    page: str
    """The file's name."""
    id: str
    title: str
    lines: tuple[str, ...]
    body: str


@cache
def symptoms() -> dict[str, Symptom]:
    """All sections by id. Raises AssertionError for an id that two have."""
    found: dict[str, Symptom] = {}
    for page in sorted(PAGES.glob("*.md")):
        for title, body in _SECTION.findall(page.read_text()):
            lines = tuple(line for block in _TEXT.findall(body) for line in block.splitlines() if line.strip())
            one = Symptom(page.name, anchor_of(title), title, lines, body)
            assert one.id not in found, f"two sections are called {one.id}"
            found[one.id] = one
    return found


def shown(symptom: str, *seen: object) -> None:
    """Raises AssertionError if a line of the section is not in what was seen (texts, or what `str` makes of them)."""
    text = "\n".join(map(str, seen))
    for line in symptoms()[symptom].lines:
        pattern = ".*".join(re.escape(part.strip()) for part in line.split("…"))
        assert re.search(pattern, text), f"{symptom}: the page shows\n  {line}\nand seen was\n{text[-3000:]}"
