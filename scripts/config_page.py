"""The tables of docs/configuration.md, made from the table of keys.

`python -m scripts.config_page --write` writes them; `make docs` fails when the page has others. A table stands after
its mark, `<!-- keys: jetstream.limits -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

from jetcluster.config.keys import KEYS
from jetcluster.config.reader import Block, Key
from jetcluster.model import durations

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
TYPES = {
    "str": "text",
    "int": "number",
    "Bytes": "size",
    "bool": "on/off",
    "Seconds": "duration",
    "Seconds | None": "duration",
    "list[str]": "texts",
    "dict[str, str]": "map",
    "dict[str, bool]": "map",
}
"""The type that a converter returns -> its word on the page; a block has none."""
HEAD = "| field | type | default | status | reload | |\n|---|---|---|---|---|---|\n"

_TABLE = re.compile(r"(<!-- keys: ([\w. ]*) -->\n\n)((?:\|.*\n)*)")


def table(block: Block) -> str:
    """One row per key."""
    return HEAD + "".join(f"| {' | '.join(_cells(key, block))} |\n" for key in block.keys)


def _cells(key: Key, block: Block) -> Iterator[str]:
    yield ", ".join(f"`{name}`" for name in key.names)
    kind = TYPES.get(key.type, "")
    yield kind
    yield _default(block, key.attribute, kind)
    yield key.status
    yield "refused" if key.fixed else key.bound.told if key.bound is not None else ""
    yield key.note


def _default(block: Block, attribute: str, kind: str) -> str:
    """The default of the block's options; "" where that only says that there is none, or that the note tells."""
    if block.options is None or not is_dataclass(block.options):
        return ""
    value = {field.name: field.default for field in fields(block.options)}.get(attribute, MISSING)
    if kind == "on/off":
        return "" if value in (None, MISSING) else "on" if value else "off"
    if value is MISSING or value is None or value in ("", 0, -1):
        return ""
    return durations.render(round(float(str(value)) * 1e9)) if kind == "duration" else f"`{value}`"


def rendered(page: str) -> str:
    """The page with its tables made anew. Raises KeyError for a mark of no block."""
    return _TABLE.sub(lambda found: found[1] + table(KEYS[found[2]]), page)


def problems(page: str) -> list[str]:
    """Differences of the page from the keys."""
    found = (
        [] if rendered(page) == page else [f"{PAGE.name}: its tables are old: python -m scripts.config_page --write"]
    )
    missing = [name for name in KEYS if not name.startswith(UNLISTED) and f"<!-- keys: {name} -->" not in page]
    return found + [f"{PAGE.name}: no table of the block {name!r}" for name in missing]


UNLISTED = ("cluster.tls", "gateway", "mqtt", "proxies", "tls.certs", "accounts.imports.source")
"""Blocks that are refused as a whole, or that another table describes."""

if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(rendered(PAGE.read_text()))
    print("\n".join(problems(PAGE.read_text())) or f"{PAGE.name}: as the keys are")
