from __future__ import annotations

import random
import time
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
def test_a_pedantic_request_is_refused(name: str, given: bool) -> None:
    with pytest.raises(ApiError, match="origin stream has direct get set"):
        inherited(wire("M", mirror={"name": name}), KNOWN.get, given=given)
    assert inherited(wire("M", mirror={"name": name}), KNOWN.get, given=not given)["mirror_direct"] is not given


def old_check_repeated(config: dict[str, Any], find: Any) -> bool:
    """The check as it was before: a walk for every link."""
    listed: set[str] = set()
    for link in config.get("sources", ()):
        seen, open_ = {link["name"]}, [link["name"]]
        while open_:
            found = find(open_.pop()) or {}
            for upstream in {other["name"] for other in found.get("sources", ())} - seen:
                if upstream in listed:
                    return True
                seen.add(upstream)
                open_.append(upstream)
        listed.add(link["name"])
    return False


def test_lists_that_lead_to_themselves_are_found_as_by_walking_from_each_link() -> None:
    rng = random.Random(5)
    told = 0
    for _ in range(2000):
        names = "ABCDEF"
        streams: dict[str, dict[str, Any]] = {
            name: {"name": name, "max_msg_size": -1, "sources": [{"name": rng.choice(names)} for _ in range(count)]}
            for name in names
            if (count := rng.randint(0, 2)) or rng.random() < 0.7
        }
        listed = [{"name": rng.choice(names)} for _ in range(rng.randint(1, 5))]
        config = {"name": "S", "max_msg_size": -1, "sources": listed}
        expected = old_check_repeated(config, streams.get)
        told += expected
        if expected:
            with pytest.raises(ApiError):
                check_upstreams(config, streams.get)
        else:
            check_upstreams(config, streams.get)
    assert 200 < told < 1800


def test_thousands_of_sources_from_streams_with_thousands_are_checked_quickly() -> None:
    def many(name: str, upstreams: list[str]) -> dict[str, Any]:
        return {"name": name, "max_msg_size": -1, "subjects": [], "sources": [{"name": u} for u in upstreams]}

    leaves = {f"L{i}": many(f"L{i}", []) for i in range(3000)}
    middle = {f"M{i}": many(f"M{i}", list(leaves)) for i in range(30)}
    known = {**leaves, **middle}
    begun = time.process_time()
    check_upstreams(many("S", list(middle) * 100), known.get)
    own = [f"s{i}.x" for i in range(3000)]
    again = {"name": "S", "subject_transforms": [{"src": f"q{i}.*", "dest": ""} for i in range(3000)]}
    check_upstreams({"name": "S", "max_msg_size": -1, "subjects": own, "sources": [again]}, {}.get)
    assert time.process_time() - begun < 1.5


def test_a_mirror_without_a_name_inherits_nothing() -> None:
    """That it has none is refused by the other rules, after this."""
    config = wire("M", mirror={})
    assert inherited(config, KNOWN.get) == config
