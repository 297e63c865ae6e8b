"""Runs the guide docs/spark.md from top to bottom: all its `python` blocks in one namespace, in order.

    python -m scripts.run_guide [--flights N] [--folder DIR] [--write] [PAGE]

A `text` block behind a `python` block shows what that one printed. With `--write` it gets what was printed now, and a
picture `spark-NAME` the file NAME that the blocks wrote, so the page never shows what was not run. The exit code is 1
when a block raises.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
PAGE = TOP / "docs" / "spark.md"
_PICTURE = re.compile(r"!\[[^]]*\]\(spark-([\w.-]+)\)")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass
class Block:
    code: str
    line: int
    """The line in the page where its code begins."""
    shown: tuple[int, int] | None = None
    """The lines of the page that show the output."""
    printed: str = ""


def blocks_of(page: str) -> list[Block]:
    """The `python` blocks, each with the `text` block that follows it, if there is one."""
    found: list[Block] = []
    owner: Block | None = None
    for match in _BLOCK.finditer(page):
        if match[1] == "python":
            owner = Block(match[2], page.count("\n", 0, match.start(2)) + 1)
            found.append(owner)
        elif match[1] == "text" and owner is not None:
            owner.shown = match.span(2)
            owner = None
        else:
            owner = None
    return found


def run(blocks: list[Block], namespace: dict[str, Any], page: Path) -> None:
    """Raises what a block raises; its place in the page is in the traceback."""
    for block in blocks:
        begun = time.monotonic()
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        with _printed() as text:
            exec(code, namespace)  # noqa: S102 - the page is part of this repository
        block.printed = text.getvalue()
        sys.stderr.write(f"line {block.line}: {time.monotonic() - begun:.1f} s\n{block.printed}")


@contextlib.contextmanager
def _printed() -> Iterator[io.StringIO]:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        yield text


def rewritten(page: str, blocks: list[Block]) -> str:
    """The page with what was printed."""
    for block in reversed(blocks):
        if block.shown is not None:
            start, end = block.shown
            page = page[:start] + block.printed + page[end:]
    return page


def close(namespace: dict[str, Any]) -> None:
    """A guide that broke off leaves no connections and no servers behind."""
    for value in list(namespace.values()):
        if type(value).__name__ == "Connection":
            value.close()
    for value in list(namespace.values()):
        if type(value).__name__ == "LocalCluster":
            value.stop()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("page", nargs="?", type=Path, default=PAGE)
    options.add_argument("--flights", type=int, help="only the first N")
    options.add_argument("--folder", type=Path, help="where the guide works (default: a temporary one)")
    options.add_argument("--write", action="store_true", help="put what was printed into the page")
    args = options.parse_args()
    if args.flights:
        os.environ["GUIDE_FLIGHTS"] = str(args.flights)
    page = args.page.read_text()
    blocks = blocks_of(page)
    namespace: dict[str, Any] = {"__name__": "__guide__"}
    with tempfile.TemporaryDirectory(prefix="jetcluster-guide-") as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.chdir(folder):
            try:
                run(blocks, namespace, args.page)
            except Exception:  # noqa: BLE001 - a block of the page may raise anything
                traceback.print_exc()
                return 1
            finally:
                close(namespace)
        if args.write:
            args.page.write_text(rewritten(page, blocks))
            for name in _PICTURE.findall(page):
                args.page.with_name(f"spark-{name}").write_bytes((folder / name).read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
