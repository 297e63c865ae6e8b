from __future__ import annotations

import pytest

from jetcluster.server.listener import advertised, host_port


@pytest.mark.parametrize(
    ("host", "advertise", "url"),
    [
        ("127.0.0.1", "", "127.0.0.1:4222"),
        ("::1", "", "[::1]:4222"),
        ("127.0.0.1", "nats.example.com", "nats.example.com:4222"),
        ("127.0.0.1", "nats.example.com:7000", "nats.example.com:7000"),
        ("127.0.0.1", "[fe80::1]:7000", "[fe80::1]:7000"),
        ("127.0.0.1", "fe80::1", "[fe80::1]:4222"),
    ],
)
def test_advertised(host: str, advertise: str, url: str) -> None:
    assert advertised(advertise, host, 4222) == url


def test_any_address_is_not_advertised() -> None:
    for host in ("0.0.0.0", "::", ""):
        assert not advertised("", host, 4222).startswith(("0.0.0.0", "[::]", ":"))


def test_host_port() -> None:
    assert (host_port("a", 1), host_port("::1", 1)) == ("a:1", "[::1]:1")
