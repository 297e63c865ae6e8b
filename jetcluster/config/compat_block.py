"""The `compat` block (ours): `seeds`, `nats-server`, or a map of single choices."""

from __future__ import annotations

from dataclasses import replace

from jetcluster.config.options import PRESETS, Options
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import FieldError, Fields, Reader, as_bool, go_type, one_of

FIELDS: Fields = {
    "ack_policy": ("ack_policy", one_of("none", "explicit")),
    "batch_msg_id": ("batch_msg_id", one_of("deduplicate", "refuse")),
    "auto_allow_direct": ("auto_allow_direct", as_bool),
    "up_to_time": ("up_to_time", one_of("inclusive", "exclusive")),
    "empty_policy": ("empty_policy", one_of("absent", "refuse")),
    "seed_error_codes": ("seed_error_codes", as_bool),
    "duplicate_window_max": ("duplicate_window_max", as_bool),
}


def read_compat(reader: Reader, node: ConfigNode, options: Options) -> None:
    value = node.value
    if isinstance(value, str):
        if value not in PRESETS:
            words = " or ".join(f'"{word}"' for word in PRESETS)
            raise FieldError(f'compat must be {words} or a map, got "{value}"')
        options.compat = replace(PRESETS[value])
        return
    if not isinstance(value, dict):
        raise FieldError(f"Expected map or string to define compat, got {go_type(node)}")
    reader.block(value, options.compat, FIELDS, path="compat")
