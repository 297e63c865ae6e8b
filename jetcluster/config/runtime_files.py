"""The pid file and the ports file, by which test harnesses and tools find a running server."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from jetcluster.errors import OperatorError
from jetcluster.file_modes import open_to_others

FILE_MODE = 0o644
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
PORTS_PREFIX = "nats-server"
"""Literal, whatever the executable's name: client test harnesses wait for `nats-server_<pid>.ports`."""


class PidFileError(OperatorError, OSError):
    """The pid file cannot be written; the text is that of the `[FTL]` line."""


class PortsFileError(OperatorError, OSError):
    """The ports file cannot be written; the text is that of the `[ERR]` line, and the server runs without the file."""


def write_pid_file(path: str, pid: int | None = None) -> None:
    """Writes the decimal pid without a newline; the file stays at exit, as nats-server's does. Raises PidFileError."""
    try:
        _replace(Path(path), str(os.getpid() if pid is None else pid))
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise PidFileError(f"Could not write pidfile: open {path}: {reason}") from error


def _replace(path: Path, text: str, *, in_place: bool = True) -> None:
    """Replaces the file as a whole. A symbolic link is replaced, not followed: the folder may be writable by everyone,
    and the link's target must not be overwritten. With `in_place`, a file that cannot be replaced (a device, a mounted
    file, a folder without write permission) gets the content. Raises OSError."""
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
    descriptor = os.open(path, flags, FILE_MODE)
    open_to_others(descriptor, FILE_MODE)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)


def ports_file(directory: str, pid: int | None = None) -> Path:
    return Path(directory) / f"{PORTS_PREFIX}_{os.getpid() if pid is None else pid}.ports"


def write_ports_file(directory: str, listeners: Mapping[str, Sequence[str]], pid: int | None = None) -> Path:
    """Writes e.g. `{"nats":["nats://127.0.0.1:4222"],"monitoring":["http://127.0.0.1:8222"]}`; kinds without listeners
    are left out. Must be called after every listener is bound: harnesses poll for the file, which appears whole (by
    rename). Raises PortsFileError."""
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
    """Returns the URL for a client on this machine: a wildcard host becomes the loopback address."""
    if host in ("", "0.0.0.0"):  # noqa: S104 - compared, not bound
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
