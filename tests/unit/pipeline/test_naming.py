"""Names of Spark's jobs, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.pipeline.naming import DESCRIPTION, named


class Context:
    """A thread's properties."""

    def __init__(self) -> None:
        self.properties: dict[str, Any] = {}

    def getLocalProperty(self, key: str) -> Any:
        return self.properties.get(key)

    def setLocalProperty(self, key: str, value: Any) -> None:
        self.properties[key] = value


def test_a_name_holds_inside_and_the_callers_comes_back() -> None:
    context = Context()
    session: Any = SimpleNamespace(sparkContext=context)
    with named(session, "outer"):
        with pytest.raises(ValueError, match="inside"), named(session, "inner"):
            assert context.properties == {DESCRIPTION: "inner"}
            raise ValueError("inside")
        assert context.properties == {DESCRIPTION: "outer"}
    assert context.properties == {DESCRIPTION: None}


def test_a_session_of_connect_has_tags() -> None:
    tags: set[str] = set()
    session: Any = SimpleNamespace(addTag=tags.add, removeTag=tags.remove)
    with pytest.raises(ValueError, match="inside"), named(session, "a, b"):
        assert tags == {"a; b"}
        raise ValueError("inside")
    assert not tags
