"""Files of operators."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.config.claims.operator import read_operator
from jetcluster.config.claims.token import ClaimsError, undecorated
from tests.unit.config.jwts import OPERATOR


def test_files_of_operators(tmp_path: Any) -> None:
    decorated = f"---- BEGIN ----\r\n{OPERATOR.jwt}\r\n---- END ----\r\n"
    assert undecorated(decorated) == undecorated(f"\n{OPERATOR.jwt}\n") == OPERATOR.jwt
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    for name, error in ((str(tmp_path / "binary"), ClaimsError), (str(tmp_path), OSError), ("nowhere", OSError)):
        with pytest.raises(error):
            read_operator(name)
