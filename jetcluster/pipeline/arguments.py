"""Arguments that several jobs share, and the connection options that follow from them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from jetcluster.pipeline.result import UsageError

if TYPE_CHECKING:
    from jetcluster.client.servers import ServerOptions
    from jetcluster.client.stream_state import StreamState

DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
_LOGIN: Final[dict[str, tuple[str, str, str]]] = {
    "user": ("user", "NAME", "user name, with --password-env or --password-file"),
    "password-env": ("passwordEnv", "NAME", "environment variable that holds the password"),
    "password-file": ("passwordFile", "FILE", "file that holds the password"),
    "token-env": ("tokenEnv", "NAME", "environment variable that holds the token"),
    "token-file": ("tokenFile", "FILE", "file that holds the token"),
    "nkey": ("nkeyFile", "FILE", "file with the seed of a user's nkey"),
    "creds": ("credsFile", "FILE", "credentials file (JWT and seed)"),
    "tls-ca": ("tlsCa", "FILE", "certificate of the authority that signed the servers'"),
    "tls-cert": ("tlsCert", "FILE", "our certificate, where servers ask for one"),
    "tls-key": ("tlsKey", "FILE", "its key"),
    "domain": ("domain", "NAME", "JetStream domain"),
}
"""Argument -> option of the source and sink, name of its value, help."""
AGAINST: Final = "against-"
"""Prefix of the arguments for a second cluster."""


def add_common(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that every job takes."""
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", default="local[*]", help="where Spark runs (default: %(default)s, in this process)")
    group.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark; repeat it")
    group.add_argument("--json", action="store_true", help="the result on one line; nothing but errors on stderr")
    group.add_argument("--print-submit", action="store_true", help="print the spark-submit command instead of running")


def add_server(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Adds `--server` and the login. Secrets come from files and the environment only: options reach plans and logs."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "-s", "--server", required=required, default=None if required else DEFAULT_SERVER, metavar="URL[,URL]",
        help="servers of the cluster, by commas" + ("" if required else " (default: %(default)s)"),
    )  # fmt: skip
    add_login(group)


def add_login(group: argparse._ArgumentGroup, prefix: str = "") -> None:
    """Adds `--user` and the other login arguments; a second cluster has a prefix."""
    for name, (_, metavar, text) in _LOGIN.items():
        group.add_argument(f"--{prefix}{name}", metavar=metavar, help=text)
    group.add_argument(f"--{prefix}tls", action="store_true", help="TLS, also where the server leaves the choice")


def source_options(args: argparse.Namespace) -> dict[str, str]:
    """Returns the options of `format("jetstream")` for the servers and the login."""
    found = {option: getattr(args, _key(name)) for name, (option, _, _) in _LOGIN.items()}
    found |= {"servers": args.server, "tls": "true" if args.tls else ""}
    return {key: str(value) for key, value in found.items() if value}


def second_server(args: argparse.Namespace) -> argparse.Namespace:
    """Returns `args` for the cluster of `--against-server`, with its own login if one is given."""
    found = argparse.Namespace(**vars(args))
    own = {name: getattr(args, _key(f"{AGAINST}{name}")) for name in (*_LOGIN, "tls")}
    if any(own.values()):
        for name, value in own.items():
            setattr(found, _key(name), value)
    found.server = args.against_server or args.server
    return found


def _key(name: str) -> str:
    """Returns argparse's name of an argument."""
    return name.replace("-", "_")


def server_options_of(args: argparse.Namespace) -> ServerOptions:
    """Returns the options for a direct connection. Raises UsageError."""
    from jetcluster.spark.options import SERVER_OPTIONS, OptionError, OptionReader, server_options

    try:
        return server_options(OptionReader(source_options(args), SERVER_OPTIONS))
    except OptionError as error:
        raise UsageError(str(error)) from None


def stream_state_of(args: argparse.Namespace, stream: str) -> StreamState:
    """Returns the stream's state from its leader. Raises UsageError if there is none, and a connection's errors."""
    from jetcluster.client.servers import ask
    from jetcluster.client.stream_state import StreamError, stream_state
    from jetcluster.errors import ApiError

    try:
        server = server_options_of(args)
        return ask(server, lambda connection: stream_state(connection, stream), reach=server.reach_timeout)
    except (StreamError, ApiError) as error:
        if error.retriable:
            raise
        raise UsageError(str(error)) from None
