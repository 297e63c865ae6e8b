"""Reads a configuration file into `Options`. Flags are applied over it afterwards, so they win, as in nats-server."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from datetime import datetime

from jetcluster.config.keys import KEYS
from jetcluster.config.options import Options
from jetcluster.config.parser import ConfigNode, parse_text, read_text
from jetcluster.config.reader import Reader
from jetcluster.config.server_block import read_server


def load_file(path: str, env: Mapping[str, str] | None = None) -> tuple[Options, list[str]]:
    """Returns the options of a configuration file, and the warnings that go to stderr (and that `-t` takes for errors).

    Raises ConfigError with the exact text to show.
    """
    return load_text(read_text(path), path, os.environ if env is None else env)


def load_text(text: str, path: str, env: Mapping[str, str]) -> tuple[Options, list[str]]:
    """Does the same for the content of a file."""
    pairs = parse_text(text, path, env)
    options = Options(config_file=path, config_digest=config_digest(pairs))
    reader = Reader(KEYS)
    read_server(reader, pairs, options)
    reader.raise_errors()
    if not pairs:
        reader.pedantic_warnings.append(f"{path}: config has no values or is empty")
    options.warnings += reader.notes
    options.add_inert(dict.fromkeys(f'"{key}"' for key in reader.inert))
    return options, reader.pedantic_warnings


def config_digest(pairs: Mapping[str, ConfigNode]) -> str:
    """Returns `sha256:<hex>`, the same as nats-server's for the same file: the hash of the parsed values as Go's
    encoding/json writes them (keys sorted, no blanks, HTML characters escaped, a newline at the end)."""
    values = {key: node.plain() for key, node in pairs.items()}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_go_value)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    text += "\n"
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _go_value(value: object) -> str:
    assert isinstance(value, datetime), type(value)
    return value.strftime("%Y-%m-%dT%H:%M:%SZ")
