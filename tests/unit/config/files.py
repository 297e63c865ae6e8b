"""Configurations that tests write and load."""

from __future__ import annotations

from pathlib import Path

from jetcluster.config.load import load_file
from jetcluster.config.options import Options


def load(text: str) -> Options:
    Path("c.conf").write_text(text)
    return load_file("c.conf", {})[0]
