"""Names of cipher suites: Go's and OpenSSL's."""

from __future__ import annotations

import ssl

import pytest

from jetcluster.config.tls_options import go_suite, is_insecure, openssl_suites, problem_of_suite

MODERN = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
OLD = "TLS_RSA_WITH_AES_128_CBC_SHA"
NEWEST = "TLS_AES_128_GCM_SHA256"


@pytest.mark.parametrize(
    ("name", "problem", "insecure"),
    [
        (MODERN, "", False),
        (OLD, "", True),
        (NEWEST, "", False),
        ("TLS_RSA_WITH_RC4_128_SHA", "not in this machine's TLS library any more", True),
        ("TLS_NONE", "unrecognized cipher TLS_NONE", False),
    ],
)
def test_suites_that_can_be_had(name: str, problem: str, insecure: bool) -> None:
    assert problem in problem_of_suite(name) and bool(problem_of_suite(name)) is bool(problem)
    assert is_insecure(name) is insecure


def test_suites_of_tls_1_3_cannot_be_chosen() -> None:
    assert openssl_suites([NEWEST, MODERN, OLD]) == "ECDHE-RSA-AES128-GCM-SHA256:AES128-SHA"
    assert openssl_suites([NEWEST]) == ""


def test_openssl_knows_what_is_translated_and_monitoring_shows_it_back() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(openssl_suites([MODERN]))
    assert "ECDHE-RSA-AES128-GCM-SHA256" in {found["name"] for found in context.get_ciphers()}
    assert go_suite("ECDHE-RSA-AES128-GCM-SHA256") == MODERN
    assert go_suite(NEWEST) == NEWEST
