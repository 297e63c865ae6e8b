from __future__ import annotations

import json

import pytest

from jetcluster.errors import ApiError
from jetcluster.objects import metadata
from jetcluster.objects.metadata import parse_info, parse_meta
from jetcluster.store.api import Msg
from tests.unit.objects.rig import digest

GOOD = {"name": "o", "nonce": "n", "chunks": 2, "size": 10}


def parse(fields: object, remainder: bytes = b"o") -> metadata.Meta:
    return parse_meta(json.dumps(fields).encode(), "b", remainder)


def test_the_least_that_is_needed() -> None:
    meta = parse(GOOD)
    assert (meta.name, meta.nonce, meta.chunks, meta.size, meta.digest, meta.deleted) == ("o", "n", 2, 10, b"", False)


def test_everything() -> None:
    more = {"description": "d", "bucket": "b", "headers": {"h": ["1"]}, "options": {"max_chunk_size": 5}, "x": 1}
    meta = parse({**GOOD, **more, "digest": digest(b"x"), "deleted": True})
    assert meta.deleted
    assert metadata.digest_text(meta.digest) == digest(b"x")
    assert json.loads(meta.info("b", meta.digest)) == {
        "name": "o", "description": "d", "nonce": "n", "bucket": "b", "chunks": 2, "size": 10,
        "digest": digest(b"x"), "deleted": False, "headers": {"h": ["1"]}, "options": {"max_chunk_size": 5},
    }  # fmt: skip


@pytest.mark.parametrize("text", [digest(b"x").upper()[:8] + digest(b"x")[8:], digest(b"x").rstrip("=")])
def test_spellings_of_a_digest(text: str) -> None:
    assert metadata.digest_text(parse({**GOOD, "digest": text}).digest) == digest(b"x")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        *[({key: None}, 11005) for key in GOOD],
        *[({"name": value}, 11005) for value in ("", 1, "p", "x" * 1025)],
        *[({"nonce": value}, 11005) for value in ("", 1, "a.b", "a b", "*", ">", "x" * 65, "a\r\n")],
        *[({"chunks": value}, 11005) for value in (-1, 1.0, True, "1", 1 << 63)],
        *[({"size": value}, 11005) for value in (-1, True)],
        ({"bucket": "c"}, 11005),
        ({"headers": []}, 11005),
        ({"options": 1}, 11005),
        ({"description": 1}, 11005),
        ({"deleted": 1}, 11005),
        *[({"digest": value}, 11005) for value in (1, "abc", "sha-256=", "sha-256=ä", "md5=abc", "sha-256=YWJj")],
        ({"chunks": 0}, 11003),
    ],
)
def test_metadata_that_is_none(change: dict[str, object], code: int) -> None:
    with pytest.raises(ApiError) as caught:
        parse({**GOOD, **change})
    assert caught.value.err_code == code


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x",
        b"[]",
        b"1",
        b'"a"',
        b"\xff",
        b"[" * 100_000,
        b'{"name":' + b" " * 70_000,
        *[
            b'{"name":"o","nonce":"n","chunks":0,"size":0,"options":{"a":%b}}' % value
            for value in (
                b"NaN",
                b"-Infinity",
                b"1e999",
                b"1" * 5000,
                b"[" * 40 + b"]" * 40,
                b'{"a":' * 40 + b"1" + b"}" * 40,
            )
        ],
    ],
)
def test_payloads_that_are_no_object(payload: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_meta(payload, "b", b"o")
    assert caught.value.err_code == 11005


@pytest.mark.parametrize(
    ("name", "remainder", "good"),
    [
        ("cat", b"cat", True),
        ("cat", b"Y2F0", True),
        ("cat", b"dog", False),
        ("a b", b"YSBi", True),
        ("a.b", b"a.b", True),
        ("a b", b"a b", False),
        ("*", b"*", False),
    ],
)
def test_the_subject_must_name_the_object(name: str, remainder: bytes, good: bool) -> None:
    if good:
        assert parse({**GOOD, "name": name}, remainder).name == name
    else:
        with pytest.raises(ApiError):
            parse({**GOOD, "name": name}, remainder)


def test_infos_of_real_clients() -> None:
    real = {
        "name": "o", "bucket": "b", "nuid": "U", "size": 3, "chunks": 1, "digest": "SHA-256=YWJj",
        "headers": {"a": ["1"]}, "options": {"link": {"bucket": "b", "name": "p"}}, "metadata": {"k": "v"},
    }  # fmt: skip
    info = parse_info(Msg(7, 10**9, b"$O.b.M.bw==", b"", json.dumps(real).encode()), "b")
    assert info is not None
    assert (info.nonce, info.fields["digest"], info.real, info.link) == ("U", "sha-256=YWJj", True, True)
    assert info.wire()["mtime"] == "1970-01-01T00:00:01Z"
    stone = json.loads(info.tombstone())
    assert (stone["nuid"], stone["deleted"], stone["size"], stone["digest"]) == ("U", True, 0, "")
    assert "nonce" not in stone


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x",
        b"[]",
        b"{}",
        b'{"name":"o"}',
        b'{"name":1,"nonce":"n"}',
        b'{"name":"o","nonce":">"}',
        b'{"name":"o","nonce":"a.b"}',
        b'{"name":"o","nonce":"n","chunks":"x"}',
        b'{"name":"o","nonce":"n","chunks":[1]}',
        b'{"name":"o","nonce":"n","digest":1}',
        b'{"name":"o","nonce":"n","options":[1]}',
    ],
)
def test_messages_that_are_no_info(payload: bytes) -> None:
    assert parse_info(Msg(1, 1, b"$OBJ.b.info.o", b"", payload), "b") is None
