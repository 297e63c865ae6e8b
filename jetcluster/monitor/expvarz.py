"""/debug/vars: what the interpreter holds, under the names that Go's runtime gives such numbers."""

from __future__ import annotations

from jetcluster.health.usage import Usage
from jetcluster.monitor.source import Json


def expvarz(usage: Usage) -> Json:
    """Bytes and counts. The command line is left out: it may hold a password."""
    collections, freed = usage.collections()
    return {"memstats": {"Sys": usage.memory_bytes(), "NumGC": collections, "Frees": freed}}
