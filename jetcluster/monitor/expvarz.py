"""/debug/vars: what the interpreter holds, under the names that Go's runtime gives such numbers."""

from __future__ import annotations

import gc

from jetcluster.monitor.source import Json
from jetcluster.monitor.varz import memory_bytes


def expvarz() -> Json:
    """Bytes and counts. The command line is left out: it may hold a password."""
    generations = gc.get_stats()
    return {
        "memstats": {
            "Sys": memory_bytes(),
            "NumGC": sum(generation["collections"] for generation in generations),
            "Frees": sum(generation["collected"] for generation in generations),
        }
    }
