from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.cli.flags import parse_flags
from jetcluster.cli.merge import options_from
from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import Options


def options(*argv: str) -> Options:
    flags, rest = parse_flags(argv)
    assert rest == []
    return options_from(flags)


def test_defaults() -> None:
    assert options() == Options()


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.conf"
    path.write_text("""
        port: 4333, server_name: file, http: 8222, debug: false, max_payload: 2MB
        jetstream { store_dir: "/file", domain: d }
        cluster { name: filecluster, listen: "127.0.0.1:6222", routes: ["nats://file:1"], no_advertise: true }
        authorization { user: u, password: filepass }
    """)
    found = options(
        "-c", str(path), "-p", "-1", "-n", "flag", "-m", "-1", "-DV", "-sd", "/flag", "--cluster", "nats://127.0.0.2:-1",
        "--cluster_name", "flagcluster", "--routes", "nats://a:1, nats://b:2", "--no_advertise=false", "--pass", "p",
    )  # fmt: skip
    assert (found.port, found.server_name, found.http_port) == (-1, "flag", -1)
    assert (found.debug, found.trace) == (True, True)
    assert found.max_payload == 2 << 20
    assert (found.jetstream.enabled, found.jetstream.store_dir, found.jetstream.domain) == (True, "/flag", "d")
    assert (found.cluster.name, found.cluster.host, found.cluster.port) == ("flagcluster", "127.0.0.2", -1)
    assert found.cluster.routes == ["nats://a:1", "nats://b:2"]
    assert not found.no_advertise
    assert (found.authorization.user, found.authorization.password) == ("u", "p")


def test_cluster_url_with_credentials() -> None:
    found = options("--cluster", "nats://r:s@[::1]:6222", "--cluster_name", "c")
    assert (found.cluster.host, found.cluster.port) == ("::1", 6222)
    assert (found.cluster.authorization.user, found.cluster.authorization.password) == ("r", "s")


def test_the_cluster_url_stands_for_address_and_login_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.conf"
    path.write_text("cluster { name: c, listen: 'h:1', authorization { user: u, password: p } }")
    file = ("-c", str(path))

    def found(*argv: str) -> tuple[str, int, str, str]:
        cluster = options(*file, *argv).cluster
        return cluster.host, cluster.port, cluster.authorization.user, cluster.authorization.password

    assert found() == ("h", 1, "u", "p")
    assert found("--cluster", "nats://x:%40y@i:2") == ("i", 2, "x", "@y")
    assert found("--cluster", "nats://i:2") == ("i", 2, "", "")
    assert found("--cluster", "")[1] == 0
    with pytest.raises(ConfigError, match="expected cluster password to be set"):
        options("--cluster", "nats://x@i:2")


def test_store_dir_alone_does_not_enable_jetstream() -> None:
    assert not options("-sd", "/x").jetstream.enabled
    assert options("-js").jetstream.enabled


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--cluster", "abc"], "missing port in address"),
        (["--routes", "nats://u:geheim@h:x", "--cluster", "nats://h:1"],
         'error parsing route url ["nats://[REDACTED]@h:x"]: could not parse port "x"'),
        (["--routes", "nats://127.0.0.1:444"], "solicited routes require cluster capabilities, e.g. --cluster"),
        (["-js", "--cluster", "nats://h:1"], "jetstream cluster requires `server_name` to be set"),
        (["-js", "-n", "a", "--cluster", "nats://h:1"], "jetstream cluster requires `cluster.name` to be set"),
        (["-n", "a b"], "server name cannot contain spaces"),
        (["--tls"], "TLS Server certificate must be present and valid"),
        (["--tls", "--tlscert", "c"], "TLS Server private key must be present and valid"),
        (["--tls", "--tlscert", "/nope/c", "--tlskey", "k"],
         "error parsing X509 certificate/key pair: open /nope/c: no such file or directory"),
        (["-c", "/nope/x.conf"], "open /nope/x.conf: no such file or directory"),
        (["--log_format", "xml"], 'log_format must be "text" or "json", got "xml"'),
    ],
)  # fmt: skip
def test_what_no_server_can_run_with(argv: list[str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(*argv)
    assert str(caught.value) == text


def test_flags_without_effect_are_a_warning() -> None:
    found = options("--connect_retries", "3", "--profile", "2", "-T")
    assert found.warnings == ["Accepted, but without effect in this version: --profile, --connect_retries"]


@pytest.mark.parametrize(
    ("flag", "debug", "trace", "verbose"),
    [
        ("-D", True, False, False),
        ("-V", False, True, False),
        ("-VV", False, True, True),
        ("-DV", True, True, False),
        ("-DVV", True, True, True),
        ("-DV=false", False, False, False),
    ],
)
def test_debug_and_trace(flag: str, debug: bool, trace: bool, verbose: bool) -> None:
    found = options(flag)
    assert (found.debug, found.trace, found.trace_verbose) == (debug, trace, verbose)


def test_flags_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "c.conf"
    path.write_text("syslog: true, log_size_limit: 5, max_traced_msg_len: 3, logtime: true\n")
    found = options("-c", str(path), "-s=false", "-r", "udp://h:1", "--log_size_limit", "7", "-T=false")
    assert (found.syslog, found.remote_syslog, found.log_size_limit) == (False, "udp://h:1", 7)
    assert (found.max_traced_msg_len, found.logtime) == (3, False)


def test_a_random_cluster_without_a_name_is_a_warning() -> None:
    found = options("--cluster", "nats://127.0.0.1:-1")
    assert found.warnings == ["Cluster name was dynamically generated, consider setting one"]


@pytest.mark.parametrize(("argv", "port"), [(["-p", "0"], 4222), (["-p", "-1"], -1), (["-p", "1"], 1), ([], 4222)])
def test_port_zero_is_the_default(argv: list[str], port: int) -> None:
    assert options(*argv).port == port


def test_tags_come_on_top_of_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.conf"
    path.write_text("server_tags: [disk:ssd, 'zone:eu-1']\n")
    found = options("-c", str(path), "--tags", "zone:eu-1, rack:7,")
    assert found.server_tags == ["disk:ssd", "zone:eu-1", "rack:7"]
    assert options("--tags", "").server_tags == []
