from __future__ import annotations

import json
from base64 import b64decode

import pytest

from jetcluster.errors import ApiError
from jetcluster.store.api import Msg
from jetcluster.store.batch import Batch
from jetcluster.stream.read import msg_get
from tests.unit.stream.fake_store import NaiveStore, block

T0 = 1_795_167_385_500_000_000


def store() -> NaiveStore:
    found = NaiveStore()
    headers = [b"", block("A: 1", "B: x", "A: 2"), b""]
    found.append(Batch.of([b"s.a", b"s.b", b"s.a"], headers, [b"one", b"two", b""]), 1, T0)
    return found


def get(payload: bytes) -> dict[str, object]:
    response = json.loads(msg_get.answer(store(), msg_get.decode(payload)))
    assert list(response) == ["type", "message"]
    assert response["type"] == "io.nats.jetstream.api.v1.stream_msg_get_response"
    return response["message"]  # type: ignore[no-any-return]


def test_message_object() -> None:
    assert get(b'{"seq":1}') == {"subject": "s.a", "seq": 1, "data": "b25l", "time": "2026-11-20T09:36:25.5Z"}
    found = get(b'{"last_by_subj":"s.b"}')
    assert list(found) == ["subject", "seq", "hdrs", "data", "time", "headers"]
    assert b64decode(str(found["hdrs"])) == block("A: 1", "B: x", "A: 2")
    assert found["headers"] == {"A": ["1", "2"], "B": "x"}
    assert list(get(b'{"seq":3}')) == ["subject", "seq", "time"]  # its payload is empty
    assert list(get(b'{"seq":2,"no_hdr":true}')) == ["subject", "seq", "data", "time"]


@pytest.mark.parametrize(
    ("payload", "seq"),
    [
        (b'{"next_by_subj":"s.a","seq":2}', 3),
        (b'{"next_by_subj":"s.*"}', 1),
        (b'{"start_time":"2026-11-20T09:36:25.500000001Z"}', 2),
        (b'{"start_time":"2026-11-20T09:36:25.500000001Z","next_by_subj":"s.a"}', 3),
    ],
)
def test_selection(payload: bytes, seq: int) -> None:
    assert get(payload)["seq"] == seq


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", 10003), (b"{}", 10003), (b" { } ", 10003), (b"{", 10025), (b'{"seq":"1"}', 10025), (b"[]", 10025),
        (b'{"sequence":1}', 10025), (b'{"seq":1,"batch":1}', 10003), (b'{"seq":1,"max_bytes":1}', 10003),
        (b'{"seq":1,"last_by_subj":"a"}', 10003), (b'{"seq":1,"start_time":"2026-01-01T00:00:00Z"}', 10003),
        (b'{"last_by_subj":"a","start_time":"2026-01-01T00:00:00Z"}', 10003),
        (b'{"last_by_subj":"a","next_by_subj":"a"}', 10003), (b'{"multi_last":["a"]}', 10003),
        (b'{"seq":1,"msg_id_prefixes":["a"]}', 10003),
        (b'{"seq":1,"next_by_subj":"s","msg_id_prefixes":[""]}', 10003),
        (b'{"seq":1,"next_by_subj":"s","msg_id_prefixes":"a"}', 10025),
        (b'{"seq":1,"next_by_subj":"s","msg_id_prefixes":[%b"a"]}' % (512 * b'"a",'), 10003),
        (b'{"no_hdr":true}', 10003), (b'{"seq":9}', 10037), (b'{"last_by_subj":"zz"}', 10037),
    ],
)  # fmt: skip
def test_errors(payload: bytes, code: int) -> None:
    with pytest.raises(ApiError) as caught:
        get(payload)
    assert caught.value.err_code == code


def test_unknown_keys_are_fine_when_not_strict() -> None:
    assert msg_get.decode(b'{"seq":1,"x":2}', strict=False).seq == 1


def test_required_api_level() -> None:
    with pytest.raises(ApiError) as caught:
        msg_get.decode(b'{"seq":1}', block("Nats-Required-Api-Level: 99"))
    assert (caught.value.code, caught.value.err_code) == (412, 10185)


def test_thousands_of_header_lines_are_rendered_in_steps() -> None:
    lines = block(*[f"a{number}: x" for number in range(5000)])
    message = Msg(1, T0, b"s", lines, b"")
    steps = msg_get.rendering(message, no_headers=False)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            response = json.loads(stop.value)
            break
        count += 1
    assert count == 10 and len(response["message"]["headers"]) == 5000
    assert list(msg_get.rendering(message, no_headers=True)) == []
