"""Facts of the machine that `jetcluster doctor` runs on, and of a configuration file, for `doctor.machine_rules`."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from jetcluster.config.options import Options
from jetcluster.doctor.facts import MachineFacts
from jetcluster.files import free_bytes, total_bytes
from jetcluster.health.memory import memory_limit
from jetcluster.node.part_options import default_folder

SYNCS: Final = 20
SYNC_BYTES: Final = 4096
SYNC_SECONDS: Final = 5.0
"""Longest time for all of them: a slow disk is told by a few."""
CONNECT_SECONDS: Final = 2.0
MAX_ROUTES: Final = 32
MAX_INFO_BYTES: Final = 1 << 16
_UNSYNCHRONIZED: Final = 0x0040
_STATUS_OFFSET: Final = 40
"""STA_UNSYNC, and the place of `status` in `struct timex` (linux/timex.h) with 64-bit longs."""
_TIMEX_BYTES: Final = 208

ClockState = tuple[bool | None, str]
"""True for a synchronized clock, None for not known; and who says so."""


class Machine:
    """Looks at the machine. `root`: the root of its file system; tests give another one, and another `clock_state`."""

    def __init__(self, root: Path = Path("/"), clock_state: Callable[[], ClockState] | None = None) -> None:
        self._root = root
        self._clock_state = clock_state or clock_state_of_kernel

    def facts(self, path: str) -> tuple[MachineFacts, Options | None]:
        """Returns the facts for the configuration file at `path`, and its options; None where it is not valid."""
        problem, warnings, options = _checked(path)
        name = (options.server_name if options is not None else "") or socket.gethostname()
        synchronized, source = self._clock_state()
        facts = MachineFacts(
            name,
            problem=problem,
            warnings=tuple(warnings),
            descriptor_limit=_number(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
            somaxconn=self._read_number("proc/sys/net/core/somaxconn"),
            clock_synchronized=synchronized,
            clock_source=source,
            memory_limit=memory_limit(self._root),
        )
        if options is None:
            return facts, None
        taken = tuple(taken_ports(options))
        facts = _with_routes(replace(facts, taken_ports=taken), options)
        return (_with_store(facts, options) if options.jetstream.enabled else facts), options

    def _read_number(self, name: str) -> int | None:
        try:
            return int((self._root / name).read_text())
        except (OSError, ValueError):
            return None


def _number(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _checked(path: str) -> tuple[str, list[str], Options | None]:
    """Returns (why the file is not valid, warnings of a start, options), as `-t` judges it."""
    try:
        options, pedantic = load_file(path)
    except (ConfigError, OSError) as error:
        return str(error), [], None
    if pedantic:
        return "\n".join(pedantic), [], options
    options.add_start_warnings()
    return "", options.warnings, options


def clock_state_of_kernel() -> ClockState:
    """Asks the kernel, else timedatectl, whether something keeps the clock right."""
    try:
        buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.adjtimex(buffer) >= 0:
            status = int.from_bytes(buffer.raw[_STATUS_OFFSET : _STATUS_OFFSET + 4], "little")
            return not status & _UNSYNCHRONIZED, "the kernel (adjtimex)"
        refused = f"adjtimex: {os.strerror(ctypes.get_errno())}"
    except (OSError, AttributeError) as error:
        refused = f"adjtimex: {error}"
    try:
        told = subprocess.run(
            ["timedatectl", "show", "-p", "NTPSynchronized", "--value"],  # noqa: S607
            capture_output=True, text=True, timeout=5, check=True,
        ).stdout.strip()  # fmt: skip
    except FileNotFoundError:
        return None, f"{refused}, and there is no timedatectl"
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"{refused}, timedatectl: {error}"
    return (told == "yes", "timedatectl") if told in ("yes", "no") else (None, f"{refused}, timedatectl says nothing")


# ---- the store


def _with_store(facts: MachineFacts, options: Options) -> MachineFacts:
    folder = Path(options.jetstream.store_dir or default_folder())
    shown = str(folder)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent  # the server makes it
    try:
        syncs = tuple(sync_times(folder))
    except OSError as error:
        return replace(facts, store=shown, store_error=error.strerror or str(error))
    return replace(facts, store=shown, sync_seconds=syncs, disk_free=free_bytes(folder), disk_size=total_bytes(folder))


def sync_times(folder: Path) -> Iterator[float]:
    """Yields the seconds that each of a few writes with fdatasync takes, in a file that is removed. Raises OSError."""
    path = folder / f".jetcluster-doctor-{os.getpid()}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        begun = time.monotonic()
        for number in range(SYNCS):
            before = time.perf_counter()
            os.pwrite(descriptor, bytes(SYNC_BYTES), number * SYNC_BYTES)
            os.fdatasync(descriptor)
            yield time.perf_counter() - before
            if time.monotonic() - begun > SYNC_SECONDS:
                return
    finally:
        os.close(descriptor)
        path.unlink()


# ---- the network


def taken_ports(options: Options) -> Iterator[tuple[str, int, bool]]:
    """Yields (what for, port, True for a NATS server) of the configured ports that somebody listens on; none when the
    server of this configuration runs."""
    told = _told_name(options.host, options.port)
    if told is not None and told == options.server_name:
        return
    for purpose, host, port in (
        ("clients", options.host, options.port),
        ("cluster", options.cluster.host, options.cluster.port),
        ("monitoring", options.http_host or options.host, options.http_port or options.https_port),
        ("leafnodes", options.leafnodes.host, options.leafnodes.port),
        ("websocket", options.websocket.host, options.websocket.port),
    ):
        if port > 0 and _is_taken(host, port):
            yield purpose, port, purpose == "clients" and told is not None


def _is_taken(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _told_name(host: str, port: int) -> str | None:
    """Returns the name of the NATS server that listens there; None where none does."""
    local = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    if port <= 0:
        return None
    try:
        with socket.create_connection((local, port), CONNECT_SECONDS) as link, link.makefile("rb") as lines:
            line = lines.readline(MAX_INFO_BYTES)
            return str(json.loads(line[5:]).get("server_name", "")) if line.startswith(b"INFO ") else None
    except (OSError, ValueError):
        return None


def _with_routes(facts: MachineFacts, options: Options) -> MachineFacts:
    routes = [urlsplit(url if "//" in url else f"//{url}") for url in options.cluster.routes[:MAX_ROUTES]]
    with ThreadPoolExecutor(max_workers=max(len(routes), 1)) as threads:
        asked = [threads.submit(_reach, one.hostname or "", one.port or 6222, options.cluster.port) for one in routes]
        found = [one.result() for one in asked]
    return replace(
        facts,
        unresolved=tuple((host, why) for host, _, why in found if host),
        unreachable=tuple((address, why) for _, address, why in found if address),
    )


def _reach(host: str, port: int, own_port: int) -> tuple[str, str, str]:
    """Returns (host, "", why) for one without an address, ("", host:port, why) for one where nothing answers, and
    ("", "", "") for one that does, or is this server itself."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        return host, "", error.strerror or str(error)
    if port == own_port and _is_own(address[4][0]):
        return "", "", ""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        return "", f"{host}:{port}", error.strerror or str(error)
    return "", "", ""


def _is_own(address: object) -> bool:
    """Reports whether an address is this machine's: then a socket can be bound to it."""
    assert isinstance(address, str)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
