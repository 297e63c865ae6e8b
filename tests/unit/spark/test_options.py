from __future__ import annotations

import pickle

import pytest

from jetcluster.arrow.options import EARLIEST, LATEST, ReadPreference, SourceOptions
from jetcluster.arrow.schema import SchemaError
from jetcluster.spark.options import OptionError, check_streaming, source_options

BASE = {"servers": "nats://a:4222, b:4223", "stream": "ORDERS"}


def options(**given: object) -> SourceOptions:
    return source_options(BASE | {name: str(value) for name, value in given.items()})


def test_defaults_and_case() -> None:
    found = source_options({"SERVERS": "a", "Stream": "ORDERS", "maxoffsetspertrigger": "10"})
    assert found.streams == ("ORDERS",) and found.subjects == (">",) and found.max_rows == 10
    assert (found.starting, found.ending, found.fail_on_data_loss) == (EARLIEST, LATEST, True)
    assert found.preference == ReadPreference("any") and found.server.api_prefix == "$JS.API."
    assert options().server.servers == ("nats://a:4222", "b:4223")
    assert pickle.loads(pickle.dumps(options())) == options()


def test_values() -> None:
    found = options(
        startingOffsets='{"ORDERS": {"seq": 7, "created": "x"}}', endingOffsets="30", replicaWait="500ms",
        fetchMaxBytes="1m", readPreference="mirror:M", includeHeaders="false", subjects="a.>, b, a.x", domain="hub",
        startingTimestamp="2026-11-22T00:00:00Z", endingTimestamp="1795305600001",
    )  # fmt: skip
    assert found.starting == {"ORDERS": {"seq": 7, "created": "x"}} and found.ending == 30
    assert (found.replica_wait, found.fetch_bytes, found.preference) == (0.5, 1 << 20, ReadPreference("mirror", "M"))
    assert found.subjects == ("a.>", "b"), "a.x is in a.>"
    assert found.starting_time == 1795305600 * 10**9 and found.ending_time == 1795305600001 * 10**6
    assert "headers" not in found.names and found.server.api_prefix == "$JS.hub.API."
    assert options(startingOffsets="latest").starting == LATEST
    assert options(startingOffsets='{"ORDERS": -2}').starting == {"ORDERS": EARLIEST}
    fresh = options(minLastSeq="7", maxStaleness="500ms", consistent="true", cutTimeout="1m")
    assert (fresh.min_last, fresh.max_staleness) == ({"ORDERS": 7}, 500_000_000)
    assert fresh.consistent and fresh.cut_timeout == 60.0
    assert options(maxStaleness="0s").max_staleness == 0 and options().max_staleness is None
    kafka = options(
        startingOffsets='{"ORDERS": {"0": 23}}', startingOffsetsByTimestamp='{"ORDERS": {"0": 1000}}',
        endingOffsetsByTimestamp='{"ORDERS": 2000}', minOffsetsPerTrigger="5", maxTriggerDelay="1m",
    )  # fmt: skip
    assert kafka.starting == {"ORDERS": 23}
    assert (kafka.starting_times, kafka.ending_times) == ({"ORDERS": 10**9}, {"ORDERS": 2 * 10**9})
    assert (kafka.min_rows, kafka.max_delay, options().max_delay) == (5, 60.0, 900.0)
    several = source_options({"servers": "a", "subscribePattern": "ORDERS_.*", "startingOffsets": '{"ORDERS_1": 5}'})
    assert (several.streams, several.pattern) == ((), "ORDERS_.*")
    both = source_options({"servers": "a", "subscribe": "A,B,A"})
    some = source_options({"servers": "a", "subscribe": "A,B", "minLastSeq": '{"B": 9}'})
    assert some.min_last == {"B": 9}
    assert both.streams == ("A", "B")
    secret = options(user="u", passwordFile="/run/secret", tlsCa="/ca.pem").server.credentials
    assert (secret.user, secret.password_file, secret.wants_tls) == ("u", "/run/secret", True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"failOnDatLoss": "false"}, "did you mean failOnDataLoss"),
        ({"xyz": "1"}, "there are: servers"),
        ({"password": "x"}, "Use passwordEnv or passwordFile"),
        ({"token": "x"}, "Use tokenEnv"),
        ({"servers": "nats://u:p@a"}, "holds a user or password"),
        ({"servers": "http://a"}, "is no URL"),
        ({"servers": ""}, "servers is missing"),
        ({"stream": ""}, "give stream=NAME"),
        ({"subscribe": "A,B"}, "give stream=NAME"),
        ({"stream": "a.b"}, "no stream's name"),
        ({"subjects": "a..b"}, "no subject or filter"),
        ({"user": "u"}, "user needs passwordEnv"),
        ({"failOnDataLoss": "yes"}, "is true or false"),
        ({"fetchBatch": "0"}, "a whole number from 1"),
        ({"replicaWait": "soon"}, "a duration"),
        ({"maxBytesPerTrigger": "big"}, "bytes, like"),
        ({"startingOffsets": "first"}, "earliest, latest"),
        ({"startingOffsets": "earliest-5"}, "earliest, latest"),
        ({"startingOffsets": '{"ORDERS": -3}'}, "earliest, latest"),
        ({"startingOffsets": '{"ORDERS": "x"}'}, "earliest, latest"),
        ({"startingOffsets": '{"OTHER": 1}'}, "names OTHER, which is not read"),
        ({"startingTimestamp": "yesterday"}, "a time like"),
        ({"readPreference": "nearest"}, "readPreference is any"),
        ({"readPreference": "peer"}, "readPreference is any"),
        ({"maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"}, "give one of them"),
        ({"asOfSeq": "1", "asOfTime": "0"}, "give one of them"),
        ({"asOfSeq": "1", "endingOffsets": "latest"}, "are an end already"),
        ({"mode": "first"}, "mode is one of scan, last"),
        ({"mode": "last", "startingOffsets": "1"}, "means nothing there"),
        ({"columns": "headers", "includeHeaders": "false"}, "includeHeaders=false"),
        ({"subscribePattern": "O.*"}, "give stream=NAME"),
        ({"stream": "", "subscribePattern": "("}, "is no regular expression"),
        ({"stream": "", "subscribePattern": "O.*", "startingOffsets": "5"}, "is of one stream"),
        ({"stream": "", "subscribePattern": "O.*", "minLastSeq": "5"}, "is of one stream"),
        ({"stream": "", "subscribePattern": "O.*", "readPreference": "mirror:M"}, "is of one stream"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is more than maxOffsetsPerTrigger"),
        ({"startingOffsetsByTimestamp": "1000"}, "JSON with milliseconds"),
        ({"startingOffsetsByTimestamp": '{"OTHER": 1}'}, "names OTHER, which is not read"),
        ({"startingOffsets": '{"ORDERS": {"1": 23}}'}, "earliest, latest"),
        ({"asOfSeq": "1", "endingOffsetsByTimestamp": '{"ORDERS": 1}'}, "are an end already"),
        ({"minLastSeq": "0"}, "a sequence, or JSON"),
        ({"minLastSeq": '{"ORDERS": "x"}'}, "a sequence, or JSON"),
        ({"minLastSeq": '{"OTHER": 1}'}, "minLastSeq names OTHER, which is not read"),
        ({"maxStaleness": "young"}, "a duration"),
        ({"consistent": "true", "endingOffsets": "latest"}, "endingOffsets goes without it"),
        ({"consistent": "true", "asOfTime": "0"}, "asOfTime goes without it"),
        ({"archive": "orders"}, "is no absolute path"),
        ({"archive": '{"OTHER": "s3://b/x"}'}, "names OTHER, which is not read"),
        ({"archive": "{"}, "archive is a URL or JSON"),
        ({"archive": "az://b/x?sig=1"}, "no secret is one"),
        ({"archive": "/a", "mode": "last"}, "archive goes without it"),
        ({"preferArchive": "true"}, "archive names none"),
        ({"pushdown": "true"}, "pushdown=once says that this one is used in one place of one query"),
        ({"pushdown": "twice"}, "pushdown is one of false, once"),
    ],
)
def test_what_makes_no_sense_is_said(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        source_options(BASE | given)


def test_several_streams_need_places_of_their_own() -> None:
    several = {"servers": "a", "subscribe": "A,B"}
    for given in (
        {"startingOffsets": "5"},
        {"asOfSeq": "5"},
        {"readPreference": "mirror:M"},
        {"minLastSeq": "5"},
        {"archive": "/a"},
    ):
        with pytest.raises(OptionError, match="one stream"):
            source_options(several | given)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("90", 90), ("15m", 900), ("1h", 3600), ("1.5 hours", 5400), ("30 seconds", 30), ("1 Minute", 60)],
)
def test_durations_also_as_spark_has_them(text: str, seconds: float) -> None:
    assert source_options(BASE | {"maxTriggerDelay": text}).max_delay == seconds


def test_archives() -> None:
    assert options(archive="s3://bucket/orders").archives == {"ORDERS": "s3://bucket/orders"}
    several = {"servers": "a", "subscribe": "A,B", "archive": '{"A": "/a", "B": "file:///b"}'}
    assert source_options(several).archives == {"A": "/a", "B": "file:///b"}
    pattern = {"servers": "a", "subscribePattern": "O.*", "archive": '{"ORDERS": "/a"}', "preferArchive": "true"}
    assert source_options(pattern).prefer_archive


def test_columns_are_checked() -> None:
    with pytest.raises(SchemaError, match="did you mean subject"):
        options(columns="subjct")
    assert options(columns="seq, headers_raw").names == ["seq", "headers_raw"]


@pytest.mark.parametrize(
    "given", [{"endingOffsets": "5"}, {"asOfSeq": "5"}, {"mode": "last"}, {"endingTimestamp": "0"}]
)
def test_what_a_streaming_query_cannot_do(given: dict[str, str]) -> None:
    check_streaming(options())
    with pytest.raises(OptionError, match="batch queries"):
        check_streaming(options(**given))


def test_a_micro_batch_with_a_limit_ends_anywhere() -> None:
    check_streaming(options(consistent="true"))
    for limit in ("maxOffsetsPerTrigger", "maxBytesPerTrigger"):
        with pytest.raises(OptionError, match="go without it"):
            check_streaming(options(consistent="true", **{limit: "5"}))


def test_what_a_catalog_adds_is_left_out() -> None:
    """Options that CREATE TABLE t USING jetstream OPTIONS (...) hands over; reading the table hands over nothing."""
    added = {"provider": "jetstream", "owner": "root", "option.stream": "ORDERS", "option.servers": "a"}
    assert source_options(BASE | added).streams == ("ORDERS",)
    with pytest.raises(OptionError, match="unknown option 'owner'"):
        source_options(BASE | {"owner": "root"})
    with pytest.raises(OptionError, match=r"SELECT \* FROM t WITH"):
        source_options({})


@pytest.mark.parametrize(
    "url", ["n1:9464", "https://n1/tasks", "http:///tasks", "http://a:b@n1/tasks", "http://n1/?k=1"]
)
def test_where_tasks_report(url: str) -> None:
    assert options(metricsUrl="http://n1:9464/tasks").metrics_url == "http://n1:9464/tasks"
    with pytest.raises(OptionError, match="metricsUrl"):
        options(metricsUrl=url)


def test_a_bucket_in_place_of_a_stream() -> None:
    found = source_options({"servers": "nats://a", "bucket": "CFG", "keys": "eu.>,us.k"})
    assert (found.streams, found.subjects, found.bucket) == (("KV_CFG",), ("$KV.*.eu.>", "$KV.*.us.k"), "CFG")
    assert found.names == ["key", "value", "operation", "revision", "created"]
    assert not found.fail_on_data_loss, "a bucket removes what is replaced"
    assert source_options({"servers": "nats://a", "bucket": "CFG"}).subjects == (">",)
    for given, said in (
        ({"bucket": "a.b"}, "no bucket's name"), ({"bucket": "B", "stream": "S"}, "stream is about a stream"),
        ({"bucket": "B", "kafkaColumns": "true"}, "kafkaColumns is about a stream"),
        ({"stream": "S", "keys": "a"}, "keys is about a bucket"), ({"bucket": "B", "keys": "a b"}, "is no subject"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=said):
            source_options({"servers": "nats://a", **given})
