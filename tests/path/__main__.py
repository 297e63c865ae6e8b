"""Prints each way, or writes the page (`--write`), or only the numbers (`--short`)."""

from __future__ import annotations

import sys

from tests.path.counter import files
from tests.path.page import PAGE, lines, render
from tests.path.walks import walk_all
from tests.path.ways import WAYS


def main(arguments: list[str]) -> int:
    ways = walk_all()
    if "--write" in arguments:
        PAGE.write_text(render(ways))
    for way in WAYS:
        calls = ways[way.key]
        sys.stdout.write(f"{way.title}: {len(calls)} calls, {len(files(calls))} files\n")
        if not {"--write", "--short"} & set(arguments):
            sys.stdout.write("\n".join(lines(calls)) + "\n\n")
    return 0


sys.exit(main(sys.argv[1:]))
