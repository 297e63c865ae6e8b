"""`ForkServer`: server processes for tests by fork, from a process that has imported all of the server already.

A third of a second of every start of a server is imports, and the process tests start some two thousand. What is
forked runs `jetcluster.cli.main` as a started one does, with its own log, folder, environment and exit code. Tests of
starting itself, and those that give the process an environment of its own, start it the real way (`harness.Node`).
The precedent is `multiprocessing.forkserver`, whose children have no exit codes for anyone but their server either.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

TOP: Final = Path(__file__).resolve().parents[1]
LARGEST: Final = 1 << 20
"""Bytes of a request: arguments and an environment."""
PR_SET_PDEATHSIG: Final = 1
NOT_OF_A_SERVER: Final = (
    "jetcluster.arrow",
    "jetcluster.spark",
    "jetcluster.pipeline",
    "jetcluster.cli",
    "jetcluster.__main__",
)
_libc = ctypes.CDLL(None, use_errno=True)


class ForkedProcess:
    """The part of `subprocess.Popen` that tests use, for a child of the fork server."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._ended = os.pidfd_open(pid)
        """Readable when the process has ended."""

    def poll(self) -> int | None:
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired(f"server {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            self.returncode = self._server.reap(self.pid)
            os.close(self._ended)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._ended, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """One per test process, which it dies with; so do the servers that it has forked."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
        self._socket = ours
        path = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH", "")]))
        env = {**os.environ, "PYTHONPATH": path}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "testkit.forks", str(theirs.fileno())],
            stdin=subprocess.DEVNULL, env=env, cwd=TOP, pass_fds=[theirs.fileno()], preexec_fn=die_with_parent,
        )  # fmt: skip
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, words: Sequence[str], env: Mapping[str, str], folder: Path, log: Path) -> ForkedProcess:
        """`jetcluster <words>` in `folder`, with the environment `env`; what it prints is added to the file `log`."""
        request = {"words": list(words), "env": dict(env), "folder": str(folder), "log": str(log)}
        return ForkedProcess(self, self._ask(request)["pid"])

    def reap(self, pid: int) -> int:
        """The exit code of a process that has ended, as `subprocess` tells it."""
        code: int = self._ask({"reap": pid})["code"]
        return code

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._socket.sendall(json.dumps(request).encode())
        reply = self._socket.recv(LARGEST)
        assert reply, f"the fork server has ended with {self._process.poll()}"
        answer: dict[str, Any] = json.loads(reply)
        return answer

    def close(self) -> None:
        """Ends it, and with it all servers that still run."""
        self._socket.close()
        self._process.wait(10)


def die_with_parent() -> None:
    """Asks for SIGKILL, in the child, when the test process goes, so that no server outlives it."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _import_server() -> None:
    import jetcluster
    import jetcluster.cli.main

    importlib.import_module("jetcluster.cli.flags")
    importlib.import_module("jetcluster.cli.merge")
    for found in pkgutil.walk_packages(jetcluster.__path__, "jetcluster."):
        if not found.name.startswith(NOT_OF_A_SERVER):
            importlib.import_module(found.name)
    for library in ("aiohttp.web", "rocksdict", "uvloop"):
        importlib.import_module(library)


def _serve(asked: socket.socket) -> list[str] | None:
    """Answers requests until the tests have gone (None). In a child: the words of its command line."""
    while request := asked.recv(LARGEST):
        order = json.loads(request)
        if "reap" in order:
            _, status = os.waitpid(order["reap"], 0)
            asked.sendall(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())
            continue
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            asked.close()
            die_with_parent()
            if os.getppid() != parent:
                os._exit(1)
            _become(order)
            words: list[str] = order["words"]
            return words
        asked.sendall(json.dumps({"pid": pid}).encode())
    return None


def _become(order: dict[str, Any]) -> None:
    """Makes the forked process what a started one would be."""
    os.environ.clear()
    os.environ.update(order["env"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(order["folder"])
    sys.argv = [str(Path(sys.executable).parent / "jetcluster"), *order["words"]]
    sys.orig_argv = [sys.executable, "-m", "jetcluster", *order["words"]]  # a server starts itself again with these


def main() -> int:
    import gc

    asked = socket.socket(fileno=int(sys.argv[1]))
    _import_server()
    gc.collect()
    gc.freeze()  # or every collection of a child would copy all that it shares with the others
    words = _serve(asked)
    if words is None:
        return 0
    from jetcluster.cli.main import main as run

    try:
        return run(words)
    except Exception:
        with contextlib.suppress(OSError):
            traceback.print_exc()
        return 1


if __name__ == "__main__":
    sys.exit(main())
