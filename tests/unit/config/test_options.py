"""Keys whose signatures count in operator mode."""

from __future__ import annotations

from typing import Any

from jetcluster.config.options import OperatorOptions


class Claims:
    def __init__(self, own: str, *signing: str, strict: bool) -> None:
        self.signing_keys = signing
        self.strict_signing_keys = strict
        self.keys = [*([] if strict else [own]), *signing]


def test_operators_and_trusted_keys_together() -> None:
    strict: Any = Claims("O1", "S1", strict=True)
    plain: Any = Claims("O2", "S2", strict=False)
    assert not OperatorOptions().is_on
    assert OperatorOptions(operators=[strict]).is_on and OperatorOptions(trusted_keys=["K"]).is_on
    options = OperatorOptions(operators=[strict, plain], trusted_keys=["K"])
    assert options.keys == ["K", "S1", "O2", "S2"]
    assert options.strict_keys == ["S1"]
    assert "secret" not in repr(OperatorOptions(default_sentinel="secret"))
