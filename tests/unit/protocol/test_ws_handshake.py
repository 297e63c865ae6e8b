"""The request that opens a WebSocket (protocol/websocket.py). Statuses are those of nats-server 2.15."""

from __future__ import annotations

import pytest

from jetcluster.protocol.websocket import HandshakeError, Rules, accept, parse, place_of, places_of, refusal

USUAL = {
    "Host": "a.example:8080",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


def head(line: str = "GET / HTTP/1.1", **changed: str | None) -> bytes:
    fields = {**USUAL, **{key.replace("_", "-"): value for key, value in changed.items()}}
    return "\r\n".join([line, *(f"{key}: {value}" for key, value in fields.items() if value is not None)]).encode()


def answer(request: bytes, rules: Rules = Rules()) -> str:  # noqa: B008 - frozen
    return accept(parse(request), rules).decode()


def status(request: bytes, rules: Rules = Rules()) -> int:  # noqa: B008 - frozen
    with pytest.raises(HandshakeError) as caught:
        answer(request, rules)
    assert refusal(caught.value).startswith(b"HTTP/1.1 %d " % caught.value.status)
    return caught.value.status


def test_the_example_of_the_rfc() -> None:
    assert answer(head()) == (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    )
    assert answer(head("GET /any/path?x=1 HTTP/1.1"), Rules(headers={"X-A": "b"})).endswith("\r\nX-A: b\r\n\r\n")


@pytest.mark.parametrize(
    ("request_head", "expected"),
    [
        (head("POST / HTTP/1.1"), 405),
        (head("GET / HTTP/1.0"), 400),
        (head("GET /"), 400),
        (b"\x16\x03\x01\x02", 400),
        (head() + b"\r\nno colon", 400),
        (head() + b"\r\nHost: b", 400),
        (head() + b"\r\n folded: x", 400),
        (head(Host=None), 400),
        (head(Upgrade=None), 400),
        (head(Connection="close"), 400),
        (head(Sec_WebSocket_Key=None), 400),
        (head(Sec_WebSocket_Key="abc"), 400),
        (head(Sec_WebSocket_Version="8"), 400),
        (head("GET /mqtt HTTP/1.1"), 404),
        (head("GET /leafnode HTTP/1.1"), 404),
    ],
)
def test_other_requests_are_refused(request_head: bytes, expected: int) -> None:
    assert status(request_head) == expected


def test_origins() -> None:
    same, listed = Rules(same_origin=True), Rules(origins=places_of(["http://b.example", "https://c.example:444"]))
    assert "101" in answer(head(Origin="http://x.example"))
    assert "101" in answer(head(), same)
    assert "101" in answer(head(Origin="http://A.example:8080"), same)
    assert status(head(Origin="http://a.example"), same) == 403
    assert "101" in answer(head(Origin="https://a.example", Host="a.example"), Rules(tls=True, same_origin=True))
    assert "101" in answer(head(Origin="http://a.example:80", Host="a.example"), same)
    for scheme in ("https", "ftp", "ws", ""):
        origin = f"{scheme}:" * bool(scheme) + "//a.example:80"
        assert status(head(Origin=origin, Host="a.example:80"), same) == 403, scheme
    assert status(head(Origin="http://a.example:443", Host="a.example"), Rules(tls=True, same_origin=True)) == 403
    assert "101" in answer(head(Origin="http://b.example:80"), listed)
    assert "101" in answer(head(Origin="https://C.example:444"), listed)
    for origin in ("https://b.example", "http://c.example:444", "http://b.example.evil", "null", "http://b:%zz"):
        assert status(head(Origin=origin), listed) == 403
    assert place_of("https://x") == ("https", "x", 443)


@pytest.mark.parametrize(
    ("offer", "taken"),
    [
        ("permessage-deflate", True),
        ("permessage-deflate; client_max_window_bits", True),
        ("x-webkit-deflate-frame, permessage-deflate; server_max_window_bits=15", True),
        ("permessage-deflate; server_max_window_bits=10", False),
        ("permessage-deflate; server_max_window_bits=10, permessage-deflate", True),
        ("permessage-deflate; unknown", False),
        ("", False),
    ],
)
def test_compression_is_taken_when_both_want_it(offer: str, *, taken: bool) -> None:
    request = head(Sec_WebSocket_Extensions=offer)
    line = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
    assert (line in answer(request, Rules(compression=True))) is taken
    assert line not in answer(request)


def test_cookies_and_browsers() -> None:
    request = parse(head(Cookie='a=1; b="x=y"', User_Agent="Mozilla/5.0") + b"\r\nCookie: c=3")
    assert [request.cookie(name) for name in ("a", "b", "c", "d")] == ["1", "x=y", "3", ""]
    assert request.browser
    assert not parse(head()).browser
