"""Files of one node that rot: a bit flips, or the end is missing. The node is killed first, and the others have
everything: a majority of replicas that is damaged is beyond what any majority system can hide.

A node that sees the damage may refuse to start. It is then brought back as an operator would: with an empty store.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chaos.nemeses.base import Nemesis, Trouble, empty
from testkit.harness import HarnessError


def flip(trouble: Trouble, path: Path) -> str:
    offset = trouble.dice.randrange(_used(path))
    bit = trouble.dice.randrange(8)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))
    return f"bit {bit} of byte {offset}"


def truncate(trouble: Trouble, path: Path) -> str:
    size = _used(path)
    left = trouble.dice.randrange(size)
    with path.open("r+b") as file:
        file.truncate(left)
    return f"cut from {size} to {left} bytes"


def _used(path: Path) -> int:
    """Preallocated files end in zeros, where damage would say nothing."""
    return max(1, len(path.read_bytes().rstrip(b"\0")))


def _files(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*") if path.is_file() and path.stat().st_size and path.name != "LOCK")


async def _damage(trouble: Trouble, how: Callable[[Trouble, Path], str]) -> None:
    target = trouble.target
    await trouble.all_current()
    node = trouble.one()
    await target.kill(node)
    path = trouble.dice.choice(_files(target.store(node)))
    done = how(trouble, path)
    trouble.detail = f"{node} {path.relative_to(target.store(node))}: {done}"
    await trouble.hold(0.2, 1.0)
    try:
        await target.start(node)
    except HarnessError:
        last = target.tail(node).splitlines()[-1:]
        trouble.detail += f"; it refused to start ({''.join(last)[:200]}) and was given an empty store"
        await target.kill(node)
        empty(target.store(node))
        await target.start(node)
    await trouble.all_current()


async def bit_flip(trouble: Trouble) -> None:
    await _damage(trouble, flip)


async def truncated(trouble: Trouble) -> None:
    await _damage(trouble, truncate)


_FILES = frozenset({"files"})
NEMESES = [
    Nemesis("bit-flip", "files", bit_flip, _FILES),
    Nemesis("truncated-file", "files", truncated, _FILES),
]
