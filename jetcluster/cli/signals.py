"""`--signal CMD[=pid|pidfile]`: sends a signal to a running server."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from jetcluster.errors import CallerError

SIGNALS = {
    "stop": signal.SIGKILL,
    "quit": signal.SIGINT,
    "term": signal.SIGTERM,
    "reopen": signal.SIGUSR1,
    "reload": signal.SIGHUP,
    "ldm": signal.SIGUSR2,
}
_PROGRAMS = ("jetcluster", "nats-server")


class SignalError(CallerError):
    """The signal was not sent; the text follows `nats-server: `."""


def send_signal(request: str, proc: Path = Path("/proc")) -> None:
    """Sends the signal of `request` ("ldm", "reload=4711", "stop=/run/x.pid"). Raises `SignalError`."""
    command, _, target = request.partition("=")
    if "=" in target:
        raise SignalError(f"invalid signal parameters: [{target.partition('=')[2]}]")
    pids = _targets(target, proc)
    if command not in SIGNALS:
        raise SignalError(f'unknown signal "{command}"')
    problems = ""
    for pid in pids:
        try:
            os.kill(pid, SIGNALS[command])
        except ProcessLookupError:
            problems += f'\nsignal "{command}" {pid}: no such process'
        except PermissionError:
            problems += f'\nsignal "{command}" {pid}: operation not permitted'
    if problems:
        raise SignalError(problems)


def _targets(target: str, proc: Path) -> list[int]:
    """Returns the process ids of `target`: a number, a pid file, or a prefix with `*`; "" is the only server."""
    if not target:
        return [_only_server(proc)]
    text = target
    if not target.isdigit() and Path(target).is_file():
        try:
            text = Path(target).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SignalError(f"invalid pid: {target}") from error
    start = text.removesuffix("*")
    if start != text and (not start or start.isdigit()):
        found = find_servers(proc)
        if not found:
            raise SignalError("no nats-server processes running")
        return [pid for pid in found if str(pid).startswith(start)]
    if not start.isdigit() or int(start) < 1:  # to `kill`, 0 and negative numbers are process groups
        raise SignalError(f"invalid pid: {start}")
    return [int(start)]


def _only_server(proc: Path) -> int:
    pids = find_servers(proc)
    if not pids:
        raise SignalError("no nats-server processes running")
    if len(pids) > 1:
        raise SignalError("multiple nats-server processes running:\n" + "\n".join(map(str, pids)))
    return pids[0]


def find_servers(proc: Path) -> list[int]:
    """Returns the process ids of the other jetcluster servers on this machine, without Go's nats-server."""
    found: list[int] = []
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        except OSError:
            continue  # the process has ended
        if is_server_command(words):
            found.append(int(entry.name))
    return sorted(found)


def is_server_command(words: list[str]) -> bool:
    """True for the command line of a Python process that runs `jetcluster serve` (also under nats-server's name)."""
    if not words or not Path(words[0]).name.startswith("python"):
        return False
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest = rest[2:] if rest[0] in ("-X", "-W") else rest[1:]
    if rest[:1] == ["-m"]:
        rest = rest[1:]
    if not rest:
        return False
    name = Path(rest[0]).name
    arguments = rest[1:]
    if name not in _PROGRAMS:
        return False
    if any(word.lstrip("-").partition("=")[0] in ("sl", "signal", "worker") for word in arguments):
        return False  # it sends a signal itself, or its supervisor passes signals on to it
    if name == "nats-server":
        return not arguments or arguments[0].startswith("-")
    return bool(arguments) and (arguments[0] == "serve" or arguments[0].startswith("-"))  # as `main.main`
