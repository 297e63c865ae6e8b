"""The pid file and the ports file: how harnesses and tools find a running server (drop-in sheet, section 2)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

PORTS_PREFIX = "nats-server"
"""Literal, whatever the executable is called: client test harnesses wait for `nats-server_<pid>.ports`."""


class PidFileError(OSError):
    """The text is ready for the `[FTL]` line."""


class PortsFileError(OSError):
    """The text is ready for an `[ERR]` line; the server goes on without the file."""


def write_pid_file(path: str, pid: int | None = None) -> None:
    """Decimal pid, no newline; left behind at exit, as the real server does. Raises PidFileError."""
    try:
        Path(path).write_text(str(os.getpid() if pid is None else pid), encoding="ascii")
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise PidFileError(f"Could not write pidfile: open {path}: {reason}") from error


def ports_file(directory: str, pid: int | None = None) -> Path:
    return Path(directory) / f"{PORTS_PREFIX}_{os.getpid() if pid is None else pid}.ports"


def write_ports_file(directory: str, listeners: Mapping[str, Sequence[str]], pid: int | None = None) -> Path:
    """Writes e.g. `{"nats":["nats://127.0.0.1:4222"],"monitoring":["http://127.0.0.1:8222"]}`; without empty kinds.

    Call it when every listener is bound. The file appears whole (rename), since harnesses poll for it. Raises
    PortsFileError.
    """
    path = ports_file(directory, pid)
    content = {kind: list(urls) for kind, urls in listeners.items() if urls}
    partial = path.with_suffix(".ports.partial")
    try:
        partial.write_text(json.dumps(content, separators=(",", ":")), encoding="ascii")
        partial.replace(path)
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
