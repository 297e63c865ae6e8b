"""The `jetstream` block: `true`, `enabled`, `disabled` or a map."""

from __future__ import annotations

from typing import Any

from jetcluster.config.options import JetStreamOptions, Options
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import (
    INERT,
    Blocks,
    Convert,
    FieldError,
    Fields,
    Reader,
    as_bool,
    as_duration,
    as_duration_text,
    as_int,
    as_map,
    as_string,
    go_type,
    go_value,
    queue_limit,
    refuse,
    storage_size,
)


def as_sync_interval(reader: Reader, name: str, node: ConfigNode) -> float | None:
    """None for "always"; a duration is taken as given, and the operator is told what it gives up."""
    if isinstance(node.value, str) and node.value.lower() == "always":
        return None
    return as_duration(reader, name, node)


def as_store_dir(target_of: Any) -> Any:
    """A reader of the store's folder, which may be given once: at the top level or in the block. `target_of` finds the
    JetStreamOptions in what is read into."""

    def read(reader: Reader, node: ConfigNode, target: Any) -> None:
        jetstream = target_of(target)
        if jetstream.store_dir:
            raise FieldError("Duplicate 'store_dir' configuration")
        jetstream.store_dir = as_string(reader, "store_dir", node)

    return read


def _tag_prefix(reader: Reader, name: str, node: ConfigNode) -> str:
    return as_string(reader, name, node).strip().lower()


def _absolute(least: int, most: int = 0) -> Convert:
    def convert(_reader: Reader, name: str, node: ConfigNode) -> int:
        value = node.value
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number or value < least or (most and value > most):  # type: ignore[operator]
            between = f" between {least} and {most}" if most else ""
            raise FieldError(f'Expected an absolute size for "{name}"{between}, got {go_value(node)}')
        return value  # type: ignore[return-value]

    return convert


def _meta_compact_size(reader: Reader, name: str, node: ConfigNode) -> int:
    size: int = storage_size(name)(reader, name, node)
    if size < 0:
        raise FieldError(f'Expected an absolute size for "{name}", got {go_value(node)}')
    return size


FIELDS: Fields = {
    **dict.fromkeys(("enabled", "enable"), ("enabled", as_bool)),
    "strict": ("strict", as_bool),
    **dict.fromkeys(
        ("max_memory_store", "max_mem_store", "max_mem"), ("max_memory_store", storage_size("max_mem_store"))
    ),
    **dict.fromkeys(("max_file_store", "max_file"), ("max_file_store", storage_size("max_file_store"))),
    "domain": ("domain", as_string),
    **dict.fromkeys(("sync_interval", "sync"), ("sync_interval", as_sync_interval)),
    "unique_tag": ("unique_tag", _tag_prefix),
    "max_buffered_size": ("max_buffered_size", storage_size("max_buffered_size")),
    "max_buffered_msgs": ("max_buffered_msgs", queue_limit),
    "request_queue_limit": ("request_queue_limit", queue_limit),
    "info_queue_limit": (INERT, queue_limit),
    "max_outstanding_catchup": (INERT, storage_size("max_outstanding_catchup")),
    "extension_hint": (INERT, as_string),
    "meta_compact": (INERT, _absolute(0)),
    "meta_compact_size": (INERT, _meta_compact_size),
    "meta_compact_sync": (INERT, as_bool),
    "max_concurrent_io": (INERT, _absolute(4, 8192)),
}
LIMIT_FIELDS: Fields = {
    "max_ack_pending": ("max_ack_pending", as_int),
    "max_ha_assets": ("max_ha_assets", as_int),
    "max_request_batch": ("max_request_batch", as_int),
    "duplicate_window": ("duplicate_window", as_duration_text),
    "default_max_consumers": ("default_max_consumers", as_int),
}
BATCH_FIELDS: Fields = {
    "max_inflight_per_stream": ("max_batch_inflight_per_stream", as_int),
    "max_inflight_total": ("max_batch_inflight_total", as_int),
    "max_msgs": ("max_batch_size", as_int),
    "timeout": ("max_batch_timeout", as_duration),
    "allow_msg_id": ("batch_allow_msg_id", as_bool),
}
OBJECT_FIELDS: Fields = {
    "max_uploads": ("max_object_uploads", as_int),
    "idle_timeout": ("object_idle_timeout", as_duration),
}


def _map(node: ConfigNode, label: str) -> dict[str, ConfigNode]:
    if not isinstance(node.value, dict):
        raise FieldError(f"Expected a map to define {label}, got {go_type(node)}")
    return node.value


def _limits(reader: Reader, node: ConfigNode, jetstream: JetStreamOptions) -> None:
    pairs = _map(node, "JetStreamLimits")
    blocks: Blocks = {"batch": _batch, "objects": _objects}
    reader.block(pairs, jetstream, LIMIT_FIELDS, blocks, path="jetstream.limits")


def _batch(reader: Reader, node: ConfigNode, jetstream: JetStreamOptions) -> None:
    pairs = _map(node, "batch limits")
    reader.block(pairs, jetstream, BATCH_FIELDS, path="jetstream.limits.batch")


def _objects(reader: Reader, node: ConfigNode, jetstream: JetStreamOptions) -> None:
    """Ours: nats-server has no object service."""
    pairs = as_map(node, "object limits")
    reader.block(pairs, jetstream, OBJECT_FIELDS, path="jetstream.limits.objects")


_ENCRYPTION = refuse("encryption at rest is not supported: encrypt the file system that holds store_dir")
_KEYS = ("key", "ek", "encryption_key", "prev_key", "prev_ek", "prev_encryption_key", "cipher", "tpm")
BLOCKS: Blocks = {
    "limits": _limits,
    **dict.fromkeys(("store", "store_dir", "storedir"), as_store_dir(lambda jetstream: jetstream)),
    **dict.fromkeys(_KEYS, _ENCRYPTION),
}


def read_jetstream(reader: Reader, node: ConfigNode, options: Options) -> None:
    jetstream = options.jetstream
    value = node.value
    if isinstance(value, bool):
        jetstream.enabled = value
        return
    if isinstance(value, str):
        word = value.lower()
        if word not in ("enabled", "enable", "disabled", "disable"):
            raise FieldError(f"Expected 'enabled' or 'disabled' for string value, got '{value}'")
        jetstream.enabled = word.startswith("enable")
        return
    if not isinstance(value, dict):
        raise FieldError(f"Expected map, bool or string to define JetStream, got {go_type(node)}")
    jetstream.enabled = True
    reader.block(value, jetstream, FIELDS, BLOCKS, path="jetstream")
