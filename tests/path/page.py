"""docs/way-of-a-message.md, written from what was counted."""

from __future__ import annotations

from pathlib import Path

from tests.path.counter import Call, files
from tests.path.ways import WAYS

PAGE = Path(__file__).parents[2] / "docs" / "way-of-a-message.md"

_HEAD = """# The way of a message

Which functions run between a request and its answer, and until all that follows from it is done. This page is written
by `python -m tests.path --write`; `tests/path/test_ways.py` fails when a way gets longer than its bound.

Counted are calls of functions of `jetcluster`, of the second and later of equal requests, on all threads and nodes,
with Python alone: [compiled loops](mechanisms/compiled-loops.md) take the place of the first few of a publish. The
indentation shows who calls; a line at the margin is called by the event loop or by a thread. A function that is called
several times in a row stands there once.

With three replicas the disk, the sockets and the cutting of their bytes into frames are twins of the tests and are not
counted (`FileDisk`, `TcpLink`, `FrameReader`).

| way | calls | files | bound |
|---|---|---|---|
"""


def lines(calls: list[Call]) -> list[str]:
    """One line per call; repeated ones are counted."""
    found: list[tuple[str, int]] = []
    for call in calls:
        text = "  " * call.depth + f"{call.file} {call.function}"
        if found and found[-1][0] == text:
            found[-1] = text, found[-1][1] + 1
        else:
            found.append((text, 1))
    return [text if count == 1 else f"{text} ({count} times)" for text, count in found]


def render(ways: dict[str, list[Call]]) -> str:
    parts = [_HEAD]
    for way in WAYS:
        calls = ways[way.key]
        parts.append(f"| {way.title} | {len(calls)} | {len(files(calls))} | {way.calls} calls, {way.files} files |\n")
    for way in WAYS:
        text = "\n".join(lines(ways[way.key]))
        parts.append(f"\n## {way.title}\n\n{way.told}\n\n```text\n{text}\n```\n")
    return "".join(parts)
