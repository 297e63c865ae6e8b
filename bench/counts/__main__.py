"""The counted process, which valgrind runs: `python -m bench.counts LIBRARY`, the compiled `requests.c`."""

from __future__ import annotations

import ctypes
import sys

from bench.counts import loads
from jetcluster import native


def main(library: str) -> None:
    if native.why_pure:
        raise SystemExit(f"the compiled loops are missing: {native.why_pure}")
    requests = ctypes.CDLL(library)
    begin, end = requests.begin, requests.end

    async def count(name: str, chunks: int, load: loads.Load) -> None:
        note = name.encode()
        begin()
        await load(chunks)
        end(note)

    loads.run(count)


main(sys.argv[1])
