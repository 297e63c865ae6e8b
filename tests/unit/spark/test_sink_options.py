"""Options that the sink refuses before it writes."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.spark import sink_options
from jetcluster.spark.options import OptionError
from jetcluster.spark.sink_options import SinkError, SinkOptions

BASE = {"servers": "nats://127.0.0.1:4222", "stream": "S"}


def parse(**more: str) -> SinkOptions:
    return sink_options.parse({**BASE, **more})


def test_defaults_and_any_case() -> None:
    assert parse().idempotence == "msgid"
    found = parse(ATOMICBATCH="10", idempotence="FENCE", jobId="a", retryHorizon="90s", startAfter="7")
    assert (found.atomic_batch, found.idempotence, found.retry_horizon, found.start_after) == (10, "fence", 90.0, 7)
    assert parse(idempotence="fence", fenceSubjects="a.0.>, a.1.>").fence_subjects == ("a.0.>", "a.1.>")
    assert parse(checkpointLocation="/x").start_after is None


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"stream": ""}, "stream is missing"),
        ({"idempotence": "maybe"}, "idempotence is one of msgid, fence, none"),
        ({"idempotense": "none"}, "did you mean idempotence"),
        ({"atomicBatch": "1001"}, "at most 1000"),
        ({"atomicBatch": "0"}, "atomicBatch is a whole number"),
        ({"jobId": "a/b"}, "jobId"),
        ({"subject": "a.*"}, "not one that can be published to"),
        ({"retryHorizon": "soon"}, "retryHorizon is a duration"),
        ({"password": "x"}, "no secret"),
        ({"fenceSubjects": "a.>"}, "fenceSubjects are for idempotence=fence"),
        ({"idempotence": "fence", "fenceSubjects": "a..b"}, "'a..b' is no filter"),
        ({"idempotence": "fence", "fenceSubjects": "a.*.c, a.b.>"}, "a subject may be of a.\\*.c and of a.b.>"),
        ({"idempotence": "fence", "fenceSubjects": ",".join(f"a.{n}" for n in range(257))}, "at most 256, not 257"),
    ],
)
def test_options(more: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse(**more)


@pytest.mark.parametrize(
    ("types", "more", "says"),
    [
        ({"subject": "string"}, {}, "no column data"),
        ({"data": "binary"}, {}, "no column subject, and no option subject"),
        ({"data": "binary", "subject": "string", "header": "string"}, {}, "column 'header' is not known"),
        ({"data": "bigint", "subject": "string"}, {}, "column data is bigint; binary or string is needed"),
        (
            {"data": "binary", "subject": "string", "msg_id": "string"},
            {"idempotence": "fence"},
            "msg_id has no meaning with idempotence=fence",
        ),
    ],
)
def test_columns(types: dict[str, str], more: dict[str, str], says: str) -> None:
    with pytest.raises(SinkError, match=says):
        sink_options.check_columns(types, parse(**more))


def test_rows_of_the_source_fit_as_they_are() -> None:
    from jetcluster.arrow.schema import TYPES

    sink_options.check_columns(TYPES, parse())
    sink_options.check_columns({"data": "string"}, parse(subject="a.b"))


@pytest.mark.parametrize(
    ("config", "more", "says"),
    [
        ({"mirror": {"name": "X"}}, {}, "is a mirror"),
        ({"sealed": True}, {}, "is sealed"),
        ({"no_ack": True}, {}, "no_ack"),
        ({"duplicate_window": 60 * 10**9}, {}, r"remembers message ids for 60 s .*after 120 s"),
        ({}, {"subject": "b.c"}, r"does not take subject b\.c: it has a\.>"),
        ({}, {"idempotence": "fence"}, "does not take atomic batches"),
        ({"allow_atomic": True, "retention": "workqueue"}, {"idempotence": "fence"}, "retention workqueue"),
    ],
)
def test_streams(config: dict[str, Any], more: dict[str, str], says: str) -> None:
    info = {"config": {"subjects": ["a.>"], "duplicate_window": 120 * 10**9, **config}}
    with pytest.raises(SinkError, match=says):
        sink_options.check_stream(info, parse(**more))


def test_streams_that_fit() -> None:
    info = {"config": {"subjects": ["a.>"], "duplicate_window": 120 * 10**9, "allow_atomic": True}}
    assert sink_options.check_stream(info, parse(subject="a.b")) == [b"a.>"]
    assert sink_options.check_stream(info, parse(idempotence="fence"))
    single = {"config": {"subjects": ["a.>"]}}
    assert sink_options.check_stream(single, parse(idempotence="fence", atomicBatch="1"))
    assert sink_options.check_stream(single, parse(retryHorizon="0"))
    assert sink_options.check_stream({"config": {}}, parse(idempotence="none")) == [b"S"]
