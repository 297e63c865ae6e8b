"""Arguments that several jobs share, and the connection options that follow from them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from jetcluster.pipeline.result import UsageError

if TYPE_CHECKING:
    from jetcluster.spark.options import ServerOptions
    from jetcluster.spark.stream_state import StreamState

DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"


def add_common(parser: argparse.ArgumentParser) -> None:
    """What every job takes."""
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", default="local[*]", help="where Spark runs (default: %(default)s, in this process)")
    group.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark; repeat it")
    group.add_argument("--checkpoint", metavar="DIR", help="where a following job keeps its place")
    group.add_argument("--json", action="store_true", help="the result on one line; nothing but errors on stderr")
    group.add_argument("--print-submit", action="store_true", help="print the spark-submit command instead of running")


def add_server(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """`--server` and how to log in. Secrets come from files and the environment only: options reach plans and logs."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "-s", "--server", required=required, default=None if required else DEFAULT_SERVER, metavar="URL[,URL]",
        help="servers of the cluster, by commas" + ("" if required else " (default: %(default)s)"),
    )  # fmt: skip
    group.add_argument("--user", help="user name")
    group.add_argument("--password-env", metavar="NAME", help="environment variable that holds the password")
    group.add_argument("--creds", metavar="FILE", help="credentials file (JWT and seed)")


def source_options(args: argparse.Namespace) -> dict[str, str]:
    """The options of `format("jetstream")` that say where and as whom."""
    found = {"servers": args.server, "user": args.user, "passwordEnv": args.password_env, "credsFile": args.creds}
    return {key: str(value) for key, value in found.items() if value}


def server_options_of(args: argparse.Namespace) -> ServerOptions:
    """For asking the server ourselves. Raises UsageError."""
    from jetcluster.spark.options import SERVER_OPTIONS, OptionError, OptionReader, server_options

    try:
        return server_options(OptionReader(source_options(args), SERVER_OPTIONS))
    except OptionError as error:
        raise UsageError(str(error)) from None


def stream_state_of(args: argparse.Namespace, stream: str) -> StreamState:
    """What the stream's leader says. Raises UsageError: it is not there; and what reaching a server raises."""
    from jetcluster.errors import ApiError
    from jetcluster.spark.stream_state import StreamError, ask, stream_state

    try:
        return ask(server_options_of(args), lambda connection: stream_state(connection, stream))
    except (StreamError, ApiError) as error:
        raise UsageError(str(error)) from None
