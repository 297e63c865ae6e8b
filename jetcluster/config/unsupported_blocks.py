"""Blocks of nats-server that this server does not have: gateways, MQTT, OCSP, trusted proxies.

Their keys are checked against the real server's, so that a typing error is told as one; then a block that would open a
port or change who is let in is refused by name. An empty one does nothing there either.
"""

from __future__ import annotations

from jetcluster.config.options import Options
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import FieldError, Reader, as_map, go_quoted, go_type

_GATEWAY = frozenset(
    [
        "name",
        "listen",
        "host",
        "net",
        "port",
        "authorization",
        "tls",
        "advertise",
        "connect_retries",
        "connect_backoff",
        "reject_unknown_cluster",
        "reject_unknown",
        "gateways",
        "write_deadline",
        "write_timeout",
    ]
)
_REMOTE_GATEWAY = frozenset(["name", "tls", "url", "urls"])
_MQTT = frozenset(
    [
        "listen",
        "host",
        "net",
        "port",
        "tls",
        "authorization",
        "authentication",
        "no_auth_user",
        "ack_wait",
        "ackwait",
        "js_api_timeout",
        "api_timeout",
        "max_ack_pending",
        "max_pending",
        "max_inflight",
        "js_domain",
        "stream_replicas",
        "consumer_replicas",
        "consumer_memory_storage",
        "consumer_inactive_threshold",
        "consumer_auto_cleanup",
        "reject_qos2_publish",
        "downgrade_qos2_subscribe",
    ]
)
_PROXIES = frozenset({"trusted"})
NO_GATEWAYS = "gateways are not supported: connect clusters with leafnodes, mirrors or sources"
NO_MQTT = "mqtt is not supported"
NO_OCSP = "ocsp is not supported: certificates are shown without an OCSP response"
NO_PROXIES = "proxies are not supported: clients log in themselves"


def _check_keys(reader: Reader, pairs: dict[str, ConfigNode], known: frozenset[str]) -> bool:
    """True when all keys are known, or define a variable."""
    unknown = [(key, node) for key, node in pairs.items() if key.lower() not in known and not node.used_as_variable]
    for key, node in unknown:
        reader.error(node, f'unknown field "{go_quoted(key)}"')
    return not unknown


def read_gateway(reader: Reader, node: ConfigNode, _options: Options) -> None:
    """Refused unless it is empty: the real server does not start with a name alone either."""
    if not isinstance(node.value, dict):
        raise FieldError(f"Expected gateway to be a map, got {go_type(node)}")
    is_known = _check_keys(reader, node.value, _GATEWAY)
    pairs = {key.lower(): item for key, item in node.value.items()}
    name = pairs.get("name")
    if name is not None and isinstance(name.value, str) and " " in name.value:
        raise FieldError("gateway name cannot contain spaces", name)
    remotes = pairs.get("gateways")
    for item in remotes.value if remotes is not None and isinstance(remotes.value, list) else []:
        if isinstance(item.value, dict):
            is_known &= _check_keys(reader, item.value, _REMOTE_GATEWAY)
    if is_known and pairs:
        raise FieldError(NO_GATEWAYS)


def read_mqtt(reader: Reader, node: ConfigNode, _options: Options) -> None:
    pairs = as_map(node, "mqtt")
    if _check_keys(reader, pairs, _MQTT) and pairs:
        raise FieldError(NO_MQTT)


def read_ocsp(_reader: Reader, node: ConfigNode, _options: Options) -> None:
    """`false` and `mode: never` are what we do."""
    if isinstance(node.value, bool):
        if node.value:
            raise FieldError(NO_OCSP)
        return
    if not isinstance(node.value, dict):
        raise FieldError(f"error parsing ocsp config: unsupported type {go_type(node)}")
    for key, item in node.value.items():
        if key.lower() == "mode":
            if not isinstance(item.value, str) or item.value.lower() not in ("always", "must", "auto", "never"):
                raise FieldError(f"error parsing ocsp config: unsupported ocsp mode {go_type(item)}", item)
            if item.value.lower() == "never":
                return
    raise FieldError(NO_OCSP)


def read_proxies(reader: Reader, node: ConfigNode, _options: Options) -> None:
    pairs = as_map(node, "proxies")
    if _check_keys(reader, pairs, _PROXIES) and pairs:
        raise FieldError(NO_PROXIES)
