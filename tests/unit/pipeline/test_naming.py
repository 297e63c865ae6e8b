"""Names of Spark's jobs, without Spark."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.pipeline import main
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


@pytest.mark.parametrize(
    ("words", "name"), [({"bucket": "PRICES", "stream": None}, "snapshot of PRICES"), ({}, "snapshot")]
)
def test_a_job_names_its_work(words: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context, seen = Context(), []
    job = SimpleNamespace(
        add_arguments=lambda parser: parser.set_defaults(**words),
        run=lambda session, args: seen.append(context.properties[DESCRIPTION]),
    )
    monkeypatch.setattr(importlib, "import_module", lambda _: job)
    session: Any = SimpleNamespace(sparkContext=context)
    main.run_in(session, "snapshot")
    assert seen == [name] and context.properties == {DESCRIPTION: None}
