"""The tables of docs/configuration.md and docs/configuration/keys.md, made from the table of keys.

`python -m scripts.config_page --write` writes them; `make docs` fails when a page has others. A table stands after its
mark: `<!-- keys: jetstream.limits -->` for one block, `<!-- all keys -->` for the one table of all keys.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

from jetcluster.config.keys import KEYS
from jetcluster.config.reader import HONOURED, Block, Key
from jetcluster.model import durations

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
ALL_KEYS = PAGE.with_suffix("") / "keys.md"
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
HEAD = "| field | type | default | status | changed by reload | |\n|---|---|---|---|---|---|\n"

YES, NO, BY_KEY, NOTHING = "yes", "no", "by key", "-"
"""The effect of a reload on a key. `BY_KEY`: some keys of its block change; `NOTHING`: it is inert or refused."""
_ALL_HEAD = "| key | default | status | changed by reload |\n|---|---|---|---|\n"
_ALL = re.compile(r"(<!-- all keys -->\n\n)((?:\|.*\n)*)")
_TABLE = re.compile(r"(<!-- keys: ([\w. ]*) -->\n\n)((?:\|.*\n)*)")


def table(name: str) -> str:
    """One row per key of the block."""
    block = KEYS[name]
    return HEAD + "".join(f"| {' | '.join(_cells(key, name, block))} |\n" for key in block.keys)


def table_of_all() -> str:
    """One row per key of all blocks, by its path; each name of a key has a row, as people look for it."""
    rows: dict[str, str] = {}
    for name, block in KEYS.items():
        for key in block.keys:
            kind = TYPES.get(key.type, "")
            told = f"{_default(block, key.attribute, kind)} | {key.status} | {reload_of(name, key)}"
            rows |= {f"{name}.{alias}".lstrip("."): told for alias in key.names}
    return _ALL_HEAD + "".join(f"| `{path}` | {told} |\n" for path, told in sorted(rows.items()))


def reload_of(name: str, key: Key) -> str:
    """Returns what a reload does to a key of the block `name`: YES, NO, BY_KEY, NOTHING, or with its bound."""
    if key.status != HONOURED:
        return NOTHING
    if key.fixed or _fixed_above(name):
        return NO
    if key.bound is not None:
        return f"{YES}; {key.bound.told}"
    below = KEYS.get(f"{name}.{key.names[0]}".lstrip("."))
    if below is None or key.convert is not None:
        return YES
    words = {reload_of(f"{name}.{key.names[0]}".lstrip("."), one) for one in below.keys}
    return YES if words <= {YES, NOTHING} else BY_KEY


def _fixed_above(name: str) -> bool:
    """Returns True if a block that has this one in it must not change."""
    above, _, own = name.rpartition(".")
    if not own or above not in KEYS:
        return False
    key = KEYS[above].by_name.get(own)
    return (key is not None and bool(key.fixed)) or _fixed_above(above)


def _cells(key: Key, name: str, block: Block) -> Iterator[str]:
    yield ", ".join(f"`{name}`" for name in key.names)
    kind = TYPES.get(key.type, "")
    yield kind
    yield _default(block, key.attribute, kind)
    yield key.status
    yield reload_of(name, key)
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
    page = _TABLE.sub(lambda found: found[1] + table(found[2]), page)
    return _ALL.sub(lambda found: found[1] + table_of_all(), page)


def problems(page: str, of_all: str) -> list[str]:
    """Differences of the two pages from the keys."""
    old = "its tables are old: python -m scripts.config_page --write"
    found = [f"{file.name}: {old}" for file, text in ((PAGE, page), (ALL_KEYS, of_all)) if rendered(text) != text]
    found += [] if _ALL.search(of_all) else [f"{ALL_KEYS.name}: no table of all keys"]
    missing = [name for name in KEYS if not name.startswith(UNLISTED) and f"<!-- keys: {name} -->" not in page]
    return found + [f"{PAGE.name}: no table of the block {name!r}" for name in missing]


UNLISTED = ("cluster.tls", "gateway", "mqtt", "proxies", "tls.certs", "accounts.imports.source")
"""Blocks that are refused as a whole, or that another table describes."""

if __name__ == "__main__":
    if "--write" in sys.argv:
        for file in (PAGE, ALL_KEYS):
            file.write_text(rendered(file.read_text()))
    lines = problems(PAGE.read_text(), ALL_KEYS.read_text())
    print("\n".join(lines) or f"{PAGE.name}, {ALL_KEYS.name}: as the keys are")
