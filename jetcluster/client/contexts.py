"""The connection that a command is to make: its options, the `nats` tool's environment variables, and a context.

A context is a file of the `nats` tool (`nats context add`), with the tool's fields, precedence and schemes of secrets.
Each option that is given goes before the context's; credentials that are given replace those of the context, of
whatever kind. Layout of the folder: https://pkg.go.dev/github.com/nats-io/jsm.go/natscontext.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from jetcluster.client.credentials import Secrets, parts_of_creds, seed_of
from jetcluster.client.servers import ServerOptions
from jetcluster.errors import CallerError

DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
DEFAULT_TIMEOUT: Final = 5.0
ENVIRONMENT: Final = {
    "server": "NATS_URL", "user": "NATS_USER", "password": "NATS_PASSWORD", "token": "NATS_TOKEN",
    "creds": "NATS_CREDS", "nkey": "NATS_NKEY", "jwt": "NATS_JWT", "seed": "NATS_SEED", "cert": "NATS_CERT",
    "key": "NATS_KEY", "ca": "NATS_CA", "context": "NATS_CONTEXT", "timeout": "NATS_TIMEOUT",
    "socks_proxy": "NATS_SOCKS_PROXY",
}  # fmt: skip
"""The `nats` tool's variables, by the field of `Wanted`. A variable that is empty is not set."""

_OTHER_PROGRAMS: Final = {
    "nsc": "it would start the program nsc: write the file with `nsc generate creds`, and name that",
    "op": "it would start 1Password's program: write the secret to a file or a variable (env://NAME), and name that",
}
_UNSUPPORTED: Final = {
    "socks_proxy": "connections through a SOCKS proxy are not supported",
    "windows_cert_store": "there is no Windows certificate store here: name files for cert, key and ca",
}


class ContextError(CallerError):
    """A context or an option of the connection cannot be used; the text says which and why."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The connection that options and environment ask for; "" and None leave a field to the context."""

    server: str = ""
    """URLs, by commas."""
    user: str = ""
    """Without a password it is a token, as for the `nats` tool."""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    creds: str = ""
    nkey: str = ""
    jwt: str = field(default="", repr=False)
    seed: str = field(default="", repr=False)
    cert: str = ""
    key: str = ""
    ca: str = ""
    tls_first: bool | None = None
    context: str = ""
    """Name of a context, or path of a file that ends in .json; "": the selected one, if one is."""
    no_context: bool = False
    domain: str = ""
    inbox_prefix: str = ""
    socks_proxy: str = ""
    timeout: float = DEFAULT_TIMEOUT
    """Seconds for a connection to one server, and for one answer."""


def server_options(wanted: Wanted, environment: Mapping[str, str], name: str = "jetcluster") -> ServerOptions:
    """Returns the servers and credentials. `environment` says where contexts are (XDG_CONFIG_HOME, HOME) and has the
    variables that contexts refer to; `name` is that of the connection. Raises ContextError, CredentialsError."""
    found = {} if wanted.no_context else load_context(wanted.context, environment)
    if wanted.socks_proxy:
        found = found | {"socks_proxy": wanted.socks_proxy}
    for key, reason in _UNSUPPORTED.items():
        if found.get(key):
            raise ContextError(f"{key}: {reason}")

    def chosen(given: str, key: str) -> str:
        return given or str(found.get(key) or "")

    urls = tuple(url.strip() for url in (chosen(wanted.server, "url") or DEFAULT_SERVER).split(",") if url.strip())
    for url in urls:
        _check_url(url)
    return ServerOptions(
        urls,
        _login(wanted, found, environment),
        domain=chosen(wanted.domain, "jetstream_domain") or str(found.get("domain") or ""),
        inbox_prefix=chosen(wanted.inbox_prefix, "inbox_prefix") or "_INBOX",
        connect_timeout=wanted.timeout,
        js_prefix="" if wanted.domain else str(found.get("jetstream_api_prefix") or "").rstrip("."),
        name=name,
    )


def load_context(name: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of the context `name`, of the selected one for "", and {} where none is selected. Raises
    ContextError."""
    if name.endswith(".json"):
        return _read(Path(name), f"context {name}")
    folder = _folder(environment)
    asked = name or _selected(folder)
    if not asked:
        return {}
    path = folder / "context" / f"{asked}.json"
    if "/" in asked or ".." in asked or not path.is_file():
        names = ", ".join(context_names(environment)) or "none"
        which = "" if name else f", which {folder / 'context.txt'} selects"
        raise ContextError(f"there is no context {asked!r}{which}; in {folder / 'context'} there are: {names}")
    return _read(path, f"context {asked}")


def context_names(environment: Mapping[str, str]) -> list[str]:
    """Returns the names of the contexts that are there."""
    return sorted(path.stem for path in (_folder(environment) / "context").glob("*.json"))


def _folder(environment: Mapping[str, str]) -> Path:
    config = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME") or "~").expanduser() / ".config")
    return Path(config) / "nats"


def _selected(folder: Path) -> str:
    try:
        return (folder / "context.txt").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _read(path: Path, what: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise ContextError(f"{what}: {path}: {error.strerror}") from error
    except ValueError as error:
        raise ContextError(f"{what}: {path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ContextError(f"{what}: {path} is no JSON object")
    return found


def _login(wanted: Wanted, found: Mapping[str, Any], environment: Mapping[str, str]) -> Secrets:
    """Returns the credentials: the given ones, else the context's, in the order in which the `nats` tool looks."""

    def text(key: str) -> str:
        return str(found.get(key) or "")

    tls: dict[str, Any] = {
        f"tls_{key}": _path(given or text(key), key, environment)
        for key, given in (("cert", wanted.cert), ("key", wanted.key), ("ca", wanted.ca))
    }
    if tls["tls_cert"] and not tls["tls_key"]:
        raise ContextError("a client's certificate needs its key (--tlskey, NATS_KEY)")
    first = bool(found.get("tls_first")) if wanted.tls_first is None else wanted.tls_first
    given = {key: getattr(wanted, key) for key in ("user", "token", "creds", "nkey", "jwt", "seed")}
    if any(given.values()):
        kinds = given | {"password": wanted.password}
    else:
        kinds = {key: text(key) for key in ("user", "token", "creds", "nkey")}
        kinds |= {"password": wanted.password or text("password"), "jwt": text("user_jwt"), "seed": text("user_seed")}
        if text("nsc") and not any(kinds.values()):
            raise ContextError(f"nsc: {_OTHER_PROGRAMS['nsc']}")
    if kinds["user"] and not kinds["password"] and any(given.values()):
        kinds["user"], kinds["token"] = "", kinds["token"] or kinds["user"]
    return Secrets(tls_first=first, **tls, **_secrets(kinds, environment))


def _secrets(kinds: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of `Secrets` for one kind of credentials: a user goes before all others."""

    def value(key: str) -> str:
        return _value(kinds[key], key, environment)

    if kinds["user"]:
        return {"user": kinds["user"], "password": value("password")}
    if kinds["creds"]:
        if path := _file(kinds["creds"], environment):
            return {"creds_file": path}
        jwt, seed = parts_of_creds(value("creds"), "creds")
        return {"jwt": jwt, "seed": seed}
    if kinds["nkey"]:
        if path := _file(kinds["nkey"], environment):
            return {"nkey_file": path}
        return {"seed": seed_of(value("nkey"), "nkey")}
    if kinds["jwt"]:
        return {"jwt": value("jwt"), "seed": value("seed")}
    return {"token": value("token")} if kinds["token"] else {}


def _scheme(reference: str) -> str:
    found = re.match(r"(file|env|nsc|op)://|(data):", reference)
    return (found[1] or found[2]) if found else ""


def _file(reference: str, environment: Mapping[str, str]) -> str:
    """Returns the path in a reference to a file; "" for a secret by another scheme."""
    if _scheme(reference) not in ("", "file"):
        return ""
    path = re.sub(
        r"\$(?:\{(\w+)\}|(\w+))",
        lambda name: environment.get(name[1] or name[2], ""),
        reference.removeprefix("file://"),
    )
    if path.startswith("~"):
        path = environment.get("HOME", "~") + path[1:]
    return path


def _path(reference: str, what: str, environment: Mapping[str, str]) -> str:
    """Returns the path of a TLS file. Raises ContextError for another scheme."""
    path = _file(reference, environment)
    if reference and not path:
        raise ContextError(f"{what}: only a path names a TLS file, not {_scheme(reference)}:")
    return path


def _value(reference: str, what: str, environment: Mapping[str, str]) -> str:
    """Returns the secret that a reference holds or names. Raises ContextError."""
    scheme = _scheme(reference)
    if scheme in _OTHER_PROGRAMS:
        raise ContextError(f"{what} with {scheme}://: {_OTHER_PROGRAMS[scheme]}")
    if scheme == "env":
        name = reference.removeprefix("env://")
        if not environment.get(name):
            raise ContextError(f"{what}: environment variable {name} is not set")
        return environment[name]
    if scheme == "data":
        head, comma, payload = reference.removeprefix("data:").partition(",")
        try:
            if not comma or "base64" not in head.split(";"):
                raise ContextError(f"{what}: a data: reference must be base64")
            return base64.b64decode(payload, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ContextError(f"{what}: a data: reference holds no text in base64") from error
    if scheme == "file":
        try:
            return Path(_file(reference, environment)).read_text().strip()
        except OSError as error:
            raise ContextError(f"{what}: {error}") from error
    return reference


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url if "//" in url else f"nats://{url}")
        usable = parts.scheme in ("nats", "tls") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        usable = False
    if not usable:
        shown = re.sub(r"//[^@/]*@", "//", url)
        raise ContextError(f"{shown!r} is no URL like nats://host:4222 or tls://host:4222")
