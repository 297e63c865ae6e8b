"""The place of an object store, as the libraries are told of it."""

from __future__ import annotations

import pytest
from pyarrow import fs

from jetcluster.pipeline.tables.object_store import catalog_properties, delta_options, file_system

NAMES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_REGION", "AWS_DEFAULT_REGION")


@pytest.fixture(autouse=True)
def _nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_a_folder_is_told_of_nothing() -> None:
    system, path = file_system("/a/b")
    assert isinstance(system, fs.LocalFileSystem) and path == "/a/b"
    assert file_system("file:///a/b")[1] == "/a/b"
    assert file_system("file:///a%20b c")[1] == "/a b c"
    assert delta_options("/a/b") is None and delta_options("s3://a/b") is None
    assert catalog_properties({"type": "sql"}) == {"type": "sql"}


def test_hadoops_names_of_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    for name in ("s3", "s3a", "s3n"):
        system, path = file_system(f"{name}://bucket/a/c")
        assert isinstance(system, fs.S3FileSystem)
        assert (path, system.region) == ("bucket/a/c", "eu-central-1")


def test_an_endpoint_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "r1")
    assert delta_options("s3://a/b") == {"allow_http": "true"} and delta_options("/a/b") is None
    assert catalog_properties({}) == {"s3.endpoint": "http://minio:9000", "s3.region": "r1"}
    given = {"s3.endpoint": "https://other", "s3.region": "r2"}
    assert catalog_properties(given) == given
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://minio:9000")
    assert delta_options("s3://a/b") is None
