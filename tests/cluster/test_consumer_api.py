"""The consumer API: one request per refusal, what an update may change, echo of the configuration, pages.
as nats-server answers them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from testkit.client import ClientError
from testkit.consumer_client import SECOND, Inbox, Jet
from testkit.harness import ProcessCluster

pytestmark = pytest.mark.cluster

PUSH = {"deliver_subject": "d.x"}
GROUP = {"priority_groups": ["a"], "priority_policy": "overflow"}
FLOW = {"ack_policy": "flow_control", **PUSH}
START = "2026-01-01T00:00:00Z"
NAME_TEXT = "consumer name can not contain '.', '*', '>', '\\', '/'"
GROUP_TEXT = "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters"
SAMPLING = "failed to parse consumer sampling configuration: "


def by(policy: str, **more: Any) -> dict[str, Any]:
    return {"deliver_policy": policy, **more}


def start_text(policy: str, option: str) -> str:
    return f"consumer delivery policy is deliver {policy}, but optional {option}"


REFUSED: list[tuple[dict[str, Any], int, int, str]] = [
    ({"ack_policy": "bad"}, 400, 10025, r'invalid JSON: can not unmarshal "\"bad\""'),
    ({"replay_policy": "bad"}, 400, 10025, r'invalid JSON: can not unmarshal "\"bad\""'),
    ({"deliver_policy": "bad"}, 400, 10025, r'invalid JSON: can not unmarshal "\"bad\""'),
    ({"priority_policy": "bad"}, 400, 10025, 'invalid JSON: unknown priority policy: "bad"'),
    ({"pause_until": "x"}, 400, 10025,
     'invalid JSON: parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"'),
    ({"num_replicas": 4}, 400, 10126, "consumer config replica count exceeds parent stream"),
    ({"num_replicas": -1}, 400, 10133, "replicas count cannot be negative"),
    ({"backoff": [-1]}, 400, 10184, "consumer backoff needs to be positive"),
    ({"ack_wait": -1}, 400, 10183, "consumer ack wait needs to be positive"),
    ({"backoff": [1, 2, 3], "max_deliver": 2}, 400, 10116, "max deliver is required to be > length of backoff values"),
    ({"description": "x" * 4097}, 400, 10107, "consumer description is too long, maximum allowed is 4096"),
    ({"deliver_subject": "d.*"}, 400, 10079, "consumer deliver subject has wildcards"),
    ({"deliver_subject": "d..x"}, 400, 10112, "invalid push consumer deliver subject"),
    ({**PUSH, "max_waiting": 5}, 400, 10080, "consumer in push mode can not set max waiting"),
    ({**PUSH, "ack_policy": "none", "max_ack_pending": 5},
     400, 10082, "consumer requires ack policy for max ack pending"),
    ({**PUSH, "idle_heartbeat": 1000}, 400, 10083, "consumer idle heartbeat needs to be >= 100ms"),
    ({"rate_limit_bps": 5}, 400, 10086, "consumer in pull mode can not have rate limit set"),
    ({"idle_heartbeat": SECOND}, 400, 10088, "consumer idle heartbeat requires a push based consumer"),
    ({"flow_control": True}, 400, 10089, "consumer flow control requires a push based consumer"),
    ({"max_expires": 1000}, 400, 10115, "consumer max request expires needs to be >= 1ms"),
    ({"direct": True}, 400, 10090, "consumer direct requires a push based consumer"),
    ({**PUSH, "direct": True, "durable_name": "X"}, 400, 10091, "consumer direct requires an ephemeral consumer"),
    ({"filter_subject": "a", "filter_subjects": ["b"]},
     400, 10136, "consumer cannot have both FilterSubject and FilterSubjects specified"),
    ({"filter_subject": "s..a"}, 500, 10052, "invalid subject"),
    ({"filter_subjects": ["s..a"]}, 500, 10052, "invalid subject"),
    ({"filter_subjects": ["s.a", ""]}, 400, 10139, "consumer filter in FilterSubjects cannot be empty"),
    ({"filter_subjects": ["s.a", "s.*"]}, 400, 10138, "consumer subject filters cannot overlap"),
    *((by(p, opt_start_seq=5), 400, 10094, start_text(t, "start sequence is also set"))
      for p, t in (("all", "all"), ("last", "last"), ("new", "new"), ("last_per_subject", "last per subject"))),
    *((by(p, opt_start_time=START), 400, 10094, start_text(t, "start time is also set"))
      for p, t in (("all", "all"), ("last", "last"), ("new", "new"), ("last_per_subject", "last per subject"))),
    (by("by_start_sequence"), 400, 10094, start_text("by start sequence", "start sequence is not set")),
    (by("by_start_sequence", opt_start_seq=1, opt_start_time=START),
     400, 10094, start_text("by start sequence", "start time is also set")),
    (by("by_start_time"), 400, 10094, start_text("by start time", "start time is not set")),
    (by("by_start_time", opt_start_seq=1, opt_start_time=START),
     400, 10094, start_text("by start time", "start start sequence is also set")),
    (by("last_per_subject"), 400, 10094, start_text("last per subject", "filter subject is not set")),
    ({"sample_freq": "abc"}, 400, 10095, SAMPLING + 'strconv.Atoi: parsing "abc": invalid syntax'),
    ({"sample_freq": "-1"}, 400, 10095, SAMPLING + "<nil>"),
    ({**PUSH, "flow_control": True}, 400, 10108, "consumer with flow control also needs heartbeats"),
    ({"metadata": {"k": "x" * (1 << 17)}}, 400, 10135, "consumer metadata exceeds maximum size of 128KB"),
    ({**PUSH, **GROUP}, 400, 10178, "priority groups can not be used with push consumers"),
    ({"priority_policy": "overflow"},
     400, 10159, "Setting PriorityPolicy requires at least one PriorityGroup to be set"),
    ({**GROUP, "priority_groups": [""]}, 400, 10161, "Group name cannot be an empty string"),
    ({**GROUP, "priority_groups": ["a b"]}, 400, 10162, GROUP_TEXT),
    ({**GROUP, "priority_groups": ["x" * 17]}, 400, 10162, GROUP_TEXT),
    ({"priority_groups": ["a"]}, 400, 10196, "consumer can not have priority groups when policy is none"),
    ({"priority_timeout": 1}, 400, 10197, "PinnedTTL cannot be set when PriorityPolicy is none"),
    ({"ack_policy": "flow_control"}, 400, 10218, "flow control ack policy requires a push based consumer"),
    ({**FLOW, "ack_wait": 5}, 400, 10221, "flow control ack policy requires unset ack wait"),
    ({**FLOW, "max_deliver": 5}, 400, 10222, "flow control ack policy requires unset max deliver"),
]  # fmt: skip


async def test_refused_configurations(jet: Jet) -> None:
    subject = f"CONSUMER.CREATE.{jet.stream}.X"
    answers = await asyncio.gather(*(jet.refused(subject, jet.request(config)) for config, *_ in REFUSED))
    for (config, *expected), answer in zip(REFUSED, answers, strict=True):
        assert answer == tuple(expected), str(config)[:200]
    cycle = jet.request({"deliver_subject": f"{jet.prefix}.x"})
    assert await jet.refused(subject, cycle) == (400, 10081, "consumer deliver subject forms a cycle")
    assert (await jet.ask(f"CONSUMER.NAMES.{jet.stream}"))["consumers"] == []


async def test_refused_requests(jet: Jet) -> None:
    s, ok = jet.stream, jet.request({})
    durable = jet.request({"durable_name": "X"})
    for suffix, body, code, err_code in (
        (f"CONSUMER.CREATE.{s}.X", None, 400, 10056),
        (f"CONSUMER.CREATE.{s}.X", {"config": {}}, 400, 10056),
        (f"CONSUMER.CREATE.{s}.X", {**ok, "stream_name": "OTHER"}, 400, 10056),
        (f"CONSUMER.CREATE.{s}.X", b"{x", 400, 10025),
        (f"CONSUMER.CREATE.{s}.X", b"[]", 400, 10025),
        (f"CONSUMER.CREATE.{s}.X", {**ok, "action": "x"}, 400, 10025),
        (f"CONSUMER.CREATE.{s}.X", {**ok, "action": "update"}, 400, 10149),
        (f"CONSUMER.CREATE.{s}.a/b", ok, 400, 10127),
        (f"CONSUMER.CREATE.{s}.a\\b", ok, 400, 10127),
        (f"CONSUMER.CREATE.{s}.a*b", ok, 500, 10052),
        (f"CONSUMER.CREATE.{s}.{'y' * 256}", jet.request({"durable_name": "y" * 256}), 400, 10102),
        (f"CONSUMER.CREATE.{s}", durable, 400, 10020),
        (f"CONSUMER.CREATE.{s}.Y", durable, 400, 10017),
        (f"CONSUMER.DURABLE.CREATE.{s}.X", ok, 400, 10018),
        (f"CONSUMER.DURABLE.CREATE.{s}.Y", durable, 400, 10017),
        (f"CONSUMER.CREATE.{s}.X.a.b", ok, 400, 10131),
        (f"CONSUMER.CREATE.{s}.X.a.b", jet.request({"filter_subject": "a.c"}), 400, 10131),
        (f"CONSUMER.CREATE.{s}.X.a.b", jet.request({"filter_subjects": ["a.b"]}), 400, 10137),
        ("CONSUMER.CREATE.NONE.X", {"stream_name": "NONE", "config": {}}, 404, 10059),
        (f"CONSUMER.INFO.{s}.X", None, 404, 10014),
        (f"CONSUMER.INFO.{s}.X", {"a": 1}, 400, 10038),
        ("CONSUMER.INFO.NONE.X", None, 404, 10059),
        (f"CONSUMER.DELETE.{s}.X", None, 404, 10014),
        (f"CONSUMER.DELETE.{s}.X", b"junk", 400, 10038),
        ("CONSUMER.DELETE.NONE.X", None, 404, 10059),
        (f"CONSUMER.PAUSE.{s}.X", None, 404, 10014),
        (f"CONSUMER.PAUSE.{s}.X", b"{x", 400, 10025),
        ("CONSUMER.PAUSE.NONE.X", None, 404, 10059),
        (f"CONSUMER.UNPIN.{s}.X", {"group": "g"}, 404, 10014),
        (f"CONSUMER.LEADER.STEPDOWN.{s}.X", None, 404, 10014),
        ("CONSUMER.LEADER.STEPDOWN.NONE.X", None, 404, 10059),
        ("CONSUMER.NAMES.NONE", None, 404, 10059),
        (f"CONSUMER.LIST.{s}", b"{x", 400, 10025),
    ):
        assert (await jet.refused(suffix, body))[:2] == (code, err_code), suffix
    answer = await jet.client.request(
        f"$JS.API.CONSUMER.CREATE.{s}.X", b"{}", headers={"Nats-Required-Api-Level": "99"}
    )
    assert (answer.json()["error"]["code"], answer.json()["error"]["err_code"]) == (412, 10185)


async def test_unknown_keys(jet: Jet) -> None:
    """U5: ignored here unless `jetstream { strict: true }`, which nats-server is by default."""
    subject, body = f"CONSUMER.CREATE.{jet.stream}.X", jet.request({"bogus": 1})
    if jet.ours:
        assert "error" not in await jet.ask(subject, body)
    else:
        assert await jet.refused(subject, body) == (400, 10025, 'invalid JSON: json: unknown field "bogus"')


async def test_absent_ack_policy(jet: Jet) -> None:
    """`none`: published clients leave it out for that. `compat` has the specification's `explicit`."""
    reply = await jet.ask(f"CONSUMER.CREATE.{jet.stream}.X", {"stream_name": jet.stream, "config": {}})
    assert reply["config"]["ack_policy"] == "none"


PLAIN = {
    "deliver_policy": "all", "ack_policy": "explicit", "ack_wait": 30 * SECOND, "max_deliver": -1,
    "replay_policy": "instant", "max_waiting": 512, "max_ack_pending": 1000, "num_replicas": 0,
}  # fmt: skip


def echoed(reply: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The configuration, and its metadata without the values that depend on the server."""
    config = dict(reply["config"])
    metadata = dict(config.pop("metadata"))
    assert metadata.pop("_nats.level").isdigit()
    assert metadata.pop("_nats.ver")
    return config, metadata


@pytest.mark.parametrize(
    ("given", "expected", "level"),
    [
        ({}, {"inactive_threshold": 5 * SECOND}, "0"),
        ({"durable_name": "C"}, {"durable_name": "C"}, "0"),
        ({"ack_policy": "none"}, {"ack_policy": "none", "ack_wait": None, "max_ack_pending": None,
                                  "inactive_threshold": 5 * SECOND}, "0"),
        ({"max_deliver": -7, "max_waiting": -1, "max_ack_pending": -5, "max_batch": -1, "inactive_threshold": -1},
         {"max_ack_pending": -1, "inactive_threshold": 5 * SECOND}, "0"),
        ({"backoff": [5, 6], "ack_wait": 9}, {"backoff": [5, 6], "ack_wait": 5, "inactive_threshold": 5 * SECOND}, "0"),
        ({**PUSH, "flow_control": True, "idle_heartbeat": SECOND, "rate_limit_bps": 1000, "deliver_group": "g"},
         {**PUSH, "flow_control": True, "idle_heartbeat": SECOND, "rate_limit_bps": 1000, "deliver_group": "g",
          "max_waiting": None, "inactive_threshold": 5 * SECOND}, "0"),
        ({"description": "d", "mem_storage": True, "headers_only": True, "max_batch": 5, "max_expires": SECOND,
          "max_bytes": 100, "inactive_threshold": 9 * SECOND, "num_replicas": 1, "sample_freq": "50%",
          "replay_policy": "original"},
         {"description": "d", "mem_storage": True, "headers_only": True, "max_batch": 5, "max_expires": SECOND,
          "max_bytes": 100, "inactive_threshold": 9 * SECOND, "num_replicas": 1, "sample_freq": "50%",
          "replay_policy": "original"}, "0"),
        (by("by_start_sequence", opt_start_seq=5),
         {**by("by_start_sequence", opt_start_seq=5), "inactive_threshold": 5 * SECOND}, "0"),
        (by("by_start_time", opt_start_time="2026-01-01T02:00:00.500+02:00"),
         {**by("by_start_time", opt_start_time="2026-01-01T02:00:00.5+02:00"), "inactive_threshold": 5 * SECOND}, "0"),
        ({"filter_subjects": ["b", "a"]}, {"filter_subjects": ["b", "a"], "inactive_threshold": 5 * SECOND}, "0"),
        ({"pause_until": "2090-01-01T00:00:00Z"},
         {"pause_until": "2090-01-01T00:00:00Z", "inactive_threshold": 5 * SECOND}, "1"),
        ({"priority_groups": ["a"], "priority_policy": "pinned_client"},
         {"priority_groups": ["a"], "priority_policy": "pinned_client", "priority_timeout": 120 * SECOND,
          "inactive_threshold": 5 * SECOND}, "1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_echo(jet: Jet, given: dict[str, Any], expected: dict[str, Any], level: str) -> None:
    reply = await jet.ask(f"CONSUMER.CREATE.{jet.stream}.C", jet.request({**given, "metadata": {"own": "1"}}))
    config, metadata = echoed(reply)
    wanted = {key: value for key, value in {**PLAIN, "name": "C", **expected}.items() if value is not None}
    assert config == wanted
    assert metadata == {"_nats.req.level": level, "own": "1"}
    assert (reply["type"], reply["stream_name"], reply["name"]) == (
        "io.nats.jetstream.api.v1.consumer_create_response", jet.stream, "C",
    )  # fmt: skip
    info = await jet.info("C")
    assert info["type"] == "io.nats.jetstream.api.v1.consumer_info_response"
    assert info["config"] == reply["config"]
    assert info["created"] == reply["created"]


async def test_info_of_a_new_consumer(jet: Jet) -> None:
    await jet.publish(b"1", b"2")
    reply = await jet.consumer("C")
    assert [key for key in reply if key != "cluster"] == [
        "type", "stream_name", "name", "created", "config", "delivered", "ack_floor", "num_ack_pending",
        "num_redelivered", "num_waiting", "num_pending", "ts",
    ]  # fmt: skip
    assert list(reply["config"]) == [
        "durable_name", "name", "deliver_policy", "ack_policy", "ack_wait", "max_deliver", "replay_policy",
        "max_waiting", "max_ack_pending", "num_replicas", "metadata",
    ]  # fmt: skip
    assert reply["delivered"] == reply["ack_floor"] == {"consumer_seq": 0, "stream_seq": 0}
    assert reply["num_pending"] == 2
    await jet.fetch("C")
    info = await jet.info("C")
    assert (info["delivered"]["consumer_seq"], info["delivered"]["last_active"][:2]) == (1, "20")
    assert "last_active" not in info["ack_floor"]
    cluster = info["cluster"]
    assert cluster["name"] == "C"
    assert cluster["leader"] in {"n1", "n2", "n3"}
    if jet.replicas == 3:
        others = {one["name"] for one in cluster["replicas"]}
        assert others | {cluster["leader"]} == {"n1", "n2", "n3"}
        assert all(one["current"] in {True, False} and isinstance(one["active"], int) for one in cluster["replicas"])
        listed = (await jet.client.api(f"CONSUMER.LIST.{jet.stream}"))["consumers"][0]["cluster"]
        assert listed["leader_since"] == cluster["leader_since"] >= info["created"]
    else:
        assert "leader_since" not in cluster


async def test_names_of_consumers(jet: Jet) -> None:
    s = jet.stream
    anonymous = await jet.ask(f"CONSUMER.CREATE.{s}", jet.request({}))
    assert len(anonymous["name"]) == 8
    assert "name" not in anonymous["config"]
    assert (await jet.info(anonymous["name"]))["name"] == anonymous["name"]
    named = await jet.ask(f"CONSUMER.CREATE.{s}", jet.request({"name": "NAMED"}))
    assert (named["name"], named["config"]["name"]) == ("NAMED", "NAMED")
    token = await jet.ask(f"CONSUMER.CREATE.{s}.TOKEN", jet.request({"name": "other"}))
    assert (token["name"], token["config"]["name"]) == ("TOKEN", "TOKEN")
    filtered = await jet.ask(
        f"CONSUMER.CREATE.{s}.F.{jet.prefix}.*", jet.request({"filter_subject": f"{jet.prefix}.*"})
    )
    assert filtered["config"]["filter_subject"] == f"{jet.prefix}.*"
    durable = await jet.ask(f"CONSUMER.DURABLE.CREATE.{s}.DUR", jet.request({"durable_name": "DUR"}))
    assert (durable["config"]["durable_name"], durable["config"]["name"]) == ("DUR", "DUR")


UPDATES: list[tuple[dict[str, Any], int, str]] = [
    ({"deliver_policy": "new"}, 10012, "deliver policy can not be updated"),
    ({"mem_storage": True}, 10012, "storage type can not be updated"),
    ({"sourcing": True}, 10012, "sourcing can not be updated"),
    ({"ack_policy": "all"}, 10012, "ack policy can not be updated"),
    ({"replay_policy": "original"}, 10012, "replay policy can not be updated"),
    ({"max_waiting": 5}, 10012, "max waiting can not be updated"),
    (PUSH, 10012, "can not update pull consumer to push based"),
    ({"max_deliver": 2, "backoff": [1, 2, 3]}, 10116, "max deliver is required to be > length of backoff values"),
    *((config, 0, "") for config in (
        {"description": "x"}, {"max_batch": 4}, {"max_expires": SECOND}, {"max_bytes": 100}, {"num_replicas": 1},
        {"filter_subject": "a"}, {"filter_subjects": ["a", "b"]}, {"inactive_threshold": 60 * SECOND},
        {"sample_freq": "5"}, {"headers_only": True}, {"metadata": {"z": "1"}}, {"max_ack_pending": 3},
        {"ack_wait": SECOND}, {"max_deliver": 9}, {"backoff": [SECOND], "max_deliver": 5}, GROUP, {},
    )),
]  # fmt: skip


async def test_updates_of_a_pull_consumer(jet: Jet) -> None:
    await jet.consumer("U")
    subject = f"CONSUMER.CREATE.{jet.stream}.U"
    for config, err_code, text in UPDATES:
        body = jet.request({"durable_name": "U", **config}, action="update")
        if err_code:
            assert (await jet.refused(subject, body))[1:] == (err_code, text), config
            continue
        reply = await jet.ask(subject, body)
        assert reply["type"] == "io.nats.jetstream.api.v1.consumer_create_response", config
        shown = dict(reply["config"], metadata=config.get("metadata", {}))
        given = {"ack_wait": config["backoff"][0], **config} if "backoff" in config else config
        assert shown == {**PLAIN, "durable_name": "U", "name": "U", "metadata": {}, **given}, config
        if config:
            assert (await jet.info("U"))["config"] == reply["config"]
    pause = jet.request({"durable_name": "U", "pause_until": "2090-01-01T00:00:00Z"})
    assert "pause_until" not in (await jet.ask(subject, pause))["config"]


async def test_updates_of_a_push_consumer(jet: Jet) -> None:
    await jet.consumer("U", deliver_subject="nobody.here", filter_subject="a")
    subject = f"CONSUMER.CREATE.{jet.stream}.U"
    base = {"durable_name": "U", "deliver_subject": "nobody.here"}
    for config, text in (
        ({"idle_heartbeat": SECOND}, "heart beats can not be updated"),
        ({"flow_control": True, "idle_heartbeat": SECOND}, "heart beats can not be updated"),
        ({"deliver_subject": ""}, "can not update push consumer to pull based"),
    ):
        assert await jet.refused(subject, jet.request({**base, **config})) == (500, 10012, text)
    for config in ({"deliver_subject": "nobody.there"}, {"deliver_group": "g"}, {"rate_limit_bps": 1000}):
        reply = await jet.ask(subject, jet.request({**base, **config}))
        assert {key: reply["config"].get(key) for key in config} == config


async def test_start_of_a_consumer_is_fixed(jet: Jet) -> None:
    await jet.consumer("S", deliver_policy="by_start_sequence", opt_start_seq=4)
    await jet.consumer("T", deliver_policy="by_start_time", opt_start_time=START)
    for name, config, text in (
        ("S", by("by_start_sequence", opt_start_seq=5), "start sequence can not be updated"),
        ("T", by("by_start_time", opt_start_time="2026-01-01T01:00:00Z"), "start time can not be updated"),
    ):
        body = jet.request({"durable_name": name, **config})
        assert await jet.refused(f"CONSUMER.CREATE.{jet.stream}.{name}", body) == (500, 10012, text)


async def test_create_again(jet: Jet) -> None:
    subject, body = f"CONSUMER.CREATE.{jet.stream}.C", jet.request({"durable_name": "C"}, action="create")
    first = await jet.ask(subject, body)
    again = await jet.ask(subject, body)
    assert (again["created"], again["config"]) == (first["created"], first["config"])
    other = jet.request({"durable_name": "C", "description": "x"}, action="create")
    assert await jet.refused(subject, other) == (400, 10148, "consumer already exists")


async def test_an_updated_filter_holds_from_then_on(jet: Jet) -> None:
    await jet.consumer("C", filter_subject=f"{jet.prefix}.a")
    await jet.publish(b"1", subject="a")
    await jet.publish(b"2", subject="b")
    assert (await jet.fetch("C"))[0].data == b"1"
    updated = await jet.consumer("C", filter_subjects=[f"{jet.prefix}.b", f"{jet.prefix}.c"])
    assert updated["num_pending"] == 1
    assert (await jet.fetch("C"))[0].data == b"2"
    await jet.publish(b"3", subject="a")
    await jet.publish(b"4", subject="c")
    assert (await jet.fetch("C"))[0].data == b"4"


@pytest.mark.stream(consumer_limits={"inactive_threshold": 10 * SECOND, "max_ack_pending": 50}, max_consumers=3)
async def test_limits_of_the_stream(jet: Jet) -> None:
    config = (await jet.consumer("A"))["config"]
    assert (config["max_ack_pending"], config["inactive_threshold"]) == (50, 10 * SECOND)
    subject = f"CONSUMER.CREATE.{jet.stream}"
    for given, code, text in (
        ({"max_ack_pending": 51}, 10121, "consumer max ack pending exceeds system limit of 50"),
        ({"inactive_threshold": 20 * SECOND}, 10153, "consumer inactive threshold exceeds system limit of 10s"),
    ):
        assert await jet.refused(f"{subject}.B", jet.request(given)) == (400, code, text)
    for given, text in (
        ({"max_ack_pending": 20}, "inactive_threshold must be set if it's configured in stream limits"),
        ({}, "max_ack_pending must be set if it's configured in stream limits"),
        ({"max_deliver": -5}, "max_deliver must be set to -1"),
    ):
        answer = await jet.refused(f"{subject}.B", jet.request(given, pedantic=True))
        assert answer == (400, 10157, f"pedantic mode: {text}")
    await jet.consumer("B")
    await jet.consumer("C")
    assert (await jet.refused(f"{subject}.D", jet.request({})))[:2] == (400, 10026)
    await jet.consumer("C", description="an update is no new consumer")
    await jet.client.api(f"CONSUMER.DELETE.{jet.stream}.A")
    await jet.consumer("D")


async def test_limits_that_consumers_exceed_already(jet: Jet) -> None:
    await jet.consumer("A", max_ack_pending=50)
    await jet.consumer("B", max_ack_pending=500, inactive_threshold=10 * SECOND)
    await jet.consumer("C", ack_policy="none")
    subject = f"STREAM.UPDATE.{jet.stream}"
    body = {"name": jet.stream, "subjects": [f"{jet.prefix}.>"], "num_replicas": jet.replicas}
    for limits, names in (
        ({"max_ack_pending": 100}, ["B"]),
        ({"max_ack_pending": 10}, ["A", "B"]),
        ({"inactive_threshold": 5 * SECOND}, ["B"]),
        ({"max_ack_pending": 500, "inactive_threshold": SECOND}, ["B"]),
    ):
        code, err_code, text = await jet.refused(subject, {**body, "consumer_limits": limits})
        assert (code, err_code) == (500, 10069)
        told = text.removeprefix("change to limits violates consumers: ").split(", ")
        assert sorted(told) == names, text
    limits = {"max_ack_pending": 500, "inactive_threshold": 10 * SECOND}
    assert (await jet.client.api(subject, {**body, "consumer_limits": limits}))["config"]["consumer_limits"] == limits
    assert (await jet.client.api(subject, body))["config"]["consumer_limits"] == {}


async def test_pages(jet: Jet) -> None:
    s = jet.stream
    empty = {"total": 0, "offset": 0, "limit": 256, "consumers": []}
    assert await jet.ask(f"CONSUMER.LIST.{s}") == {"type": "io.nats.jetstream.api.v1.consumer_list_response", **empty}
    names = [f"C{n:03}" for n in range(260)]
    for at in range(0, len(names), 20):
        await asyncio.gather(*(jet.consumer(name, ack_policy="none") for name in names[at : at + 20]))
    reply = await jet.ask(f"CONSUMER.NAMES.{s}")
    assert (reply["total"], reply["offset"], reply["limit"]) == (260, 0, 1024)
    assert reply["consumers"] == names
    reply = await jet.ask(f"CONSUMER.NAMES.{s}", {"offset": 258})
    assert (reply["offset"], reply["consumers"]) == (258, names[258:])
    first, second = [await jet.ask(f"CONSUMER.LIST.{s}", {"offset": offset}) for offset in (0, 256)]
    assert [(r["total"], r["offset"], len(r["consumers"])) for r in (first, second)] == [(260, 0, 256), (260, 256, 4)]
    listed = [one["name"] for one in first["consumers"] + second["consumers"]]
    assert sorted(listed) == names
    one = first["consumers"][0]
    assert "type" not in one
    assert set(one["config"]["metadata"]) == {"_nats.req.level"}
    assert one["num_pending"] == 0
    beyond = await jet.ask(f"CONSUMER.NAMES.{s}", {"offset": 1000})
    assert (beyond["offset"], beyond["consumers"]) == (260, [])
    assert (await jet.client.api(f"STREAM.INFO.{s}"))["state"]["consumer_count"] == 260


async def test_delete(jet: Jet) -> None:
    await jet.consumer("C")
    assert await jet.ask(f"CONSUMER.DELETE.{jet.stream}.C") == {
        "type": "io.nats.jetstream.api.v1.consumer_delete_response", "success": True,
    }  # fmt: skip
    with pytest.raises(ClientError, match="404/10014"):
        await jet.info("C")
    await jet.publish(b"1")
    created = await jet.consumer("C")  # a new one, from the beginning
    assert created["num_pending"] == 1


async def test_a_stream_takes_its_consumers_with_it(jet: Jet) -> None:
    await jet.consumer("C")
    inbox = jet.pull("C", {"batch": 1, "expires": 30 * SECOND})
    await inbox.nothing(0.1)
    await jet.client.api(f"STREAM.DELETE.{jet.stream}")
    assert (await inbox.one()).header == b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
    again = await Jet.start(jet.client, jet.stream, jet.replicas, jet.server)
    assert (await again.ask(f"CONSUMER.NAMES.{jet.stream}"))["consumers"] == []


async def test_every_node_answers(jet: Jet, shared: ProcessCluster) -> None:
    await jet.consumer("C")
    await jet.publish(b"1")
    for node in shared.nodes:
        async with await node.connect() as client:
            there = Jet(client, jet.stream, jet.replicas, jet.server)
            assert (await there.info("C"))["name"] == "C"
            assert (await there.ask(f"CONSUMER.NAMES.{jet.stream}"))["consumers"] == ["C"]
            inbox = there.pull("C", {"batch": 1, "expires": SECOND})
            message = await inbox.one()
            assert message.data == b"1"
            await there.ack(message, b"-NAK")


async def test_without_a_cluster(single: ProcessCluster, server: str) -> None:
    async with await single[0].connect() as client:
        jet = await Jet.start(client, "ALONE", 1, server)
        body = jet.request({"num_replicas": 3})
        assert await jet.refused("CONSUMER.CREATE.ALONE.X", body) == (
            500, 10074, "replicas > 1 not supported in non-clustered mode",
        )  # fmt: skip
        assert (await jet.refused("CONSUMER.LEADER.STEPDOWN.ALONE.X"))[:2] == (503, 10010)
        reply = await jet.consumer("C")
        assert "cluster" not in reply
        await jet.publish(b"1")
        inbox = Inbox(client)
        found, end = await jet.pull("C", {"batch": 3, "no_wait": True}, inbox=inbox).until_status()
        assert [m.data for m in found] == [b"1"]
        assert end.header == b"NATS/1.0 404 No Messages\r\n\r\n"


LIMITED = """jetstream { strict: true, limits { max_ack_pending: 50, max_request_batch: 5 } }
accounts { A { jetstream { max_consumers: 2, max_ack_pending: 30 }, users: [{user: a, password: a}] } }
no_auth_user: a
"""


async def test_an_ephemeral_consumer_is_created_once_without_a_cluster(single: ProcessCluster, server: str) -> None:
    """Its inactive_threshold of five seconds is the server's, and counts as a difference."""
    async with await single[0].connect() as client:
        jet = await Jet.start(client, "ONCE", 1, server)
        for config, again in (({}, 10148), ({"deliver_subject": "d"}, 10148), ({"inactive_threshold": 5 * SECOND}, 0)):
            name = f"E{len(config)}{again}"
            body = jet.request({"name": name, **config}, action="create")
            first = await jet.ask(f"CONSUMER.CREATE.ONCE.{name}", body)
            second = await jet.ask(f"CONSUMER.CREATE.ONCE.{name}", body)
            assert "error" not in first and second.get("error", {"err_code": 0})["err_code"] == again
            other = jet.request({"name": name, **config}, action="")
            assert "error" not in await jet.ask(f"CONSUMER.CREATE.ONCE.{name}", other)
        await client.api("STREAM.DELETE.ONCE")


async def test_limits_of_the_server_and_the_account(server: str) -> None:
    async with ProcessCluster(1, server, config=LIMITED) as nodes, await nodes[0].connect() as client:
        jet = await Jet.start(client, "LIMITED", 1, server)
        subject = "CONSUMER.CREATE.LIMITED.X"
        for config, err_code, text in (
            ({"max_ack_pending": 51}, 10121, "consumer max ack pending exceeds system limit of 50"),
            ({"max_ack_pending": 31}, 10121, "consumer max ack pending exceeds system limit of 30"),
            ({"max_batch": 6}, 10125, "consumer max request batch exceeds server limit of 5"),
            ({"bogus": 1}, 10025, 'invalid JSON: json: unknown field "bogus"'),
        ):
            assert await jet.refused(subject, jet.request(config)) == (400, err_code, text)
        assert (await jet.consumer("ONE"))["config"]["max_ack_pending"] == 30
        await jet.consumer("TWO", max_batch=5)
        assert await jet.refused(subject, jet.request({})) == (400, 10026, "maximum consumers limit reached")
        await jet.consumer("TWO", max_batch=4)
