"""Values of a configuration that no server can run with, each right by its type: ports, addresses to advertise, the
JetStream domain, compression modes. A start and a reload look at them, flags included; `-t` does not, as there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from jetcluster.config.units import without_secret

if TYPE_CHECKING:
    from jetcluster.config.options import Options

MAX_PORT = 65535
COMPRESSION_MODES = frozenset(
    [
        *("", "off", "disabled", "false", "on", "enabled", "true", "accept", "not_supported", "not supported"),
        *("s2_uncompressed", "s2_fast", "s2_better", "s2_best", "s2_auto", "fast", "better", "best", "auto"),
    ]
)


def problem_of_values(options: Options) -> str | None:
    """In nats-server's words where it has some."""
    return (
        _problem_of_ports(options)
        or _problem_of_routes(options)
        or _problem_of_paths(options)
        or _problem_of_addresses(options)
        or _problem_of_domain(options.jetstream.domain)
        or _problem_of_compression(options)
    )


def _problem_of_ports(options: Options) -> str | None:
    """But the client port's, which is told when it is opened."""
    for port, what in (
        (options.http_port, "Can't start monitoring: can't listen to the monitor port"),
        (options.https_port, "Can't start monitoring: can't listen to the monitor port"),
        (options.cluster.port, "Error listening on router port"),
        (options.leafnodes.port, "Error listening on leafnode port"),
        (options.websocket.port, "Unable to listen for websocket connections"),
    ):
        if not -1 <= port <= MAX_PORT:
            return f"{what}: listen tcp: address {port}: invalid port"
    return None


def _problem_of_routes(options: Options) -> str | None:
    for url in options.cluster.routes:
        try:
            parts = urlsplit(url if "://" in url else f"nats://{url}")
            if parts.hostname and parts.port:
                continue
            why = "a route needs a host and a port"
        except ValueError as error:
            why = str(error)
        return f'error parsing route url ["{without_secret(url)}"]: {why}'
    return None


def _problem_of_paths(options: Options) -> str | None:
    paths = {
        "store_dir": options.jetstream.store_dir,
        "pid_file": options.pid_file,
        "ports_file_dir": options.ports_file_dir,
        "log_file": options.log_file,
    }
    broken = [name for name, path in paths.items() if "\0" in path]
    return f"invalid {broken[0]}: a path has no NUL character" if broken else None


def _problem_of_addresses(options: Options) -> str | None:
    for name, address in (
        ("ClientAdvertise", options.client_advertise),
        ("cluster advertise", options.cluster.cluster_advertise),
        ("leafnode advertise", options.leafnodes.advertise),
        ("websocket advertise", options.websocket.advertise),
    ):
        if address and not is_host_and_port(address):
            return f"invalid {name} value of {address}, it must be host or host:port"
    return None


def is_host_and_port(address: str) -> bool:
    """`host`, `host:port`, `1.2.3.4:5`, `[::1]:5`, `::1`."""
    if any(c.isspace() or not c.isprintable() or c in '"\\/@' for c in address):
        return False
    if address.startswith("["):
        host, end, port = address[1:].partition("]")
        return bool(host and end) and (not port or (port[0] == ":" and _is_port(port[1:])))
    host, colon, port = address.partition(":")
    if ":" in port:  # an IPv6 address without port
        return True
    return bool(host) and (not colon or _is_port(port))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text.lstrip("0")) <= 5 and 0 < int(text) <= MAX_PORT


def _problem_of_domain(domain: str) -> str | None:
    if any(c in domain for c in ".*>"):
        return "invalid domain name: may not contain ., * or >"
    if any(c.isspace() or c == "\0" for c in domain):
        return f'invalid domain name: derived "$JS.{domain}.API.>" is not a valid subject'
    return None


def _problem_of_compression(options: Options) -> str | None:
    for mode in (options.cluster.compression, options.leafnodes.compression):
        if mode.lower() not in COMPRESSION_MODES:
            return f'unsupported compression mode "{mode}"'
    return None
