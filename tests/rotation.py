"""Which of the tests marked `thorough` a run takes: all of them, or its commit's share.

`make test` takes all. `.ci/run` has 25 minutes and sets `JETCLUSTER_THOROUGH=1/20`: of twenty commits about one runs a
given test, and the same commit always runs the same ones. The others are skipped, and say so. A file that is marked as
a whole stays whole, for its tests share servers. What is marked `thorough(shared=False)` takes minutes, and no share
has it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import pytest

SHARE: Final = "JETCLUSTER_THOROUGH"
MOST_SHARES: Final = 20
TOP: Final = Path(__file__).resolve().parents[1]


def shares(environ: Mapping[str, str]) -> int:
    """The number of shares that `1/N` of the environment asks for; 1 is all. Raises `UsageError` for anything else."""
    text = environ.get(SHARE, "1/1")
    first, _, number = text.partition("/")
    if first != "1" or not number.isdecimal() or not 1 <= int(number) <= MOST_SHARES:
        raise pytest.UsageError(f"{SHARE}={text!r}: 1/N is wanted, N from 1 to {MOST_SHARES}")
    return int(number)


def is_taken(key: str, commit: str, number: int) -> bool:
    """True when the commit's share has the test or file `key`."""
    # Not a checksum: those of two commits differ by the same bits for every key.
    return hashlib.sha256(f"{commit} {key}".encode()).digest()[0] % number == 0


def leave_out(items: Sequence[pytest.Item], environ: Mapping[str, str] = os.environ) -> None:
    """Marks as skipped what is thorough and of another share."""
    number = shares(environ)
    if number == 1:
        return
    reason = f"thorough, and not of this commit's share ({SHARE}=1/{number}): `make test` runs it"
    for item in items:
        marker = item.get_closest_marker("thorough")
        if marker is None:
            continue
        if not marker.kwargs.get("shared", True):
            item.add_marker(
                pytest.mark.skip(reason="thorough, and too long for any commit's share: `make test` runs it")
            )
        elif not is_taken(_key(item), _commit(), number):
            item.add_marker(pytest.mark.skip(reason=reason))


def number_of_commit() -> int:
    """A number that differs from commit to commit, below 2^64; the same one where git knows no commit."""
    return int.from_bytes(hashlib.sha256(_commit().encode()).digest()[:8])


def _key(item: pytest.Item) -> str:
    module = item.getparent(pytest.Module)
    whole = module is not None and any(marker.name == "thorough" for marker in module.own_markers)
    return item.nodeid.partition("::")[0] if whole else item.nodeid


@lru_cache(maxsize=1)
def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=TOP, capture_output=True, text=True, check=False)
    return done.stdout.strip()
