"""Local object stores, each in a process of its own: some clients hold Python's lock while they wait for answers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from email.utils import formatdate
from typing import Final

import pytest

from testkit.harness import TOP
from tests.spark.streams import until

KEYS = {"AWS_ACCESS_KEY_ID": "user", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
"""The environment of those who use the S3 server, beside AWS_ENDPOINT_URL."""
_AZURITE: Final = TOP / ".tools/azurite/node_modules/.bin/azurite-blob"
_ACCOUNT: Final = "devstoreaccount1"
_ACCOUNT_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key of that account in every Azurite."""


@contextmanager
def object_store(bucket: str) -> Iterator[str]:
    """The URL of an S3 server with one empty bucket."""
    pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[s3]' flask flask-cors")
    boto3 = pytest.importorskip("boto3")
    with _server(lambda port: [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]) as url:
        session = boto3.session.Session(aws_access_key_id="user", aws_secret_access_key="secret")
        session.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket=bucket)
        yield url


@contextmanager
def google_store(bucket: str) -> Iterator[Mapping[str, str]]:
    """A model of Google's store (google_store.py) with one empty bucket; the environment of those who use it."""
    with _server(lambda port: [sys.executable, "-m", "tests.spark.google_store", str(port), bucket]) as url:
        key = f'{{"gcs_base_url":"{url}","disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}}'
        yield {"GOOGLE_BASE_URL": url, "GOOGLE_SERVICE_ACCOUNT_KEY": key}


@contextmanager
def azure_store(container: str) -> Iterator[Mapping[str, str]]:
    """Azurite, Microsoft's own twin of its store, with one empty container; the environment of those who use it."""
    found = str(_AZURITE) if _AZURITE.exists() else shutil.which("azurite-blob")
    if found is None:
        pytest.skip("no azurite: `make tools` installs it (needs npm)")
    words = [found, "--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--blobHost", "127.0.0.1"]
    with _server(lambda port: [*words, "--blobPort", str(port)]) as url:
        _create_container(url, container)
        yield {
            "AZURE_STORAGE_ENDPOINT": f"{url}/{_ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _ACCOUNT_KEY,
        }


STORES: Final[dict[str, Callable[[str], AbstractContextManager[Mapping[str, str]]]]] = {
    "gs": google_store,
    "az": azure_store,
}
"""Scheme of an archive's URL -> what starts a store of that kind."""


@contextmanager
def _server(words: Callable[[int], Sequence[str]]) -> Iterator[str]:
    """The URL of a process that listens on the port that it is given."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(words(port), cwd=TOP, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _listens(port), 60.0, f"the start of {words(port)[0]}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()  # nothing of it is to be kept, and azurite may not end when it is asked to
        process.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _create_container(url: str, name: str) -> None:
    """obstore makes none. Signed by the rules of a shared key."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    signed = "PUT" + "\n" * 12 + "".join(f"{key}:{value}\n" for key, value in headers.items())
    signed += f"/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
    digest = hmac.digest(base64.b64decode(_ACCOUNT_KEY), signed.encode(), hashlib.sha256)
    headers |= {
        "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
        "Content-Length": "0",
    }
    where = f"{url}/{_ACCOUNT}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(where, method="PUT", headers=headers), timeout=30).close()
