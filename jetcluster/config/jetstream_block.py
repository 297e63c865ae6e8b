"""The `jetstream` block: `true`, `enabled`, `disabled` or a map."""

from __future__ import annotations

from jetcluster.config.options import JetStreamOptions, Options
from jetcluster.config.parser import Node
from jetcluster.config.reader import (
    Blocks,
    FieldError,
    Fields,
    Reader,
    as_bool,
    as_duration,
    as_int,
    as_map,
    as_string,
    storage_size,
)
from jetcluster.config.security_block import refuse


def as_sync_interval(reader: Reader, name: str, node: Node) -> float | None:
    """None for "always"; a duration is taken as given, and the operator is told what it gives up."""
    if isinstance(node.value, str) and node.value.lower() == "always":
        return None
    return as_duration(reader, name, node)


_FIELDS: Fields = {
    **dict.fromkeys(("enabled", "enable"), ("enabled", as_bool)),
    "strict": ("strict", as_bool),
    **dict.fromkeys(("store", "store_dir", "storedir"), ("store_dir", as_string)),
    **dict.fromkeys(
        ("max_memory_store", "max_mem_store", "max_mem"), ("max_memory_store", storage_size("max_mem_store"))
    ),
    **dict.fromkeys(("max_file_store", "max_file"), ("max_file_store", storage_size("max_file_store"))),
    "domain": ("domain", as_string),
    "sync_interval": ("sync_interval", as_sync_interval),
    "unique_tag": ("unique_tag", as_string),
    "max_outstanding_catchup": ("max_outstanding_catchup", storage_size("max_outstanding_catchup")),
    "max_buffered_size": ("max_buffered_size", storage_size("max_buffered_size")),
    "max_buffered_msgs": ("max_buffered_msgs", as_int),
    "request_queue_limit": ("request_queue_limit", as_int),
}
_LIMIT_FIELDS: Fields = {
    "max_ack_pending": ("max_ack_pending", as_int),
    "max_ha_assets": ("max_ha_assets", as_int),
    "max_request_batch": ("max_request_batch", as_int),
    "duplicate_window": ("duplicate_window", as_duration),
}
_BATCH_FIELDS: Fields = {
    "max_inflight_per_stream": ("max_batch_inflight_per_stream", as_int),
    "max_inflight_total": ("max_batch_inflight_total", as_int),
    "max_msgs": ("max_batch_size", as_int),
    "timeout": ("max_batch_timeout", as_duration),
    "allow_msg_id": ("batch_allow_msg_id", as_bool),
}
_OBJECT_FIELDS: Fields = {
    "max_uploads": ("max_object_uploads", as_int),
    "idle_timeout": ("object_idle_timeout", as_duration),
}
_LIMIT_INERT = frozenset({"max_ha_assets"})
_INERT = frozenset(
    {
        "unique_tag",
        "max_outstanding_catchup",
        "max_buffered_size",
        "max_buffered_msgs",
        "request_queue_limit",
        "info_queue_limit",
        "extension_hint",
        "tpm",
        "meta_compact",
        "meta_compact_size",
        "meta_compact_sync",
        "max_concurrent_io",
    }
)


def _limits(reader: Reader, node: Node, jetstream: JetStreamOptions) -> None:
    pairs = as_map(node, "jetstream limits")
    blocks: Blocks = {"batch": _batch, "objects": _objects}
    reader.block(pairs, jetstream, _LIMIT_FIELDS, blocks, _LIMIT_INERT, path="jetstream.limits")


def _batch(reader: Reader, node: Node, jetstream: JetStreamOptions) -> None:
    pairs = as_map(node, "batch limits")
    reader.block(pairs, jetstream, _BATCH_FIELDS, path="jetstream.limits.batch")


def _objects(reader: Reader, node: Node, jetstream: JetStreamOptions) -> None:
    """Ours: nats-server has no object service."""
    pairs = as_map(node, "object limits")
    reader.block(pairs, jetstream, _OBJECT_FIELDS, path="jetstream.limits.objects")


_ENCRYPTION = refuse("encryption at rest is not supported")
_BLOCKS: Blocks = {
    "limits": _limits,
    **dict.fromkeys(("key", "ek", "encryption_key", "prev_key", "cipher"), _ENCRYPTION),
}


def read_jetstream(reader: Reader, node: Node, options: Options) -> None:
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
    jetstream.enabled = True
    reader.block(as_map(node, "JetStream"), jetstream, _FIELDS, _BLOCKS, _INERT, path="jetstream")
