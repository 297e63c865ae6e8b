"""A local S3 server in a process of its own: some clients hold Python's lock while they wait for its answers."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.spark.streams import until

KEYS = {"AWS_ACCESS_KEY_ID": "user", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
"""The environment of those who use it, beside AWS_ENDPOINT_URL."""


@contextmanager
def object_store(bucket: str) -> Iterator[str]:
    """The URL of a server with one empty bucket."""
    pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[s3]' flask flask-cors")
    boto3 = pytest.importorskip("boto3")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _listens(port), 60.0, "the S3 server's start")
        url = f"http://127.0.0.1:{port}"
        session = boto3.session.Session(aws_access_key_id="user", aws_secret_access_key="secret")
        session.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket=bucket)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
