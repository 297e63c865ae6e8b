"""Options and fixtures for all tests: which server the process tests start, and why a group cannot run here."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from testkit.harness import Node, ProcessCluster, find_nats_cli, find_server
from tests.rotation import leave_out
from tests.unit.server.wire import close_all


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--server",
        default=os.environ.get("TEST_SERVER", "jetcluster"),
        choices=["jetcluster", "nats-server"],
        help="the server that tests/cluster and tests/interop start: ours, or the peer as an oracle for the tests",
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    peer, cli = find_server("nats-server"), find_nats_cli()
    return [
        f"server under test: {config.getoption('--server')}",
        f"nats-server: {peer[0] if peer else 'not installed (make tools; needs Go)'}",
        f"nats CLI: {cli or 'not installed (make tools; needs Go)'}",
    ]


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> str:
    kind: str = request.config.getoption("--server")
    if find_server(kind) is None:
        pytest.skip(f"{kind} is not on this machine: run `make tools` (needs Go and its module proxy)")
    return kind


@pytest.fixture(scope="session")
def tool() -> str:
    found = find_nats_cli()
    if found is None:
        pytest.skip("the nats CLI is not on this machine: run `make tools` (needs Go and its module proxy)")
    return found


@pytest.fixture
def durable(server: str) -> str:
    """Config text that makes the server fsync before it acks: jetcluster does so by default."""
    return "jetstream { sync_interval: always }\n" if server == "nats-server" else ""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes what failed for the last lines of `make test`: a log of half an hour is often shown by its end alone."""
    path = os.environ.get("JETCLUSTER_FAILURES")
    if path and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        said = report.longreprtext.splitlines()
        reason = next((line for line in said if line.startswith("E ")), said[-1] if said else "")
        with Path(path).open("a") as notes:
            notes.write(f"{report.nodeid} ({report.when}, {report.duration:.1f} s): {reason[1:].strip()[:300]}\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files run beside each other: those that take long begin first, lest the last of them runs alone."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    leave_out(items)


def pytest_collection_finish() -> None:
    """Ten thousand collected tests stay to the end: no collection of garbage has to look at them. Tests that are over
    before their clusters are freed collect by hand (testkit/sim/shared.py), which
    took longer than the tests themselves."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Servers are forked, but for tests of starting itself, of memory and of the command (marker `started`)."""
    marker = item.get_closest_marker("ours")
    if marker and item.config.getoption("--server") != "jetcluster":
        pytest.skip(marker.args[0])
    Node.forked = item.get_closest_marker("started") is None


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A fixture does not see that its test failed: tell it, so that it keeps the logs."""
    report = yield
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
    return report


def _monitored(request: pytest.FixtureRequest) -> bool:
    """Monitoring costs each node a fifth of a second of processor time: only those have it that look at it."""
    return request.node.get_closest_marker("monitored") is not None


@pytest.fixture
async def cluster(server: str, durable: str, request: pytest.FixtureRequest) -> AsyncIterator[ProcessCluster]:
    """Three fresh nodes; ended by pid whatever happens. Their logs are printed and kept when the test fails."""
    async with ProcessCluster(3, server, config=durable, monitor=_monitored(request)) as nodes:
        yield nodes
        nodes.failed = request.node.stash.get(FAILED, False)


@pytest.fixture(scope="module")
def shared(server: str, request: pytest.FixtureRequest) -> Iterator[ProcessCluster]:
    """Three nodes for all tests of a module, which therefore each use names of their own and kill nothing."""
    nodes = ProcessCluster(3, server, monitor=_monitored(request))
    failures = request.session.testsfailed
    asyncio.run(nodes.__aenter__())
    yield nodes
    nodes.failed = request.session.testsfailed > failures
    asyncio.run(nodes.__aexit__(None))


@pytest.fixture
async def tidy(shared: ProcessCluster) -> AsyncIterator[ProcessCluster]:
    """The module's three nodes without streams: what a test leaves there is deleted after it. It kills nothing."""
    yield shared
    async with await shared[0].connect() as client:
        for name in (await client.api("STREAM.NAMES", {}))["streams"] or []:
            await client.api(f"STREAM.DELETE.{name}")


@pytest.fixture
async def closed_wires() -> AsyncIterator[None]:
    """Raw connections that the test opens are closed at its end."""
    yield
    await close_all()


@pytest.fixture
async def single(server: str, durable: str, request: pytest.FixtureRequest) -> AsyncIterator[ProcessCluster]:
    """One fresh node without a cluster."""
    async with ProcessCluster(1, server, config=durable, monitor=_monitored(request)) as nodes:
        yield nodes
        nodes.failed = request.node.stash.get(FAILED, False)
