"""An S3 server on loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jetcluster.backup import plan, restore, segment_writer
from tests.unit.backup.restoring import Transfer
from tests.unit.backup.site import SMALL


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[str]:
    server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[s3]' flask flask-cors")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def s3_endpoint(_s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a server with an empty bucket `backups`; the environment has a user's keys."""
    import urllib.request

    import boto3

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "user")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    request = urllib.request.Request(f"{_s3_server}/moto-api/reset", method="POST")
    urllib.request.urlopen(request, timeout=5).close()
    boto3.client("s3", endpoint_url=_s3_server, region_name="us-east-1").create_bucket(Bucket="backups")
    return _s3_server


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of SMALL bytes, so that a few messages fill several."""
    for module in (segment_writer, plan):
        monkeypatch.setattr(module, "SEGMENT_BYTES", SMALL)


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are restored to servers in memory (`restoring.Servers`)."""
    monkeypatch.setattr(restore, "RestoreTransfer", Transfer)
    monkeypatch.setattr(restore, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(restore, "GONE_SECONDS", 0.01)
