from __future__ import annotations

import pytest

from testkit.server_rig import ServerRig
from tests.unit.server.leaf_rig import LeafRig
from tests.unit.server.tls_cases import Certificates


@pytest.fixture
def rig() -> ServerRig:
    return ServerRig()


@pytest.fixture
def leaf_rig() -> LeafRig:
    return LeafRig()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))
