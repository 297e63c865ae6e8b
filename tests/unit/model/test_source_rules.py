from __future__ import annotations

import time
from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.model.source_rules import MAX_TRANSFORM_BYTES, check_links
from jetcluster.model.stream import StreamConfig
from jetcluster.model.stream_rules import MAX_NAME_CHARS
from jetcluster.stream.log import bodies
from jetcluster.stream.rules import link_key

UP = {"name": "UP"}
TWO = [{"src": "a.*", "dest": "x"}, {"src": "a.b", "dest": "y"}]
BAD_SRC = [{"src": "a..b", "dest": "x"}]
BAD_DEST = [{"src": "a", "dest": "x..y"}]


GIVEN = {"name": "c", "deliver_subject": "d"}


@pytest.mark.parametrize(
    ("fields", "err_code"),
    [
        ({"mirror": UP, "subjects": ["a"]}, 10034),
        ({"mirror": UP, "sources": [UP]}, 10031),
        ({"mirror": UP, "first_seq": 5}, 10143),
        ({"mirror": UP, "allow_msg_counter": True}, 10173),
        ({"mirror": UP, "allow_atomic": True}, 10198),
        ({"mirror": UP, "allow_batched": True}, 10209),
        ({"mirror": UP, "allow_msg_schedules": True}, 10186),
        ({"mirror": UP, "subject_delete_marker_ttl": 10**9}, 10052),
        ({"mirror": {"name": ""}}, 10142),
        ({"mirror": {"name": "a.b"}}, 10142),
        ({"mirror": {}}, 10142),
        ({"mirror": {"filter_subject": "a", "external": {"api": "x"}}}, 10142),
        ({"mirror": {**UP, "filter_subject": "a..b"}}, 10049),
        ({"mirror": {**UP, "filter_subject": "a b"}}, 10049),
        ({"sources": [{}]}, 10141),
        ({"sources": [UP, {"external": {"api": "x"}}]}, 10141),
        ({"sources": [{**UP, "filter_subject": ".a"}]}, 10049),
        ({"mirror": {**UP, "filter_subject": "a", "subject_transforms": TWO[:1]}}, 10150),
        ({"mirror": {**UP, "subject_transforms": TWO}}, 10152),
        ({"mirror": {**UP, "subject_transforms": BAD_SRC}}, 10151),
        ({"mirror": {**UP, "subject_transforms": BAD_DEST}}, 10154),
        ({"sources": [{"name": "a b"}]}, 10141),
        ({"sources": [UP, UP]}, 10140),
        *[
            (link, code)
            for bad in (
                {"consumer": {}},
                {"consumer": {"name": "c"}},
                {"consumer": {"name": "c", "deliver_subject": "d.*"}},
                {"consumer": {"name": "c", "deliver_subject": "d..e"}},
                {"consumer": {"name": "c.d", "deliver_subject": "d"}},
                {"consumer": GIVEN, "opt_start_seq": 3},
                {"consumer": GIVEN, "filter_subject": "a"},
                {"consumer": GIVEN, "opt_start_time": "2026-01-02T03:04:05Z"},
            )
            for link, code in (({"mirror": {**UP, **bad}}, 10213), ({"sources": [{**UP, **bad}]}, 10215))
        ],
        ({"sources": [{**UP, "consumer": GIVEN}, {**UP, "consumer": GIVEN, "subject_transforms": TWO[:1]}]}, 10216),
        ({"sources": [{**UP, "filter_subject": "a", "subject_transforms": TWO[:1]}]}, 10144),
        ({"sources": [{**UP, "subject_transforms": TWO}]}, 10147),
        ({"sources": [{**UP, "subject_transforms": BAD_SRC}]}, 10145),
        ({"sources": [{**UP, "subject_transforms": BAD_DEST}]}, 10146),
        ({"sources": [UP], "allow_msg_schedules": True}, 10187),
        ({"sources": [{**UP, "external": {"api": "$JS.*.API"}}]}, 10052),
        ({"sources": [{**UP, "external": {"api": "$JS.API"}}]}, 10021),
        ({"sources": [{**UP, "external": {"api": "x", "deliver": "d.*"}}]}, 10024),
        ({"sources": [{**UP, "external": {"api": "x", "deliver": "."}}]}, 10024),
        ({"mirror": {**UP, "external": {"api": "x", "deliver": "."}}}, 10024),
        ({"mirror": {**UP, "external": {"api": "x", "deliver": "a."}}}, 10024),
        ({"mirror": {**UP, "external": {"api": "x", "deliver": "a b"}}}, 10024),
        ({"mirror": {**UP, "external": {"api": "x", "deliver": "a..b"}}}, 10024),
        ({"mirror": {**UP, "external": {"api": "x", "deliver": "d\r\n"}}}, 10024),
        ({"mirror": {**UP, "external": {"api": ".", "deliver": "d"}}}, 10052),
        ({"mirror": {**UP, "external": {"deliver": "d"}}}, 10052),
        ({"sources": [{**UP, "external": {"api": "x", "deliver": "d"}}], "subjects": ["d.a"]}, 10022),
        ({"subject_transform": BAD_SRC[0]}, 10155),
        ({"subject_transform": BAD_DEST[0]}, 10156),
        ({"subjects": ["a.>"], "subject_transform": {"src": "a.*", "dest": "b.$2"}}, 10156),
        ({"subjects": ["a.>"], "republish": {"src": "a.*", "dest": "r.$2"}}, 10052),
        ({"subjects": ["a.>"], "republish": {"src": "a..", "dest": "r"}}, 10052),
        ({"subjects": ["x.foo"], "republish": {"src": "*.foo", "dest": "$1.foo"}}, 10052),
        ({"subjects": ["x.foo"], "republish": {"src": "*.foo", "dest": "{{wildcard(1)}}.foo"}}, 10052),
        ({"subjects": ["x.y.foo"], "republish": {"src": "*.*.foo", "dest": "{{split(1,-)}}.foo"}}, 10052),
        ({"subjects": ["a.>"], "republish": {"src": ">", "dest": ">"}}, 10052),
        ({"subjects": ["a.>"], "republish": {"src": "a.>", "dest": "a.b"}}, 10052),
    ],
)
def test_refused(fields: dict[str, Any], err_code: int) -> None:
    config = StreamConfig.from_object({"name": "S", **fields}).normalised().to_wire()
    with pytest.raises(ApiError) as caught:
        check_links(config)
    assert caught.value.err_code == err_code


@pytest.mark.parametrize(
    "fields",
    [
        {"mirror": UP},
        {"mirror": {**UP, "external": {"api": "$JS.hub.API", "deliver": "d"}}},
        {"mirror": {**UP, "subject_transforms": [{"src": "a.*", "dest": "x"}, {"src": "b.*", "dest": "y"}]}},
        {"sources": [UP, {"name": "UP", "filter_subject": "a"}, {"name": "OTHER"}]},
        {"mirror": {**UP, "external": {"api": "$JS.hub.API", "deliver": "d.e.f"}, "filter_subject": "a.*.>"}},
        {"mirror": {**UP, "external": {"api": "$JS.hub.API", "deliver": ""}}},
        {"subject_transform": {"src": "", "dest": ""}},
        {"subject_transform": {"src": "a.*", "dest": "b.{{wildcard(1)}}"}},
        {"subjects": ["a.>"], "republish": {"src": "a.>", "dest": "r.>"}},
    ],
)
def test_accepted(fields: dict[str, Any]) -> None:
    check_links(StreamConfig.from_object({"name": "S", **fields}).normalised().to_wire())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"republish": {"dest": "r.>"}}, {"src": ">", "dest": "r.>"}),
        ({"republish": {"src": "a.*", "dest": ""}}, {"src": "a.*", "dest": ""}),
        (
            {"republish": {"src": ">", "dest": ">"}, "subject_transform": {"src": "a.>", "dest": "t.>"}},
            {"src": "t.>", "dest": "t.>"},
        ),
    ],
)
def test_republish_as_it_is_shown(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    config = StreamConfig.from_object({"name": "S", "subjects": ["a.>"], **fields}).normalised().to_wire()
    check_links(config)
    assert config["republish"] == expected
    assert StreamConfig.from_object(config).normalised().to_wire() == config


def test_the_transforms_of_a_source_fit_into_its_key() -> None:
    def checked(count: int) -> dict[str, Any]:
        transforms = [{"src": "\u00e4" * 10 + f".{n:05}", "dest": "b" * 13 + f".{n:05}"} for n in range(count)]
        name = "\u00e4" * MAX_NAME_CHARS
        source = {"name": name, "external": {"api": "x"}, "subject_transforms": transforms}
        config = StreamConfig.from_object({"name": "S", "sources": [source]}).normalised().to_wire()
        check_links(config)
        return config

    most = MAX_TRANSFORM_BYTES // 47
    assert len(bodies.encode_sourced(link_key(checked(most)["sources"][0]), b"12345678", 0, 0, 0)) < 65_535
    with pytest.raises(ApiError, match="too long") as caught:
        checked(most + 1)
    assert caught.value.err_code == 10052


def test_thousands_of_sources_and_transforms_are_checked_quickly() -> None:
    sources: list[dict[str, Any]] = [
        {"name": f"UP{i}", "external": {"api": "$JS.hub.API", "deliver": f"d{i}"}} for i in range(6000)
    ]
    transforms = [{"src": f"s.*.{i}", "dest": f"q.{i}"} for i in range(1500)]
    config = StreamConfig.from_object(
        {
            "name": "S",
            "subjects": [f"a.{i}" for i in range(2500)],
            "sources": [*sources, {"name": "UP", "subject_transforms": transforms}],
        }
    ).normalised()
    wire = config.to_wire()
    begun = time.process_time()
    check_links(wire)
    assert time.process_time() - begun < 1.0
    for more, err_code in (
        ([sources[7]], 10140),
        ([{"name": "UP", "external": {"api": "$JS.hub.API", "deliver": "a"}}], 10022),
        ([{"name": "UP2", "subject_transforms": [*transforms, {"src": "s.x.7", "dest": "w"}]}], 10147),
    ):
        with pytest.raises(ApiError) as refused:
            check_links({**wire, "sources": [*wire["sources"], *more]})
        assert refused.value.err_code == err_code
        assert err_code != 10022 or "a.0" in str(refused.value)


def test_transforms_with_wildcards_at_very_many_places_are_refused() -> None:
    places = [".".join("*" if i >> bit & 1 else str(i) for bit in range(8)) for i in range(200)]
    transforms = [{"src": src, "dest": "q"} for src in places]
    with pytest.raises(ApiError, match="too many places"):
        check_links({"sources": [{"name": "UP", "subject_transforms": transforms}]})
