"""`import_cases.txt`: configurations with exports, imports and mappings, parted by `---`; behind `=> ` what nats-server
2.15.2 says of one as `c.conf`. The interop test asks the real server for each."""

from __future__ import annotations

from pathlib import Path


def _read() -> list[tuple[str, str]]:
    text = Path(__file__).with_suffix(".txt").read_text().rstrip("\n")
    return [(config, told) for config, _, told in (case.partition("\n=> ") for case in text.split("\n---\n"))]


CASES = _read()
