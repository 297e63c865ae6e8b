"""The options of the connection, which every command that asks a server has: those of the `nats` tool, with its
environment variables and contexts.

    @app.command()
    @connects
    def streams(servers: ServerOptions) -> None: ...
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any, Final, get_type_hints

import typer

from jetcluster.cli.common import NOT_REACHED, fail
from jetcluster.client.contexts import DEFAULT_SERVER, ENVIRONMENT, ContextError, Wanted, context_names, server_options
from jetcluster.client.credentials import CredentialsError
from jetcluster.model.durations import parse
from jetcluster.model.times import SECOND

PANEL: Final = "Connection"
_PREFIX: Final = "link_"
"""Before the names of the parameters, so that a command may have a parameter `domain` of its own."""


def seconds(text: str) -> float:
    """Parses a duration as Go writes it (`5s`, `500ms`), or a number of seconds. Raises typer.BadParameter."""
    try:
        found = float(text)
    except ValueError:
        found = (parse(text.encode()) or 0) / SECOND
    if not 0 < found < 1e6:
        raise typer.BadParameter(f"{text!r} is no duration like 5s or 500ms")
    return found


def _contexts(incomplete: str) -> list[str]:
    return [name for name in context_names(os.environ) if name.startswith(incomplete)]


_FIELDS: Final[list[tuple[str, Any, Any, str, str, dict[str, Any]]]] = [
    ("server", str, "", "-s --server", f"URLs of servers, by commas (default: {DEFAULT_SERVER}).", {"metavar": "URL"}),
    ("user", str, "", "--user", "User, or a token if there is no password.", {}),
    ("password", str, "", "--password", "Password. Others on this machine see options: the variable is better.", {}),
    ("token", str, "", "--token", "Token.", {}),
    ("creds", str, "", "--creds", "File with a user's JWT and seed.", {"metavar": "FILE"}),
    ("nkey", str, "", "--nkey", "File with a user nkey's seed.", {"metavar": "FILE"}),
    ("cert", str, "", "--tlscert", "Certificate of the client.", {"metavar": "FILE"}),
    ("key", str, "", "--tlskey", "Private key of the certificate.", {"metavar": "FILE"}),
    ("ca", str, "", "--tlsca", "Authorities that check the servers' certificates.", {"metavar": "FILE"}),
    ("tls_first", bool | None, None, "--tlsfirst/--no-tlsfirst", "Begin TLS before the server's first line.", {}),
    ("context", str, "", "--context", "Context of the nats tool, or a .json file (default: the selected context).",
     {"metavar": "NAME", "autocompletion": _contexts}),
    ("no_context", bool, False, "--no-context", "Do not use the selected context.", {}),
    ("domain", str, "", "--js-domain", "JetStream domain to ask.", {"metavar": "NAME"}),
    ("inbox_prefix", str, "", "--inbox-prefix", "Prefix of the subjects of answers.", {"metavar": "PREFIX"}),
    ("timeout", float, "5s", "--timeout", "Longest wait for a server, and for an answer.",
     {"parser": seconds, "metavar": "DURATION"}),
    ("jwt", str, "", "--jwt", "User JWT; the environment is the place for it.", {"hidden": True}),
    ("seed", str, "", "--seed", "Seed of the user; the environment is the place for it.", {"hidden": True}),
    ("socks_proxy", str, "", "--socks-proxy", "Refused, as it is not supported.", {"hidden": True}),
]  # fmt: skip
"""The field of `Wanted`, type, default, names, help, and more arguments of `typer.Option`."""


def _shared() -> list[inspect.Parameter]:
    found = []
    for field, kind, default, names, text, more in _FIELDS:
        option = typer.Option(*names.split(), envvar=ENVIRONMENT.get(field), help=text, rich_help_panel=PANEL, **more)
        found.append(
            inspect.Parameter(
                _PREFIX + field, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
            )
        )
    return found


def connects(command: Callable[..., None]) -> Callable[..., None]:
    """Gives `command` the options of the connection. Its parameter `servers: ServerOptions` gets the result, whose
    `connect()` returns a connected client."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        wanted = Wanted(**{field: given.pop(_PREFIX + field) for field, *_ in _FIELDS})
        name = command.__name__.replace("_", " ")
        try:
            servers = server_options(wanted, os.environ, f"jetcluster {name}")
        except (ContextError, CredentialsError) as error:
            raise typer.Exit(fail(name, str(error), NOT_REACHED)) from None
        command(servers=servers, **given)

    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "servers"
    ]
    shared = _shared()
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *shared)}
    del run.__wrapped__  # typer would read the annotations of the command itself
    return run
