"""Generated tables inside pages that people write: between two marks."""

from __future__ import annotations

END = "<!-- end of the figures -->"


def put(page: str, text: str, begin: str) -> str:
    """The page with the text between `begin` and END. Raises ValueError."""
    before, found, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"the page has no {begin} and {END}")
    return f"{before}{begin}\n\n{text}\n{END}{after}"
