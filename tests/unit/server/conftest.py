from __future__ import annotations

import pytest

from testkit.server_rig import Bench
from tests.unit.server.leaf_bench import Site
from tests.unit.server.tls_cases import Certificates


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))
