"""The top level of a configuration file, and the blocks `jetstream`, `compat` and `websocket`.

Blocks that only nats-server has (gateways, MQTT, OCSP, trusted proxies) are refused by name, because ignoring them
would leave out a port or change logins; their keys are checked first, so that a typing error is reported as one. An
empty block is accepted: it has no effect in nats-server either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jetcluster.config import options as opts
from jetcluster.config.account_options import AuthorizationOptions
from jetcluster.config.exports_block import check_imports
from jetcluster.config.operator_block import settle_operator
from jetcluster.config.options import MIN_LAME_DUCK_SECONDS, PRESETS, JetStreamOptions, Options, WebSocketOptions
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import (
    Bytes,
    Convert,
    FieldError,
    Read,
    Reader,
    Seconds,
    as_address,
    as_bool,
    as_duration,
    as_duration_text,
    as_int,
    as_map,
    as_seconds,
    as_size,
    as_string,
    as_strings,
    as_switch,
    as_texts,
    go_value,
    parse_duration,
    wrong_type,
)
from jetcluster.config.security_block import check_users
from jetcluster.model import durations
from jetcluster.model.machines import MACHINE_TAG, WORKER_TAG

MAX_READ_LEASE_SECONDS = 0.5
"""`RaftConfig.longest_lease`."""
MAX_DRIFT_PERCENT = 50.0
NO_GATEWAYS = "gateways are not supported: connect clusters with leafnodes, mirrors or sources"
NO_OCSP = "ocsp is not supported: certificates are shown without an OCSP response"


def read_server(reader: Reader, pairs: dict[str, ConfigNode], options: Options) -> None:
    """Reads a whole configuration into `options`; errors and warnings are collected in `reader`."""
    reader.block(pairs, options, "")
    settle_operator(options)
    check_users(reader, options)
    check_imports(reader, pairs, options)


def read_http(_reader: Reader, node: ConfigNode, options: Options) -> None:
    options.http_host, options.http_port = as_address("http", node)


def read_https(_reader: Reader, node: ConfigNode, options: Options) -> None:
    options.http_host, options.https_port = as_address("https", node)


def as_lame_duck_duration(reader: Reader, name: str, node: ConfigNode) -> Seconds:
    seconds = as_duration_text(reader, name, node)
    if seconds < MIN_LAME_DUCK_SECONDS:
        given = durations.render(int(seconds * 1e9))
        raise FieldError(f"invalid lame_duck_duration of {given}, minimum is {MIN_LAME_DUCK_SECONDS:.0f} seconds")
    return seconds


def as_lame_duck_grace_period(reader: Reader, name: str, node: ConfigNode) -> Seconds:
    seconds = as_duration_text(reader, name, node)
    if seconds < 0:
        raise FieldError("invalid lame_duck_grace_period, needs to be positive")
    return seconds


def as_int32(reader: Reader, name: str, node: ConfigNode) -> int:
    number = as_int(reader, name, node)
    if not -(2**31) <= number < 2**31:
        raise FieldError(f"{name} value is too big")
    return number


def as_sub_tokens(reader: Reader, name: str, node: ConfigNode) -> int:
    number = as_int(reader, name, node)
    if number > 255:
        raise FieldError("max_sub_tokens value is too big")
    if number < 0:
        raise FieldError("max_sub_tokens value can not be negative")
    return number


def as_tags(reader: Reader, name: str, node: ConfigNode) -> list[str]:
    """Returns the tags of a list or of texts with commas, each once, in lower case. Raises FieldError for those by
    which workers are known (`model.machines`)."""
    words = [part.strip().lower() for text in as_strings(reader, name, node) for part in text.split(",")]
    for prefix in (MACHINE_TAG, WORKER_TAG):
        if any(word.startswith(prefix) for word in words):
            raise FieldError(f'{name} must not begin with "{prefix}", which workers have')
    return list(dict.fromkeys(word for word in words if word))


def as_workers(_reader: Reader, name: str, node: ConfigNode) -> int:
    """Returns the number, 0 for "auto"."""
    from jetcluster.config.workers import workers_of

    try:
        return workers_of(str(node.value) if isinstance(node.value, int | str) else "")
    except ValueError as error:
        raise FieldError(f"{name} {error}, got {go_value(node)}") from error


def as_feature_flags(_reader: Reader, name: str, node: ConfigNode) -> dict[str, bool]:
    for item in as_map(node, name).values():
        if not isinstance(item.value, bool):
            raise wrong_type(name, item, "a boolean", element=True, at=item)
    return {key: bool(item.value) for key, item in as_map(node, name).items()}


def as_log_format(reader: Reader, name: str, node: ConfigNode) -> str:
    text = as_string(reader, name, node)
    if text not in ("text", "json"):
        raise FieldError(f'log_format must be "text" or "json", got "{text}"')
    return text


def trace_and(attribute: str) -> Read:
    """Returns a reader of `trace_verbose` or `trace_headers`, which sets `trace` to the same value."""

    def read(reader: Reader, node: ConfigNode, options: Options) -> None:
        options.trace = as_bool(reader, attribute, node)
        setattr(options, attribute, options.trace)

    return read


def refuse_default_domain(_reader: Reader, node: ConfigNode, _options: Options) -> None:
    if as_map(node, "default_js_domain"):
        raise FieldError("default_js_domain is not supported: clients name the domain they mean")


def read_jetstream(reader: Reader, node: ConfigNode, options: Options) -> None:
    given = as_switch("jetstream", node)
    options.jetstream.enabled = bool(given) or isinstance(given, dict)
    if isinstance(given, dict):
        reader.block(given, options.jetstream, "jetstream")


def nested(path: str) -> Read:
    """Returns a reader of a block whose values go to the options of the enclosing one."""

    def read(reader: Reader, node: ConfigNode, target: Any) -> None:
        reader.block(as_map(node, path.rpartition(".")[2]), target, path)

    return read


def store_dir_of(target_of: Callable[[Any], JetStreamOptions]) -> Read:
    """Returns a reader of the store's folder, which may be given once: at the top level or in the block. `target_of`
    returns the JetStreamOptions of the reader's target."""

    def read(reader: Reader, node: ConfigNode, target: Any) -> None:
        jetstream = target_of(target)
        if jetstream.store_dir:
            raise FieldError("Duplicate 'store_dir' configuration")
        jetstream.store_dir = as_string(reader, "store_dir", node)

    return read


def as_cipher(reader: Reader, name: str, node: ConfigNode) -> str:
    word = as_string(reader, name, node)
    cipher = {"chacha": "chachapoly", "chachapoly": "chachapoly", "aes": "aes"}.get(word.lower())
    if cipher is None:
        raise FieldError(f'Unknown cipher type: "{word}"')
    return cipher


def key_reload(old: JetStreamOptions, new: JetStreamOptions) -> str:
    """The refusal of a reload that encrypts or decrypts the store, or leaves out the key in force, or ""."""
    if old.encryption_key == new.encryption_key:
        return ""
    if not old.encryption_key or not new.encryption_key:
        return "jetstream encryption on or off"
    if new.prev_encryption_key != old.encryption_key:
        return "jetstream key: prev_encryption_key is not the key in force"
    return ""


def sizes_reload(old: JetStreamOptions, new: JetStreamOptions) -> str:
    """The refusal of a reload that makes the store smaller, or gives or takes its own sizes, or ""."""
    limits = [(old.max_memory_store, new.max_memory_store), (old.max_file_store, new.max_file_store)]
    if any(before < 0 <= after for before, after in limits):
        return "jetstream dynamic max memory and store"
    if any(after < 0 <= before for before, after in limits):
        return "jetstream max memory and max store"
    return "decreasing jetstream max memory and store" if any(after < before for before, after in limits) else ""


def payload_reload(old: Options, new: Options) -> str:
    most = opts.LARGE_PAYLOAD_BYTES  # the nodes of a link agree on the largest frame when they connect
    return f"max_payload over {most}: new={new.max_payload}" if new.max_payload > max(old.max_payload, most) else ""


def as_sync_interval(reader: Reader, name: str, node: ConfigNode) -> Seconds | None:
    """Returns None for "always", or seconds; a warning at start names the loss of durability."""
    if isinstance(node.value, str) and node.value.lower() == "always":
        return None
    return as_duration(reader, name, node)


def as_read_lease(reader: Reader, name: str, node: ConfigNode) -> Seconds:
    seconds = as_seconds(reader, name, node)
    if not 0 <= seconds <= MAX_READ_LEASE_SECONDS:
        raise FieldError(f"{name} must be from 0 to {MAX_READ_LEASE_SECONDS * 1000:.0f}ms")
    return seconds


def as_share(_reader: Reader, name: str, node: ConfigNode) -> float:
    """Returns the share of "10%", from 0 to a half. Raises FieldError for everything else."""
    text = str(node.value)
    try:
        percent = float(text.removesuffix("%")) if text.endswith("%") else -1.0
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= MAX_DRIFT_PERCENT:
        raise FieldError(f'{name} must be a text such as "10%", at most {MAX_DRIFT_PERCENT:.0f}%, got {go_value(node)}')
    return percent / 100


def as_tag_prefix(reader: Reader, name: str, node: ConfigNode) -> str:
    return as_string(reader, name, node).strip().lower()


def absolute(least: int, most: int = 0) -> Convert:
    """Returns a converter for an integer from `least` to `most`; `most` 0: no upper bound."""

    def convert(_reader: Reader, name: str, node: ConfigNode) -> int:
        number = node.value if isinstance(node.value, int) and not isinstance(node.value, bool) else None
        if number is None or number < least or (most and number > most):
            between = f" between {least} and {most}" if most else ""
            raise FieldError(f'Expected an absolute size for "{name}"{between}, got {go_value(node)}')
        return number

    return convert


def as_compact_size(reader: Reader, name: str, node: ConfigNode) -> Bytes:
    size = as_size(reader, name, node)
    if size < 0:
        raise FieldError(f'Expected an absolute size for "{name}", got {go_value(node)}')
    return size


def read_compat(reader: Reader, node: ConfigNode, options: Options) -> None:
    """Reads `seeds`, `nats-server`, or a map of single choices."""
    if isinstance(node.value, str):
        if node.value not in PRESETS:
            words = " or ".join(f'"{word}"' for word in PRESETS)
            raise FieldError(f'compat must be {words} or a map, got "{node.value}"')
        options.compat = replace(PRESETS[node.value])
        return
    if not isinstance(node.value, dict):
        raise wrong_type("compat", node, "a string or a map")
    reader.block(node.value, options.compat, "compat")


def read_websocket(reader: Reader, node: ConfigNode, options: Options) -> None:
    websocket = options.websocket = WebSocketOptions()
    reader.block(as_map(node, "websocket"), websocket, "websocket")


def read_websocket_login(reader: Reader, node: ConfigNode, websocket: WebSocketOptions) -> None:
    """Reads one user or a token."""
    websocket.authorization = AuthorizationOptions()
    reader.block(as_map(node, "authorization"), websocket.authorization, "websocket.authorization")


def as_handshake_timeout(reader: Reader, name: str, node: ConfigNode) -> Seconds:
    """Returns seconds. A bare number is taken without the warning that other durations have."""
    if not isinstance(node.value, str):
        return float(as_int(reader, name, node))
    try:
        return parse_duration(node.value)
    except ValueError as error:
        raise FieldError(str(error)) from error


def as_headers(reader: Reader, name: str, node: ConfigNode) -> dict[str, str]:
    found = as_texts(reader, name, node)
    for key, text in found.items():
        if any(char in key + text for char in "\r\n\0") or ":" in key or not key.strip():
            raise FieldError(f"error parsing header key {key}: not a header", as_map(node, name)[key])
    return found


# --- blocks that this server does not have ----------------------------------------------------------------------------


def read_gateway(reader: Reader, node: ConfigNode, _options: Options) -> None:
    """Refuses the block unless it is empty; nats-server does not start with a name alone either."""
    is_known = reader.block(as_map(node, "gateway"), None, "gateway")
    pairs = {key.lower(): item for key, item in as_map(node, "gateway").items()}
    name = pairs.get("name")
    if name is not None and isinstance(name.value, str) and " " in name.value:
        raise FieldError("gateway name cannot contain spaces", name)
    remotes = pairs.get("gateways")
    for item in remotes.value if remotes is not None and isinstance(remotes.value, list) else []:
        if isinstance(item.value, dict):
            is_known &= reader.block(item.value, None, "gateway.gateways")
    if is_known and pairs:
        raise FieldError(NO_GATEWAYS)


def empty(name: str, text: str) -> Read:
    """Returns a reader that refuses a block unless it is empty."""

    def read(reader: Reader, node: ConfigNode, _options: Options) -> None:
        pairs = as_map(node, name)
        if reader.block(pairs, None, name) and pairs:
            raise FieldError(text)

    return read


def read_ocsp(_reader: Reader, node: ConfigNode, _options: Options) -> None:
    """Refuses the block unless it is `false` or `mode: never`."""
    if isinstance(node.value, bool):
        if node.value:
            raise FieldError(NO_OCSP)
        return
    if not isinstance(node.value, dict):
        raise wrong_type("ocsp", node, "a boolean or a map")
    for key, item in node.value.items():
        if key.lower() == "mode":
            if not isinstance(item.value, str):
                raise wrong_type("mode", item, "a string", at=item)
            if item.value.lower() not in ("always", "must", "auto", "never"):
                raise FieldError("error parsing ocsp config: unsupported ocsp mode string", item)
            if item.value.lower() == "never":
                return
    raise FieldError(NO_OCSP)
