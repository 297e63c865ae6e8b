"""Errors of `tls` blocks (tests/unit/config/test_tls_block.py) are nats-server's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from testkit.harness import find_server
from tests.unit.config.test_tls_block import SAME, block, write

pytestmark = pytest.mark.cluster


def test_the_texts_are_nats_servers(tmp_path: Path) -> None:
    command = find_server("nats-server")
    if command is None:
        pytest.skip("nats-server is not on this machine: run `make tools`")
    file = write(tmp_path, "")
    for text, column, error in SAME:
        file.write_text(block(text))
        ran = subprocess.run(
            [*command, "-t", "-c", "c.conf"], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert ran.stderr.strip() == f"nats-server: c.conf:1:{column}: {error}", text
