"""The `cluster` block, and the cluster URL of `--cluster` / `--cluster_listen`."""

from __future__ import annotations

from jetcluster.config.options import ClusterOptions, Options
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import (
    INERT,
    Blocks,
    FieldError,
    Fields,
    Reader,
    as_bool,
    as_duration,
    as_int,
    as_map,
    as_name,
    as_string,
    as_strings,
    as_write_timeout,
    go_quoted,
    go_type,
    mismatch,
    parse_duration,
    read_listen,
    refuse,
    split_address,
    without_secret,
)
from jetcluster.config.security_block import CLUSTER_PERMISSIONS, read_cluster_authorization
from jetcluster.config.tls_block import read_link_tls


def split_url(text: str) -> tuple[str, str, str, int]:
    """(user, password, host, port) of `nats://[user:password@]host:port`; the scheme may be left out.

    Not `urllib.parse`: its `.port` refuses -1, which means a random port here. Raises FieldError.
    """
    rest = text.split("://", 1)[-1].split("/", 1)[0]
    credentials, at, address = rest.rpartition("@")
    user, _, password = credentials.partition(":") if at else ("", "", "")
    if ":" not in address:
        raise FieldError(f"address {address}: missing port in address" if "://" in text else "missing port in address")
    host, port = split_address(address)
    return user, password, host, port


def _routes(reader: Reader, node: ConfigNode, cluster: ClusterOptions) -> None:
    if not isinstance(node.value, list):
        raise mismatch(node, "[]interface {}")
    cluster.routes = []
    known: set[str] = set()
    for item in node.value:
        if not isinstance(item.value, str):
            reader.error(item, str(mismatch(item, "string")))
            continue
        url = item.value
        try:
            split_url(url)
        except FieldError as error:
            raise FieldError(f'error parsing route url ["{without_secret(url)}"]: {error}', item) from error
        if url in known:
            reader.warn(
                item, f'invalid use of field "{go_quoted(without_secret(url))}": Duplicate route entry detected'
            )
            continue
        known.add(url)
        cluster.routes.append(url)


def as_compression(reader: Reader, name: str, node: ConfigNode) -> str:
    """The mode; `Options.problem` says whether there is one of that name. `rtt_thresholds` are checked and let go:
    links here are not compressed."""
    value = node.value
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "s2_auto" if value else "off"
    if not isinstance(value, dict):
        raise FieldError(f'field "{name}" should be a boolean or a structure, got {go_type(node)}')
    mode = ""
    for key, item in value.items():
        if key.lower() == "mode":
            if not isinstance(item.value, str):
                raise FieldError(str(mismatch(item, "string")), item)
            mode = item.value
        elif key.lower() in ("rtt_thresholds", "thresholds", "rtts", "rtt"):
            for threshold in as_strings(reader, key, item):
                try:
                    parse_duration(threshold)
                except ValueError as error:
                    raise FieldError(str(error), item) from error
        elif not item.used_as_variable:
            raise FieldError(f'unknown field "{go_quoted(key)}"', item)
    return mode


FIELDS: Fields = {
    "name": ("name", as_name),
    "host": ("host", as_string),
    "net": ("host", as_string),
    "port": ("port", as_int),
    "cluster_advertise": ("cluster_advertise", as_string),
    "advertise": ("cluster_advertise", as_string),
    "no_advertise": ("no_advertise", as_bool),
    "trusted_network": ("trusted_network", as_bool),
    "connect_retries": (INERT, as_int),
    "connect_backoff": (INERT, as_bool),
    "ping_interval": (INERT, as_duration),
    "ping_max": (INERT, as_int),
    "write_deadline": (INERT, as_duration),
    "write_timeout": (INERT, as_write_timeout),
    "compression": ("compression", as_compression),
    "pool_size": (INERT, as_int),
    "accounts": (INERT, as_strings),
}
BLOCKS: Blocks = {
    "listen": read_listen,
    "routes": _routes,
    "authorization": read_cluster_authorization,
    "tls": read_link_tls,
    "permissions": refuse(CLUSTER_PERMISSIONS),
}
INERT_NAMES = frozenset({"compression"})
"""It is checked with the other options."""


def read_cluster(reader: Reader, node: ConfigNode, options: Options) -> None:
    reader.block(as_map(node, "cluster"), options.cluster, FIELDS, BLOCKS, INERT_NAMES, path="cluster")
