"""Configuration file + flags -> `Options`. Flags win, as in the real server: file first, then flags over it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import Options
from jetcluster.config.parser import parse_file
from jetcluster.config.reader import Reader
from jetcluster.config.server_block import read_server


def load_file(path: str, env: Mapping[str, str] | None = None) -> tuple[Options, list[str]]:
    """`Options` of a configuration file, and warnings the real server prints to stderr (and `-t` fails on).

    Raises `ConfigError` with the exact text to show.
    """
    pairs = parse_file(path, os.environ if env is None else env)
    options = Options(config_file=path, config_digest=file_digest(path))
    reader = Reader()
    read_server(reader, pairs, options)
    reader.raise_errors()
    options.warnings += reader.notes
    options.warnings += [
        f'Configuration key "{key}" is accepted but has no effect yet' for key in dict.fromkeys(reader.inert)
    ]
    return options, reader.pedantic_warnings


def file_digest(path: str) -> str:
    """`sha256:<hex>` of the file's bytes, as `-t` and the start-up log show it."""
    try:
        return f"sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()}"
    except OSError as error:
        raise ConfigError(f"open {path}: {(error.strerror or str(error)).lower()}") from error
