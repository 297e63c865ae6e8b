from __future__ import annotations

from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.model.link_rules import check_upstreams, inherited
from jetcluster.model.stream import StreamConfig


def wire(name: str, **fields: Any) -> dict[str, Any]:
    return StreamConfig.model_validate({"name": name, **fields}).normalised().to_wire()


STREAMS = [
    wire("A", subjects=["a.>"], allow_direct=True, max_msg_size=100),
    wire("B", subjects=["b.>"], sources=[{"name": "A"}]),
    wire("C", sources=[{"name": "B"}]),
    wire("LOST", sources=[{"name": "NOBODY"}]),
]
KNOWN = {config["name"]: config for config in STREAMS}


def source(name: str, **fields: Any) -> dict[str, Any]:
    return {"sources": [{"name": name, **fields}]}


@pytest.mark.parametrize(
    ("config", "err_code"),
    [
        (wire("A", subjects=["a.>"], **source("B")), 10052),
        (wire("A", subjects=["a.>"], **source("B", filter_subject="b.>")), 10052),
        (wire("B", subjects=["b.>"], **source("C", filter_subject="zz")), 10052),
        (wire("A", mirror={"name": "B"}), 10052),
        (wire("S", subjects=["s"], **source("S")), 10052),
        (wire("S", mirror={"name": "S"}), 10052),
        (wire("M", mirror={"name": "A"}, max_msg_size=10), 10030),
        (wire("M", max_msg_size=10, **source("A")), 10046),
        (wire("S", sources=[{"name": "A"}, {"name": "B"}]), 10052),
        (wire("S", sources=[{"name": "A", "filter_subject": "a.1"}, {"name": "C", "filter_subject": "q"}]), 10052),
    ],
)
def test_refused(config: dict[str, Any], err_code: int) -> None:
    with pytest.raises(ApiError) as refused:
        check_upstreams(config, KNOWN.get)
    assert refused.value.err_code == err_code


@pytest.mark.parametrize(
    "config",
    [
        wire("S", subjects=["s"], **source("S", filter_subject="q")),
        wire("S", **source("C")),
        wire("S", sources=[{"name": "B"}, {"name": "A"}]),
        wire("S", sources=[{"name": "A", "filter_subject": "a.1"}, {"name": "A", "filter_subject": "a.2"}]),
        wire("M", mirror={"name": "NOBODY"}, max_msg_size=10),
        wire("M", mirror={"name": "A"}, max_msg_size=100),
        wire("M", mirror={"name": "B"}, max_msg_size=10),
        wire("A", subjects=["a.>"], **source("B", external={"api": "$JS.hub.API"})),
        wire("LOST", **source("C")),
    ],
)
def test_accepted(config: dict[str, Any]) -> None:
    check_upstreams(config, KNOWN.get)


def test_mirror_direct_is_the_upstreams_allow_direct() -> None:
    def of(name: str, **fields: Any) -> bool:
        given = wire("M", mirror={"name": name, **fields.pop("link", {})}, **fields)
        found: bool = inherited(given, KNOWN.get)["mirror_direct"]
        return found

    assert of("A")
    assert not of("B", mirror_direct=True)
    assert of("NOBODY", mirror_direct=True)
    assert not of("A", link={"external": {"api": "$JS.hub.API"}})
    assert not inherited(wire("S", **source("A")), KNOWN.get)["mirror_direct"]


@pytest.mark.parametrize(("name", "given"), [("A", False), ("B", True)])
def test_a_pedantic_request_is_told(name: str, given: bool) -> None:
    with pytest.raises(ApiError, match="origin stream has direct get set"):
        inherited(wire("M", mirror={"name": name}), KNOWN.get, given=given)
    assert inherited(wire("M", mirror={"name": name}), KNOWN.get, given=not given)["mirror_direct"] is not given


def test_a_mirror_without_a_name_inherits_nothing() -> None:
    """That it has none is told by the other rules, after this."""
    config = wire("M", mirror={})
    assert inherited(config, KNOWN.get) == config
