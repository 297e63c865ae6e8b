"""The supervisor of workers: it starts them, starts one again that ends, and passes signals on to all.

It holds the ports (`net.shared_ports`), the pid file and the ports file, reads the configuration of a reload first, and
serves nothing itself. A worker is the same program with `--worker` and its place in the environment
(`config.workers`), and reports over a socket that it serves (`node.supervised`). It ends when that socket does, so a
supervisor that is killed leaves no server behind.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from jetcluster import file_modes, logs
from jetcluster.config.changes import changed_fields, described
from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import Options, WorkerOptions
from jetcluster.config.runtime_files import PortsFileError, remove_ports_file, write_pid_file, write_ports_file
from jetcluster.config.workers import ENVIRONMENT, LOOPBACK, encode_place, name_of
from jetcluster.logs import Logger
from jetcluster.net.open_port import WILDCARDS, own_address
from jetcluster.net.shared_ports import HeldPort, HeldPortError

FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 10.0
"""Time before a worker that ended is started again: doubles from the first to the second."""
STEADY_SECONDS: Final = 60.0
"""Time of service after which the end of a worker counts as the first one."""
KILL_SECONDS: Final = 130.0
"""Time after the order to stop until a worker is killed; by itself it ends within 120 s (`node.process`)."""
_LOGGING: Final = frozenset({"debug", "trace", "logtime", "logtime_utc", "log_file", "log_format", "log_size_limit"})


class Plan:
    """The ports and the places of the workers. Raises HeldPortError."""

    def __init__(self, options: Options, count: int, secret: Callable[[], str] = lambda: os.urandom(24).hex()) -> None:
        self.count = count
        self.machine = options.server_name or socket.gethostname()
        self._held: list[tuple[str, HeldPort]] = []
        """Uses and ports."""
        try:
            ports = {"client": self._hold("clients", options.host, options.port)}
            http = options.http_port or options.https_port
            ports["http"] = self._hold("monitoring", options.http_host or options.host, http) if http else 0
            if options.websocket.port:
                ports["websocket"] = self._hold("WebSocket", options.websocket.host, options.websocket.port)
            if options.leafnodes.port:
                ports["leafnodes"] = self._hold("leaf nodes", options.leafnodes.host, options.leafnodes.port)
            cluster = options.cluster
            alone = not options.is_clustered
            host = LOOPBACK if alone else cluster.host
            first = 0 if alone else max(cluster.port, 0)
            found = [
                self._hold(f"routes of worker {index}", host, first + index if first else 0) for index in range(count)
            ]
        except HeldPortError:
            self.close()
            raise
        self.place = WorkerOptions(
            0, count, self.machine, tuple(found), f"{_reached_at(options, host)}:{found[0]}", ports,
            secret() if alone else "",
        )  # fmt: skip

    def _hold(self, use: str, host: str, port: int) -> int:
        try:
            held = HeldPort(host, max(port, 0))
        except HeldPortError as error:
            for other, earlier in self._held:
                if earlier.port == port and error.error.errno == errno.EADDRINUSE:
                    more = f": it is the port of {other} and of {use}"
                    raise HeldPortError(host, port, error.error, more) from error
            raise
        self._held.append((use, held))
        return held.port

    def close(self) -> None:
        for _, held in self._held:
            held.close()


def _reached_at(options: Options, host: str) -> str:
    """Returns the address of worker 0's cluster port, by which other machines know it too."""
    advertised = options.cluster.cluster_advertise
    if advertised:
        name, separator, port = advertised.rpartition(":")
        return name if separator and port.isdigit() else advertised
    if host in WILDCARDS:
        host = own_address()
    return f"[{host}]" if ":" in host else host


class Worker:
    """One worker, over all its processes."""

    def __init__(self, index: int, name: str) -> None:
        self.index, self.name = index, name
        self.process: asyncio.subprocess.Process | None = None
        """None while none runs."""
        self.ports: dict[str, list[str]] = {}
        """URLs by kind; empty until the worker has served."""
        self.ready = False
        """True once the present process has said that it serves: from then on it handles all signals."""
        self._missed: set[signal.Signals] = set()
        self._pause = FIRST_PAUSE_SECONDS

    def pause_after(self, served: float) -> float:
        """Returns the seconds before the next start, after a process that ran for `served` seconds."""
        if served >= STEADY_SECONDS:
            self._pause = FIRST_PAUSE_SECONDS
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return pause

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    def tell(self, number: signal.Signals) -> None:
        """Sends HUP or USR1, which would end a process without handlers, once the worker is ready: it may have read the
        files already."""
        if self.ready:
            self.send(number)
        else:
            self._missed.add(number)

    def end(self, number: signal.Signals = signal.SIGINT) -> None:
        """Sends INT or USR2. A process that has not served yet gets TERM, at which it ends at any time."""
        self.send(number if self.ready else signal.SIGTERM)

    def begin(self) -> None:
        """Called before a process is started: it reads the files as they are from now on."""
        self.process, self.ready = None, False
        self._missed.clear()

    def served(self, ports: dict[str, list[str]]) -> None:
        """Called when the process serves, with its URLs."""
        self.ports, self.ready = ports, True
        missed, self._missed = self._missed, set()
        for number in missed:
            self.send(number)


class Supervisor:
    """The workers of one machine. `run` returns the exit code when all have ended for good."""

    def __init__(
        self, options: Options, plan: Plan, log: Logger, read_options: Callable[[], Options], command: list[str]
    ) -> None:
        """`read_options` reads the configuration of a reload, and raises ConfigError. `command` starts this server."""
        self.workers = [Worker(index, name_of(plan.machine, index)) for index in range(plan.count)]
        self._options, self._plan, self._log = options, plan, log
        self._read_options = read_options
        self._command = command
        self._served = False
        """True once all workers have served."""
        self._ending = asyncio.Event()
        """Set when no worker is started again."""
        self._lame_duck = False
        self._exit_code = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number, act in (
            (signal.SIGINT, self.stop),
            (signal.SIGTERM, self._terminate),
            (signal.SIGUSR2, self.leave),
            (signal.SIGUSR1, self.reopen),
            (signal.SIGHUP, self.reload),
        ):
            loop.add_signal_handler(number, act)
        if self._options.pid_file:
            write_pid_file(self._options.pid_file)
        self._log.info(f"Starting {len(self.workers)} workers")
        for warning in self._options.warnings:
            self._log.warning(warning)
        try:
            await asyncio.gather(*(self._keep(worker) for worker in self.workers))
        finally:
            if self._options.ports_file_dir:
                remove_ports_file(self._options.ports_file_dir)
        return self._exit_code

    # ---- processes

    async def _keep(self, worker: Worker) -> None:
        """Runs the worker's processes, one after the other, until the supervisor ends."""
        while not self._ending.is_set():
            loop = asyncio.get_running_loop()
            began = loop.time()
            code = await self._run(worker)
            worker.process = None
            if self._ending.is_set() and not worker.ready and code == -signal.SIGTERM:
                code = 0  # by our order, before it had begun anything
            if self._ending.is_set() or not self._served:
                self._exit_code = self._exit_code or min(abs(code), 1)
                if not self._ending.is_set():
                    self._log.fatal(f"Worker {worker.index} could not start")
                    self.stop()
                return
            pause = worker.pause_after(loop.time() - began)
            self._log.error(
                f"Worker {worker.index} ended ({_ending_of(code)}); it is started again in {pause:g} s",
            )
            await self._wait(pause)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        except TimeoutError:
            pass

    async def _run(self, worker: Worker) -> int:
        """Runs one process and returns its exit code."""
        ours, theirs = socket.socketpair()
        worker.begin()
        place = replace(self._plan.place, index=worker.index, link=theirs.fileno())
        try:
            worker.process = await asyncio.create_subprocess_exec(
                *self._command, "--worker", str(worker.index),
                env={**os.environ, ENVIRONMENT: encode_place(place)}, pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL, process_group=0, umask=file_modes.given(),
            )  # fmt: skip
        except OSError as error:
            ours.close()
            self._log.error(f"Worker {worker.index}: {error}")
            return 1
        finally:
            theirs.close()
        if self._ending.is_set():  # the order came while the process was started
            worker.end()
        reader, writer = await asyncio.open_connection(sock=ours)
        listening = asyncio.ensure_future(self._listen(worker, reader))
        try:
            return await worker.process.wait()
        finally:
            listening.cancel()
            writer.close()

    async def _listen(self, worker: Worker, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message = json.loads(line)
            if "ready" in message:
                worker.served(message["ready"])
                self._look_if_ready()
            elif "reload" in message:
                self.reload()

    def _look_if_ready(self) -> None:
        if self._served or not all(worker.ports for worker in self.workers):
            return
        self._served = True
        self._write_ports_file()
        self._log.info("Server is ready")

    def listening(self) -> dict[str, list[str]]:
        """Returns the URLs of all ports by kind, each once."""
        found: dict[str, list[str]] = {}
        for worker in self.workers:
            for kind, urls in worker.ports.items():
                known = found.setdefault(kind, [])
                known += [url for url in urls if url not in known]
        return found

    def _write_ports_file(self) -> None:
        if not self._options.ports_file_dir:
            return
        try:
            write_ports_file(self._options.ports_file_dir, self.listening())
        except PortsFileError as error:
            self._log.error(str(error))

    # ---- signals

    def _kill(self) -> None:
        for worker in self.workers:
            worker.send(signal.SIGKILL)

    def _tell(self, number: signal.Signals) -> None:
        for worker in self.workers:
            worker.tell(number)

    def stop(self) -> None:
        """Ends all workers, and kills those that are left after KILL_SECONDS."""
        self._ending.set()
        for worker in self.workers:
            worker.end()
        asyncio.get_running_loop().call_later(KILL_SECONDS, self._kill)

    def _terminate(self) -> None:
        if not self._lame_duck:  # nats-server ignores TERM while it is a lame duck
            self.stop()

    def leave(self) -> None:
        """Lame duck mode: each worker sends its clients away and ends."""
        self._lame_duck = True
        self._ending.set()
        for worker in self.workers:
            worker.end(signal.SIGUSR2)

    def reopen(self) -> None:
        """Opens all logs again."""
        logs.reopen()
        self._tell(signal.SIGUSR1)

    def reload(self) -> None:
        """Has all workers read the configuration again, if it is one that they can take over."""
        options, log = self._options, self._log
        try:
            new, changed = self._take()
        except (ConfigError, OSError, ValueError) as error:
            log.error(f"Failed to reload server configuration: {str(error).rstrip()}")  # noqa: TRY400
            return
        lines, left = described(changed, options, new), options.ports_file_dir
        for field in fields(Options):
            setattr(options, field.name, getattr(new, field.name))
        if "ports_file_dir" in changed:
            if left:
                remove_ports_file(left)
            if self._served:
                self._write_ports_file()
        for line in lines:
            log.info(f"Reloaded: {line}")
        self._tell(signal.SIGHUP)

    def _take(self) -> tuple[Options, list[str]]:
        """Reads the configuration and takes over what may fail. Returns the options and the names of changed ones.
        Raises ConfigError, OSError and ValueError."""
        if not self._options.config_file:
            raise ConfigError("can only reload config when a file is provided using -c or --config")
        new = self._read_options()
        changed = changed_fields(self._options, new)
        if "pid_file" in changed and new.pid_file:
            write_pid_file(new.pid_file)
        if _LOGGING & set(changed):
            logs.configure(new)
        return new, changed


def _ending_of(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def command_of(words: Sequence[str]) -> list[str]:
    """Returns the command line of this process, which was asked to serve with the flags `words`."""
    own = sys.orig_argv
    if words and own[-len(words) :] == list(words):
        return [sys.executable, *own[1:]]
    return [sys.executable, "-m", "jetcluster", "serve", *words]


def supervise(
    options: Options, count: int, log: Logger, read_options: Callable[[], Options], words: Sequence[str]
) -> int:
    """Runs `count` workers until they end, and returns the exit code of this process. `words`: its flags."""
    try:
        plan = Plan(options, count)
    except HeldPortError as error:
        log.fatal(f"Error listening on port: {error}")
        return 1
    command = command_of(words)

    async def run() -> Any:
        return await Supervisor(options, plan, log, read_options, command).run()

    try:
        return int(asyncio.run(run()))
    except OSError as error:  # the pid file
        log.fatal(str(error))
        return 1
    finally:
        plan.close()
