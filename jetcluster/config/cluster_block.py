"""The `cluster` block, and the cluster URL of `--cluster` / `--cluster_listen`."""

from __future__ import annotations

from jetcluster.config.options import ClusterOptions, Options
from jetcluster.config.parser import Node
from jetcluster.config.reader import (
    Blocks,
    FieldError,
    Fields,
    Reader,
    as_address,
    as_bool,
    as_duration,
    as_int,
    as_map,
    as_name,
    as_string,
    mismatch,
    split_address,
)
from jetcluster.config.security_block import read_cluster_authorization, refuse
from jetcluster.config.tls_block import read_link_tls


def split_url(text: str) -> tuple[str, str, str, int]:
    """(user, password, host, port) of `nats://[user:password@]host:port`; the scheme may be left out.

    Not `urllib.parse`: its `.port` refuses -1, which means a random port here. Raises FieldError.
    """
    rest = text.split("://", 1)[-1].split("/", 1)[0]
    credentials, at, address = rest.rpartition("@")
    user, _, password = credentials.partition(":") if at else ("", "", "")
    if ":" not in address:
        raise FieldError("missing port in address")
    host, port = split_address(address)
    return user, password, host, port


def _listen(_reader: Reader, node: Node, cluster: ClusterOptions) -> None:
    host, port = as_address(node)
    cluster.host, cluster.port = host or cluster.host, port


def _routes(reader: Reader, node: Node, cluster: ClusterOptions) -> None:
    if not isinstance(node.value, list):
        raise mismatch(node, "[]interface {}")
    cluster.routes = []
    for item in node.value:
        url = as_string(reader, "routes", item)
        try:
            split_url(url)
        except FieldError as error:
            raise FieldError(f'error parsing route url ["{url}"]: {error}', item) from error
        cluster.routes.append(url)


_FIELDS: Fields = {
    "name": ("name", as_name),
    "cluster_name": ("name", as_name),
    "host": ("host", as_string),
    "net": ("host", as_string),
    "port": ("port", as_int),
    "cluster_advertise": ("cluster_advertise", as_string),
    "advertise": ("cluster_advertise", as_string),
    "no_advertise": ("no_advertise", as_bool),
    "connect_retries": ("connect_retries", as_int),
    "connect_backoff": ("connect_backoff", as_bool),
    "ping_interval": ("ping_interval", as_duration),
    "ping_max": ("ping_max", as_int),
    "write_deadline": ("write_deadline", as_duration),
}
_BLOCKS: Blocks = {
    "listen": _listen,
    "routes": _routes,
    "authorization": read_cluster_authorization,
    "tls": read_link_tls,
    "permissions": refuse("cluster permissions are not supported"),
}
_INERT = frozenset(
    {
        "connect_retries",
        "connect_backoff",
        "ping_interval",
        "ping_max",
        "write_deadline",
        "pool_size",
        "accounts",
        "compression",
        "write_timeout",
        "prof_port",
    }
)


def read_cluster(reader: Reader, node: Node, options: Options) -> None:
    reader.block(as_map(node, "cluster"), options.cluster, _FIELDS, _BLOCKS, _INERT, path="cluster")
