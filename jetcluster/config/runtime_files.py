"""The pid file and the ports file: how harnesses and tools find a running server."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from jetcluster.errors import OperatorError
from jetcluster.file_modes import open_to_others

MODE = 0o644
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
PORTS_PREFIX = "nats-server"
"""Literal, also when the executable has another name: client test harnesses wait for `nats-server_<pid>.ports`."""


class PidFileError(OperatorError, OSError):
    """The text is ready for the `[FTL]` line."""


class PortsFileError(OperatorError, OSError):
    """The text is ready for an `[ERR]` line; the server goes on without the file."""


def write_pid_file(path: str, pid: int | None = None) -> None:
    """Writes the decimal pid without a newline; the file stays at exit, as the real server's. Raises PidFileError."""
    try:
        _replace(Path(path), str(os.getpid() if pid is None else pid))
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise PidFileError(f"Could not write pidfile: open {path}: {reason}") from error


def _replace(path: Path, text: str, *, in_place: bool = True) -> None:
    """The file appears whole, in place of a stale one, and in place of a link: these folders are often everybody's, and
    what a link there names is not to be overwritten. A file that only its content may be changed of (in a folder that
    is not ours, mounted by itself, a device) is written `in_place`. Raises OSError."""
    if in_place and path.exists() and not path.is_symlink() and not path.is_file():
        path.write_text(text, encoding="ascii")
        return
    beside = path.with_name(f"{path.name}.{os.urandom(6).hex()}.partial")
    try:
        _write_new(beside, text)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if not in_place or error.errno not in _NOT_OURS:
            raise
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)


def _write_new(path: Path, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, MODE)
    open_to_others(descriptor, MODE)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)


def ports_file(directory: str, pid: int | None = None) -> Path:
    return Path(directory) / f"{PORTS_PREFIX}_{os.getpid() if pid is None else pid}.ports"


def write_ports_file(directory: str, listeners: Mapping[str, Sequence[str]], pid: int | None = None) -> Path:
    """Writes e.g. `{"nats":["nats://127.0.0.1:4222"],"monitoring":["http://127.0.0.1:8222"]}`; without empty kinds.

    Call it when every listener is bound. The file appears whole (rename), since harnesses poll for it. Raises
    PortsFileError.
    """
    path = ports_file(directory, pid)
    content = {kind: list(urls) for kind, urls in listeners.items() if urls}
    try:
        _replace(path, json.dumps(content, separators=(",", ":")), in_place=False)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise PortsFileError(f"Error writing ports file ({path}): open {path}: {reason}") from error
    return path


def remove_ports_file(directory: str, pid: int | None = None) -> None:
    ports_file(directory, pid).unlink(missing_ok=True)


def listener_url(scheme: str, host: str, port: int) -> str:
    """`scheme://host:port` that a client on this machine can connect to: a wildcard host becomes the loopback."""
    if host in ("", "0.0.0.0"):  # noqa: S104 - compared, not bound
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
