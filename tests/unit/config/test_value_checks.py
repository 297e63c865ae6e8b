"""Texts of nats-server 2.15.2 for the same values, where it has some."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.config.load import load_file
from jetcluster.config.option_checks import problem_of
from jetcluster.config.value_checks import is_host_and_port


def test_a_port_of_more_digits_than_python_reads_is_none() -> None:
    assert not is_host_and_port("h:" + "9" * 5000)
    assert is_host_and_port("h:04222")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "http_port: 99999",
            "Can't start monitoring: can't listen to the monitor port: listen tcp: address 99999: invalid port",
        ),
        ("cluster { name: c, port: 99999 }", "Error listening on router port: listen tcp: address 99999: invalid port"),
        ("leafnodes { port: -2 }", "Error listening on leafnode port: listen tcp: address -2: invalid port"),
        (
            "websocket { port: 65536, no_tls: true }",
            "Unable to listen for websocket connections: listen tcp: address 65536: invalid port",
        ),
        (
            "cluster { name: c, port: 1, routes: ['nats://u:geheim@h:99999'] }",
            'error parsing route url ["nats://[REDACTED]@h:99999"]: Port out of range 0-65535',
        ),
        (
            "cluster { name: c, port: 1, routes: ['nats://:1'] }",
            'error parsing route url ["nats://:1"]: a route needs a host and a port',
        ),
        ('jetstream { store_dir: "a\\x00b" }', "invalid store_dir: a path has no NUL character"),
        ("client_advertise: 'h:99999'", "invalid ClientAdvertise value of h:99999, it must be host or host:port"),
        (
            "cluster { name: c, port: 1, cluster_advertise: 'a b' }",
            "invalid cluster advertise value of a b, it must be host or host:port",
        ),
        ("jetstream { domain: 'a.b' }", "invalid domain name: may not contain ., * or >"),
        ("jetstream { domain: 'a b' }", 'invalid domain name: derived "$JS.a b.API.>" is not a valid subject'),
        ("cluster { name: c, port: 1, compression: nope }", 'unsupported compression mode "nope"'),
        ("leafnodes { port: 1, compression { mode: nope } }", 'unsupported compression mode "nope"'),
        (
            "websocket { port: -1, no_tls: true, allowed_origins: ['http://h:x'] }",
            'unable to parse allowed origin: parse "http://h:x": invalid port ":x" after host',
        ),
        (
            "cluster { name: c, port: -1, compression: S2_Fast }\nclient_advertise: h\n"
            "server_name: n\njetstream { domain: hub }",
            None,
        ),
    ],
)
def test_values_that_no_server_can_run_with(text: str, problem: str | None, tmp_path: Path) -> None:
    (tmp_path / "c.conf").write_text(text)
    assert problem_of(load_file(str(tmp_path / "c.conf"), {})[0]) == problem


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        ("h", True),
        ("h:1", True),
        ("1.2.3.4:65535", True),
        ("[::1]:4222", True),
        ("[::1]", True),
        ("::1", True),
        (":", False),
        (":1", False),
        ("h:", False),
        ("h:0", False),
        ("h:65536", False),
        ("h:x", False),
        ("[::1]4222", False),
        ("a b", False),
        ("u:p@h:1", False),
        ("nats://h:1", False),
    ],
)
def test_addresses_to_advertise(address: str, is_one: bool) -> None:
    assert is_host_and_port(address) is is_one


def test_a_remote_twice_is_refused_without_its_password(tmp_path: Path) -> None:
    from jetcluster.config.lexer import ConfigError

    (tmp_path / "c.conf").write_text("leafnodes { remotes: [ {url: 'nats://u:p@h:1'}, {url: 'nats://u:p@h:1'} ] }")
    with pytest.raises(ConfigError) as caught:
        load_file(str(tmp_path / "c.conf"), {})
    assert ':1:71: duplicate remote urls=["nats://[REDACTED]@h:1"], account="$G"' in str(caught.value)
