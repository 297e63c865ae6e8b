from __future__ import annotations

import pytest

from jetcluster.cli.flags import FlagError, parse_flags

SPELLINGS = [
    (["-a", "h"], {"host": "h"}),
    (["--addr", "h"], {"host": "h"}),
    (["--net=h"], {"host": "h"}),
    (["-p", "-1"], {"port": -1}),
    (["--port=-1"], {"port": -1}),
    (["-port", "4333"], {"port": 4333}),
    (["-m", "8222"], {"http_port": 8222}),
    (["--http_port", "8222"], {"http_port": 8222}),
    (["-c", "f"], {"config": "f"}),
    (["-config", "f"], {"config": "f"}),
    (["--config=f=g"], {"config": "f=g"}),
    (["-t"], {"check_config": True}),
    (["-v"], {"version": True}),
    (["-D", "-V"], {"debug": True, "trace": True}),
    (["--debug", "--trace"], {"debug": True, "trace": True}),
    (["-DV"], {"debug_trace": True}),
    (["-DVV"], {"debug_trace_verbose": True}),
    (["-VV"], {"trace_verbose": True}),
    (["-D=false"], {"debug": False}),
    (["-l", "f", "-P", "p"], {"log_file": "f", "pid_file": "p"}),
    (["-sl", "ldm=12"], {"signal": "ldm=12"}),
    (["--signal", "stop"], {"signal": "stop"}),
    (["-js", "-sd=DIR"], {"jetstream": True, "store_dir": "DIR"}),
    (["--jetstream", "--store_dir", "DIR"], {"jetstream": True, "store_dir": "DIR"}),
    (["--user", "u", "--pass", "p"], {"user": "u", "password": "p"}),
    (["-auth", "t"], {"token": "t"}),
    (["--tls", "--tlscert", "c", "--tlskey", "k", "--tlscacert", "a", "--tlsverify"],
     {"tls": True, "tls_cert": "c", "tls_key": "k", "tls_ca": "a", "tls_verify": True}),
    (["--tlsverify=Optional"], {"tls_verify": "optional"}),
    (["--tlsverify=false"], {"tls_verify": False}),
    (["-t", "--test_reload", "f"], {"check_config": True, "test_reload": "f"}),
    (["-n", "x"], {"server_name": "x"}),
    (["-name", "x"], {"server_name": "x"}),
    (["-server_name", "x"], {"server_name": "x"}),
    (["-cluster", "nats://h:1"], {"cluster": "nats://h:1"}),
    (["--cluster_listen", "nats://h:1", "-cluster_name", "c"], {"cluster": "nats://h:1", "cluster_name": "c"}),
    (["-routes", "nats://a:1,nats://b:2"], {"routes": "nats://a:1,nats://b:2"}),
    (["--no_advertise", "--cluster_advertise", "h:1", "--connect_retries", "3"],
     {"no_advertise": True, "cluster_advertise": "h:1", "connect_retries": 3}),
    (["--client_advertise", "h:1", "--ports_file_dir", "d"], {"client_advertise": "h:1", "ports_file_dir": "d"}),
    (["-ms", "1", "-T", "-s", "-r", "udp://x", "--log_size_limit", "5", "--max_traced_msg_len", "6", "--profile", "7"],
     {"https_port": 1, "logtime": True, "syslog": True, "remote_syslog": "udp://x", "log_size_limit": 5,
      "max_traced_msg_len": 6, "profile": 7}),
    (["-p", "1", "-p", "2"], {"port": 2}),
    (["-p", "0x10"], {"port": 16}),
    (["-p", "010"], {"port": 8}),
    (["-p", "-0b11"], {"port": -3}),
    (["-p", "4_222"], {"port": 4222}),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "values"), SPELLINGS)
def test_spellings(argv: list[str], values: dict[str, object]) -> None:
    assert parse_flags(argv) == (values, [])


@pytest.mark.parametrize(
    ("argv", "values", "rest"),
    [
        (["help"], {}, ["help"]),
        (["-D", "version", "-p", "1"], {"debug": True}, ["version", "-p", "1"]),
        (["-D", "--", "-p"], {"debug": True}, ["-p"]),
        (["-"], {}, ["-"]),
        (["-D", "true"], {"debug": True}, ["true"]),
    ],
)
def test_the_first_word_that_is_no_flag_ends_them(argv: list[str], values: dict[str, object], rest: list[str]) -> None:
    assert parse_flags(argv) == (values, rest)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--bogus"], "flag provided but not defined: -bogus"),
        (["-p"], "flag needs an argument: -p"),
        (["-p", "abc"], 'invalid value "abc" for flag -p: parse error'),
        (["-DV=x"], 'invalid boolean value "x" for -DV: parse error'),
        (["---x"], "bad flag syntax: ---x"),
        (["-=x"], "bad flag syntax: -=x"),
    ],
)
def test_errors_are_worded_as_by_go(argv: list[str], text: str) -> None:
    with pytest.raises(FlagError) as caught:
        parse_flags(argv)
    assert str(caught.value) == text
