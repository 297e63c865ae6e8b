"""URLs of hubs: `nats-leaf://[user:password@ | token@]host[:port]`; `tls://...` asks for TLS."""

from __future__ import annotations

from jetcluster.config.links_block import split_url

DEFAULT_PORT = 7422


def wants_tls(url: str) -> bool:
    return url.startswith("tls://")


def host_of(url: str) -> str:
    return place(url)[2]


def place(url: str) -> tuple[str, str, str, int]:
    """(user, password, host, port)."""
    address = url.split("://", 1)[-1].split("/", 1)[0]
    if ":" not in address.rpartition("@")[2]:
        address += f":{DEFAULT_PORT}"
    return split_url(address)
