"""Columns and their types."""

from __future__ import annotations

import pytest

from jetcluster.arrow.schema import (
    SchemaError,
    check_columns,
    default_columns,
)


def test_names_of_columns() -> None:
    assert default_columns() == ["stream", "subject", "seq", "time", "time_ns", "headers", "data"]
    assert "headers" not in default_columns(headers=False)
    for names, said in ((["sequence"], "did you mean seq"), (["seq", "seq"], "named once"), ([], "named once")):
        with pytest.raises(SchemaError, match=said):
            check_columns(names)
