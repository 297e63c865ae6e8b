from __future__ import annotations

from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client as NATS

from testkit.harness import TOP, ProcessCluster
from tests.interop import builds


@pytest.fixture
async def nc(shared: ProcessCluster) -> AsyncIterator[NATS]:
    connection = await nats.connect(shared.urls, dont_randomize=True)
    yield connection
    await connection.close()


@pytest.fixture
def newest_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nats-server whose version our clients are told, 2.15.3, where `scripts/tools.sh peer` has installed it; else
    the one of the other tests."""
    peer = TOP / ".tools/peer/nats-server"
    if peer.is_file():
        monkeypatch.setenv("NATS_SERVER", str(peer))


@pytest.fixture(scope="session")
def go_suite(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return builds.go_suite(tmp_path_factory.mktemp("go"))


@pytest.fixture(scope="session")
def js_suite(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return builds.js_suite(tmp_path_factory.mktemp("js"))


@pytest.fixture(scope="session")
def java_member(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return builds.java_member(tmp_path_factory.mktemp("java"))
