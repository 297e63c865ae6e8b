from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.errors import ApiError
from jetcluster.model.limits import AccountLimits
from jetcluster.model.stream import StreamConfig
from jetcluster.model.stream_rules import same_config

SECOND = 1_000_000_000

# The configuration that nats-server 2.15.2 answered to {"name": "A"}, without its `_nats.ver` and `_nats.level`.
REAL_DEFAULTS = (
    '{"name":"A","subjects":["A"],"retention":"limits","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"max_age":0,'
    '"max_msgs_per_subject":-1,"max_msg_size":-1,"discard":"old","storage":"file","num_replicas":1,'
    '"duplicate_window":120000000000,"compression":"none","allow_direct":false,"mirror_direct":false,"sealed":false,'
    '"deny_delete":false,"deny_purge":false,"allow_rollup_hdrs":false,"consumer_limits":{},"allow_msg_ttl":false,'
    '"metadata":{"_nats.req.level":"0"}}'
)


def wire(limits: AccountLimits | None = None, **fields: Any) -> dict[str, Any]:
    parsed = StreamConfig.parse(json.dumps({"name": "A", **fields}).encode())
    return parsed.normalised(limits or AccountLimits()).to_wire()


def test_defaults_are_byte_for_byte_the_real_servers() -> None:
    assert json.dumps(wire(), separators=(",", ":")) == REAL_DEFAULTS


def test_every_key_has_its_place_in_wire_order() -> None:
    everything = {
        "description": "d",
        "no_ack": True,
        "placement": {"cluster": "C", "tags": ["t"]},
        "sources": [{"name": "B", "external": {"api": "$JS.x.API"}}],
        "compression": "s2",
        "first_seq": 5,
        "subject_transform": {"src": "a", "dest": "b"},
        "republish": {"src": "a", "dest": "b"},
        "discard_new_per_subject": True,
        "subject_delete_marker_ttl": SECOND,
        "allow_msg_counter": True,
        "allow_atomic": True,
        "allow_batched": True,
        "allow_msg_schedules": True,
        "persist_mode": "async",
        "read_consistency": "strong",
        "retention_guard": {"consumer": "c", "max_bytes": 1},
        "subjects": ["a"],
    }
    assert list(wire(**everything)) == [k for k in StreamConfig.model_fields if k not in {"mirror", "duplicate_window"}]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"max_msgs": 0, "max_bytes": -7, "max_consumers": -3}, {"max_msgs": -1, "max_bytes": -1, "max_consumers": -1}),
        ({"max_msg_size": -5, "max_msgs_per_subject": 0}, {"max_msg_size": -1, "max_msgs_per_subject": -1}),
        ({"max_age": SECOND}, {"duplicate_window": SECOND}),
        ({"max_age": 600 * SECOND}, {"duplicate_window": 120 * SECOND}),
        ({"duplicate_window": 5 * SECOND}, {"duplicate_window": 5 * SECOND}),
        ({"discard": "", "storage": "", "retention": ""}, {"discard": "old", "storage": "file", "retention": "limits"}),
        ({"NAME": "A", "Max_Msgs": 3}, {"max_msgs": 3}),
        ({"max_msgs": None, "metadata": None, "placement": None}, {"max_msgs": -1}),
        ({"placement": {"cluster": "", "tags": []}}, {}),
        ({"consumer_limits": {"inactive_threshold": 5}}, {"consumer_limits": {"inactive_threshold": 5}}),
        ({"max_msgs_per_subject": 1}, {"allow_direct": True}),
        ({"max_msgs_per_subject": 1, "allow_direct": False}, {"allow_direct": True}),
        ({"allow_direct": True}, {"allow_direct": True}),
        ({"unknown_key": 1}, {}),
        (
            {"metadata": {"b": "1", "_nats.ver": "x", "a": "2"}},
            {"metadata": {"_nats.req.level": "0", "a": "2", "b": "1"}},
        ),
        ({"allow_atomic": True}, {"metadata": {"_nats.req.level": "2"}}),
        ({"allow_msg_ttl": True}, {"metadata": {"_nats.req.level": "1"}}),
        ({"allow_batched": True}, {"metadata": {"_nats.req.level": "4"}}),
    ],
)
def test_normalisation(given: dict[str, Any], shown: dict[str, Any]) -> None:
    got = wire(**given)
    assert {key: got[key] for key in shown} == shown
    assert "placement" not in got


def test_a_mirror_gets_neither_subjects_nor_a_duplicate_window_and_keeps_its_own() -> None:
    got = wire(mirror={"name": "UP", "filter_subject": "a"})
    assert "subjects" not in got
    assert "duplicate_window" not in got
    window = 60 * SECOND
    assert wire(mirror={"name": "UP"}, duplicate_window=window)["duplicate_window"] == window
    assert got["mirror"] == {"name": "UP", "filter_subject": "a"}


def test_the_servers_window_limit_caps_the_default() -> None:
    assert wire(AccountLimits(duplicate_window_max=60 * SECOND))["duplicate_window"] == 60 * SECOND


def test_auto_allow_direct_can_be_turned_off() -> None:
    config = StreamConfig(name="A", max_msgs_per_subject=1)
    assert config.normalised(auto_allow_direct=False).allow_direct is False


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "unexpected EOF"),
        (b"hello", "invalid character 'h' looking for beginning of value at offset 1"),
        (b'{"name":"T5"} x', "invalid character 'x' after top-level value at offset 15"),
        (b"{bad", "invalid character 'b' looking for beginning of object key string at offset 2"),
        (b'{"a" 1}', "invalid character '1' after object key at offset 6"),
        (b"[]", "json: cannot unmarshal array into value of type object"),
        (b'{"max_msgs":"x"}', "json: cannot unmarshal string into field max_msgs of type int64"),
        (b'{"max_msgs":1.5}', "json: cannot unmarshal number 1.5 into field max_msgs of type int64"),
        (b'{"max_msgs":1.0}', "json: cannot unmarshal number 1.0 into field max_msgs of type int64"),
        (b'{"max_msgs":9223372036854775808}', "json: cannot unmarshal number 9223372036854775808 into"),
        (b'{"max_msg_size":2147483648}', "json: cannot unmarshal number 2147483648 into"),
        (b'{"first_seq":-1}', "json: cannot unmarshal number -1 into field first_seq"),
        (b'{"no_ack":1}', "json: cannot unmarshal number into field no_ack of type bool"),
        (b'{"subjects":"x"}', "json: cannot unmarshal string into field subjects of type array"),
        (b'{"subjects":[7]}', "json: cannot unmarshal number into field subjects of type string"),
        (b'{"placement":"x"}', "json: cannot unmarshal string into field placement of type object"),
        (b'{"metadata":{"a":1}}', "json: cannot unmarshal number into field metadata.a of type string"),
        (b'{"storage":"tape"}', 'can not unmarshal "\\"tape\\""'),
        (b'{"compression":"x"}', "unknown compression algorithm"),
        (b'{"max_msgs":NaN}', "invalid character 'N' looking for beginning of value"),
        (b"[" * 100_000, "exceeded max depth"),
    ],
)
def test_bad_bodies(body: bytes, text: str) -> None:
    with pytest.raises(ApiError) as caught:
        StreamConfig.parse(body)
    assert (caught.value.code, caught.value.err_code) == (400, 10025)
    assert caught.value.description.startswith("invalid JSON: " + text)


def test_text_that_is_no_text_is_replaced_as_in_go() -> None:
    assert StreamConfig.parse(b'{"name":"a\\ud800"}').name == "a\ufffd"
    assert StreamConfig.parse(b'{"name":"a\xff"}').name == "a\ufffd"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({}, {"subjects": ["A"], "max_msgs": -1, "num_replicas": 1, "duplicate_window": 120 * SECOND}, True),
        ({}, {"metadata": {"_nats.ver": "2.11"}}, True),
        ({}, {"placement": {}}, True),
        ({"metadata": {"a": "1", "b": "2"}}, {"metadata": {"b": "2", "a": "1"}}, True),
        ({}, {"metadata": {"a": "1"}}, False),
        ({"subjects": ["a", "b"]}, {"subjects": ["b", "a"]}, False),
        ({}, {"max_msgs": 1}, False),
        ({}, {"description": "x"}, False),
        ({"max_msgs_per_subject": 1}, {"max_msgs_per_subject": 1, "allow_direct": True}, True),
    ],
)
def test_equality_of_configurations(one: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    assert same_config(wire(**one), wire(**other)) is same


fields = st.fixed_dictionaries(
    {},
    optional={
        "subjects": st.lists(st.sampled_from(["a", "b.*", "c.>"]), max_size=2),
        "max_msgs": st.integers(-5, 5),
        "max_bytes": st.integers(-5, 5),
        "max_age": st.sampled_from([0, SECOND, 600 * SECOND]),
        "duplicate_window": st.sampled_from([0, SECOND]),
        "max_msgs_per_subject": st.integers(-2, 3),
        "allow_direct": st.booleans(),
        "num_replicas": st.integers(0, 5),
        "mirror": st.sampled_from([None, {"name": "U"}, {"name": "U", "external": {"api": "x", "deliver": ""}}]),
        "sources": st.lists(st.just({"name": "V", "opt_start_seq": 0}), max_size=1),
        "republish": st.sampled_from(
            [None, {"src": "a", "dest": "b"}, {"src": "a", "dest": "b", "headers_only": True}]
        ),
        "placement": st.sampled_from([None, {}, {"tags": ["x"]}]),
        "metadata": st.dictionaries(st.sampled_from(["x", "_nats.level"]), st.just("1")),
        "persist_mode": st.sampled_from(["", "default", "async"]),
    },
)


@settings(max_examples=200, deadline=None)
@given(fields)
def test_what_we_answer_is_read_back_as_the_same_configuration(given: dict[str, Any]) -> None:
    """`nats stream edit` sends back what INFO showed."""
    first = wire(**given)
    again = StreamConfig.from_object(json.loads(json.dumps(first))).normalised().to_wire()
    assert json.dumps(again) == json.dumps(first)
