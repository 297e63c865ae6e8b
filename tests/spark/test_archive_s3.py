"""Archives in an object store: written, read back and restored through a local S3 server, without a jar for it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from jetcluster.client.connection import Connection
from tests.spark.jobs import fails, run
from tests.spark.stored import contents, delete
from tests.spark.streams import create, fill
from tests.spark.test_archive import mixed
from tests.unit.backup.conftest import _s3_server, s3_endpoint

__all__ = ["_s3_server", "s3_endpoint"]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(300),  # the first one starts Spark and a cluster
]


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, spark: Any) -> str:
    """URL of an empty bucket. Workers of Spark have the environment of the session's start, so the server's place is
    given to them as a setting of the executors."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        spark.sparkContext.environment[name] = os.environ[name]
    return "s3://backups/kept"


def test_archive_and_restore(spark: Any, connection: Connection, servers: str, bucket: str) -> None:
    create(connection, "INS3")
    fill(connection, mixed("INS3", 900))
    delete(connection, "INS3", [1, 500, 900])
    words = ["--stream", "INS3", "--out", bucket, "--max-per-batch", "400"]
    done = run(spark, servers, "archive", *words).fields
    assert (done["rows"], done["batches"], done["out"]) == (897, 3, bucket)
    fill(connection, mixed("INS3", 100, 900))
    assert run(spark, servers, "archive", *words).fields["rows"] == 100
    messages = contents(connection, "INS3")
    restored = run(spark, servers, "restore", "--from", bucket, "--stream", "FROMS3", "--subjects", "froms3.>").fields
    assert (restored["rows"], restored["verified"]) == (997, True)
    assert contents(connection, "FROMS3") == messages
    text, code = fails(spark, servers, "restore", "--from", "s3://nowhere/x", "--stream", "FROMS3")
    assert (code, "there is no such bucket" in text) == (2, True), text
