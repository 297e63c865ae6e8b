"""A keyring of each cipher."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.sealing.ciphers import AES, CHACHAPOLY
from jetcluster.sealing.keyring import Keyring
from testkit.twins.time import SeededRng


@pytest.fixture(params=[AES, CHACHAPOLY])
def keyring(request: pytest.FixtureRequest, tmp_path: Path) -> Keyring:
    return Keyring.make(tmp_path, "key", request.param, rng=SeededRng(1))
