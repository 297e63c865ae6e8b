"""The supervisor's decisions; tests/cluster/test_workers.py has the processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.cli.supervisor import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    STEADY_SECONDS,
    Plan,
    Supervisor,
    Worker,
)
from jetcluster.config.load import load_text
from jetcluster.config.options import Options
from jetcluster.logs import get_logger
from jetcluster.net.shared_ports import HeldPortError


def options(text: str = "") -> Options:
    return load_text(f'server_name: m\nlisten: "127.0.0.1:-1"\n{text}', "c.conf", {})[0]


def first_of_two_ports() -> int:
    """A free port whose successor is free too: connections that closed lately keep theirs."""
    while True:
        with socket.create_server(("", 0)) as one:
            port = int(one.getsockname()[1])
            try:
                socket.create_server(("", port + 1)).close()
            except OSError:
                continue
        return port


def test_a_worker_that_keeps_ending_is_started_ever_more_slowly() -> None:
    worker = Worker(0, "m")
    pauses = [worker.pause_after(1.0) for _ in range(9)]
    assert pauses[:3] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    assert worker.pause_after(STEADY_SECONDS) == FIRST_PAUSE_SECONDS


def test_workers_without_a_cluster_have_the_loopback_and_a_password() -> None:
    plan = Plan(options(), 3)
    place = plan.place
    assert place.alone
    assert len(set(place.cluster_ports)) == 3
    assert place.route == f"127.0.0.1:{place.cluster_ports[0]}"
    assert place.ports["http"] == 0
    plan.close()


def test_workers_of_a_cluster_have_the_ports_after_the_first() -> None:
    port = first_of_two_ports()
    plan = Plan(options(f'cluster {{ name: c, listen: "127.0.0.1:{port}" }}'), 2)
    assert plan.place.cluster_ports == (port, port + 1)
    assert not plan.place.alone
    plan.close()


def test_no_port_is_held_after_a_refusal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HeldPortError):
            Plan(options(f'http: "127.0.0.1:{port}"'), 2)


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        (
            'listen: "127.0.0.1:{1}", cluster {{ name: c, listen: "127.0.0.1:{0}" }}',
            "clients and of routes of worker 1",
        ),
        ('listen: "0.0.0.0:{1}", cluster {{ name: c, listen: "127.0.0.1:{0}" }}', "clients and of routes of worker 1"),
        ('listen: "127.0.0.1:{1}", http: "127.0.0.1:{1}"', "clients and of monitoring"),
    ],
)
def test_one_port_for_two_uses_is_refused_by_name(text: str, uses: str) -> None:
    port = first_of_two_ports()
    asked, _ = load_text("server_name: m, " + text.format(port, port + 1), "c.conf", {})
    with pytest.raises(HeldPortError, match=rf":{port + 1}: bind: address already in use: it is the port of {uses}$"):
        Plan(asked, 2)


def test_the_ports_file_has_each_url_once() -> None:
    plan = Plan(options(), 2)
    plan.close()
    supervisor = Supervisor(options(), plan, get_logger("t"), options, [])
    for index, worker in enumerate(supervisor.workers):
        worker.ports = {"nats": ["nats://h:4222"], "cluster": [f"nats://h:622{index}"]}
    assert supervisor.listening() == {"nats": ["nats://h:4222"], "cluster": ["nats://h:6220", "nats://h:6221"]}
    assert [worker.name for worker in supervisor.workers] == ["m", "m-w1"]


class Process:
    """A process that only notes its signals."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self.got: list[int] = []

    def send_signal(self, number: int) -> None:
        self.got.append(number)


def started() -> tuple[Supervisor, list[Process]]:
    """A supervisor of two processes, of which the second does not serve yet."""
    plan = Plan(options(), 2)
    plan.close()
    supervisor = Supervisor(replace(options(), config_file="c.conf"), plan, get_logger("t"), options, [])
    found = [Process(), Process()]
    for worker, process in zip(supervisor.workers, found, strict=True):
        worker.begin()
        worker.process = process  # type: ignore[assignment]
    supervisor.workers[0].served({"nats": ["nats://h:4222"]})
    return supervisor, found


def test_a_worker_gets_signals_that_would_end_it_only_once_it_handles_them() -> None:
    supervisor, (ready, starting) = started()
    supervisor.reload()
    supervisor.reopen()
    assert ready.got == [signal.SIGHUP, signal.SIGUSR1]
    assert starting.got == []
    supervisor.workers[1].served({})
    assert sorted(starting.got) == [signal.SIGHUP, signal.SIGUSR1], "it may have read the old file"
    supervisor.workers[1].served({})
    assert len(starting.got) == 2


def test_a_process_that_starts_later_gets_no_signal_for_what_it_reads_itself() -> None:
    worker = Worker(0, "m")
    worker.tell(signal.SIGHUP)
    worker.begin()
    process: Any = Process()
    worker.process = process
    worker.served({})
    assert process.got == []


async def test_a_worker_that_does_not_serve_yet_is_ended_by_term() -> None:
    supervisor, (ready, starting) = started()
    supervisor.leave()
    supervisor.stop()
    assert ready.got == [signal.SIGUSR2, signal.SIGINT]
    assert starting.got == [signal.SIGTERM, signal.SIGTERM]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
async def test_no_order_to_end_is_lost_while_processes_are_started(number: signal.Signals) -> None:
    plan = Plan(options(), 2)

    def says(text: str) -> None:
        if text.startswith("Starting"):  # just before
            os.kill(os.getpid(), number)

    log: Any = SimpleNamespace(info=says, warning=says, error=says, fatal=says)
    supervisor = Supervisor(options(), plan, log, options, ["/bin/sh", "-c", "exec sleep 30"])
    try:
        async with asyncio.timeout(5):
            assert await supervisor.run() == 0
    finally:
        for worker in supervisor.workers:
            worker.send(signal.SIGKILL)
        plan.close()
