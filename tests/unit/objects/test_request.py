from __future__ import annotations

import pytest

from jetcluster.errors import ApiError
from jetcluster.objects.request import ObjectRequest, decode
from tests.unit.stream.fake_store import block


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", ("list", "")),
        (b"  ", ("list", "")),
        (b"{}", ("list", "")),
        (b'{"action":"list"}', ("list", "")),
        (b'{"op":"list"}', ("list", "")),
        (b'{"name":"o"}', ("info", "o")),
        (b'{"name":"o","deleted":true}', ("info", "o")),
        (b'{"name":"o","action":"info","deliver_subject":"d"}', ("info", "o")),
        (b'{"name":"o","deliver_subject":"d"}', ("get", "o")),
        (b'{"name":"o","action":"get","deliver_subject":"d"}', ("get", "o")),
        (b'{"name":"o","action":"delete"}', ("delete", "o")),
        (b'{"name":"o","op":"delete"}', ("delete", "o")),
    ],
)
def test_what_is_asked_for(payload: bytes, expected: tuple[str, str]) -> None:
    request = decode(payload, b"")
    assert (request.action, request.name) == expected


def test_pages_and_the_header() -> None:
    assert decode(b'{"offset":5,"limit":10}', b"") == ObjectRequest("list", "", "", 5, 10)
    assert decode(b'{"name":"o"}', block("Nats-Object-Operation: delete")).action == "delete"


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"x", 11005),
        (b"[]", 11005),
        (b"[" * 100_000, 11005),
        (b'{"action":"explode","name":"o"}', 11005),
        (b'{"action":["list"]}', 11005),
        (b'{"name":1}', 11005),
        (b'{"action":"info"}', 11005),
        (b'{"action":"delete","name":""}', 11005),
        (b'{"deliver_subject":"d"}', 11005),
        (b'{"offset":-1}', 11005),
        (b'{"limit":"a"}', 11005),
        *[
            (b'{"name":"o","deliver_subject":%b}' % subject, 11007)
            for subject in (b"1", b'"a.*"', b'"a b"', b'".a"', b'">"', b'"$JS.API.INFO"', b'"$OBJ.b.chunks.n"')
        ],
        (b'{"name":"o","action":"get"}', 11007),
    ],
)
def test_what_is_refused(payload: bytes, code: int) -> None:
    with pytest.raises(ApiError) as caught:
        decode(payload, b"")
    assert caught.value.err_code == code
