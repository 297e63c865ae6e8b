"""The command line as options of the source: servers and credentials."""

from __future__ import annotations

import argparse

import pytest

from jetcluster.pipeline import arguments, audit
from jetcluster.pipeline.result import UsageError


def asked(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    audit.add_arguments(parser)
    return parser.parse_args(["--stream", "S", *words])


def test_every_way_to_log_in_is_an_option_of_the_source() -> None:
    words = ["--user", "u", "--password-env", "P", "--password-file", "p", "--token-env", "T", "--token-file", "t"]
    words += ["--nkey", "n", "--creds", "c", "--tls", "--tls-ca", "ca", "--tls-cert", "ce", "--tls-key", "k"]
    found = arguments.source_options(asked(*words, "--domain", "d", "-s", "tls://n1:4222,tls://n2:4222"))
    assert found == {
        "servers": "tls://n1:4222,tls://n2:4222", "user": "u", "passwordEnv": "P", "passwordFile": "p",
        "tokenEnv": "T", "tokenFile": "t", "nkeyFile": "n", "credsFile": "c", "tls": "true", "tlsCa": "ca",
        "tlsCert": "ce", "tlsKey": "k", "domain": "d",
    }  # fmt: skip
    assert arguments.server_options_of(asked(*words)).credentials.wants_tls
    assert arguments.source_options(asked()) == {"servers": arguments.DEFAULT_SERVER}


def test_the_second_cluster_has_its_own_login_or_the_same() -> None:
    words = ["--server", "nats://a", "--creds", "c", "--tls-ca", "ca", "--against-server", "nats://b"]
    same = arguments.source_options(arguments.second_server(asked(*words)))
    assert same == {"servers": "nats://b", "credsFile": "c", "tlsCa": "ca"}
    own = arguments.source_options(arguments.second_server(asked(*words, "--against-nkey", "n")))
    assert own == {"servers": "nats://b", "nkeyFile": "n"}


def test_what_cannot_be_is_one_line() -> None:
    with pytest.raises(UsageError, match="user needs passwordEnv or passwordFile"):
        arguments.server_options_of(asked("--user", "u"))
