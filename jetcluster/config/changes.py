"""The differences between the running `Options` and those of a reload.

A change of a key that is `fixed`, or beyond its `bound` (in `keys`), refuses the whole reload, so that the server
always runs with the options of one file. Texts are nats-server's.
"""

from __future__ import annotations

from dataclasses import fields, replace
from operator import attrgetter

from jetcluster.config.keys import KEYS
from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import JetStreamOptions, OperatorOptions, Options
from jetcluster.config.reader import friendly_bytes
from jetcluster.model import durations

_DURATIONS = frozenset(key.attribute for block in KEYS.values() for key in block.keys if key.type.startswith("Seconds"))
_WITHOUT_VALUES = frozenset(
    {"users", "tls", "store_dir", "operator.tokens", "operator.trusted_keys", "operator.resolver"}
)
"""Attributes whose values are secret or too long for a log line."""
_NOT_COMPARED = frozenset(
    {"config_file", "config_digest", "warnings", "inert", "cluster", "jetstream", "leafnodes", "operator"}
)
_NAMES = {
    "accounts": "accounts",
    "tls": "tls",
    "websocket": "websocket",
    "mappings": "mappings",
    "compat": "compat",
    "server_tags": "tags",
    "server_metadata": "metadata",
    "cluster.routes": "cluster routes",
    "cluster": "cluster",
    "leafnodes": "LeafNode remotes",
}
"""Names in the log for options whose new values are not shown."""
_OPERATOR_KEYS = {
    "preload": "resolver_preload",
    "pinned_accounts": "resolver_pinned_accounts",
    "resolver_tls": "resolver_tls",
    "default_sentinel": "default_sentinel",
}
"""Attributes of `OperatorOptions` that a reload changes -> their keys."""


def changed_fields(old: Options, new: Options) -> list[str]:
    """Returns the names of the fields of `Options` that differ, and "cluster.routes" if the routes do. Raises
    ConfigError when one of the fields cannot change while the server runs."""
    _refuse(old, new, {name: shown for name, shown in _fixed("").items() if "." not in name})
    _refuse(old.cluster, new.cluster, _fixed("cluster"))
    for block in ("websocket", "jetstream", "leafnodes", "cluster"):
        _refuse(getattr(old, block), getattr(new, block), _fixed(block))
        _refuse_beyond(getattr(old, block), getattr(new, block), block)
    _refuse_beyond(old, new, "")
    _refuse(old, new, {name: shown for name, shown in _fixed("").items() if "." in name})
    names = [field.name for field in fields(Options) if field.name not in _NOT_COMPARED]
    found = [name for name in names if getattr(old, name) != getattr(new, name)]
    if old.cluster.routes != new.cluster.routes:
        found.append("cluster.routes")
    elif old.cluster != new.cluster:
        found.append("cluster")
    return found + [name for name in ("jetstream", "leafnodes", "operator") if getattr(old, name) != getattr(new, name)]


def described(changed: list[str], old: Options, new: Options) -> list[str]:
    """Returns the texts that the log shows after `Reloaded: `, one per change."""
    lines: list[str] = []
    for name in changed:
        if name == "authorization":
            lines += _authorization_lines(old, new)
        elif name == "jetstream":
            lines += _jetstream_lines(old.jetstream, new.jetstream)
        elif name == "operator":
            lines += _operator_lines(old.operator, new.operator)
        elif name == "no_fast_producer_stall":
            lines.append(f"fast producers will {'not ' if new.no_fast_producer_stall else ''}be stalled")
        else:
            lines.append(_NAMES.get(name) or f"{name} = {_text(name, getattr(new, name))}")
    return lines


def _authorization_lines(old: Options, new: Options) -> list[str]:
    before, after = old.authorization, new.authorization
    lines = []
    if (before.users, before.default_permissions) != (after.users, after.default_permissions):
        lines.append("authorization users")
    for attribute, shown in (("user", "username"), ("password", "password"), ("token", "token")):
        if getattr(before, attribute) != getattr(after, attribute):
            lines.append(f"authorization {shown}")
    if before.timeout != after.timeout:
        lines.append(f"authorization timeout = {after.timeout:g}")
    return lines or ["authorization"]


def _jetstream_lines(old: JetStreamOptions, new: JetStreamOptions) -> list[str]:
    lines = []
    for attribute, shown in (("max_memory_store", "max_mem_store"), ("max_file_store", "max_file_store")):
        if getattr(old, attribute) != getattr(new, attribute):
            lines.append(f"JetStream {shown} = {friendly_bytes(getattr(new, attribute))}")
    keys = {name: getattr(old, name) for name in ("encryption_key", "prev_encryption_key", "cipher")}
    if any(getattr(new, name) != before for name, before in keys.items()):
        lines.append("JetStream encryption")
    balance = {name: getattr(old, name) for name in ("balance_leaders", "balance_replicas")}
    if any(getattr(new, name) != before for name, before in balance.items()):
        lines.append("JetStream balance")
    same = replace(new, max_memory_store=old.max_memory_store, max_file_store=old.max_file_store, **keys, **balance)
    return lines if same == old else [*lines, "JetStream limits"]


def _operator_lines(old: OperatorOptions, new: OperatorOptions) -> list[str]:
    """Returns the keys that differ, without their values: they are long, and the sentinel is a secret."""
    return [shown for attribute, shown in _OPERATOR_KEYS.items() if getattr(old, attribute) != getattr(new, attribute)]


def _fixed(block: str) -> dict[str, str]:
    """Returns the attributes of the block's options that must not change -> their names in the refusal."""
    return {name: shown for key in KEYS[block].keys for name, shown in key.fixed.items()}


def _refuse(old: object, new: object, names: dict[str, str]) -> None:
    for name, shown in names.items():
        before, after = attrgetter(name)(old), attrgetter(name)(new)
        if before != after:
            values = "" if name in _WITHOUT_VALUES else f": old={_text(name, before)}, new={_text(name, after)}"
            raise ConfigError(f"config reload not supported for {shown}{values}")


def _refuse_beyond(old: object, new: object, block: str) -> None:
    for key in KEYS[block].keys:
        if key.bound is not None and (problem := key.bound.problem(old, new)):
            raise ConfigError(f"config reload not supported for {problem}")


def _text(name: str, value: object) -> str:
    """Returns a value as Go prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{' '.join(map(str, value))}]"
    if name in _DURATIONS:
        return "always" if value is None else durations.render(round(float(str(value)) * 1e9))
    return str(value)
