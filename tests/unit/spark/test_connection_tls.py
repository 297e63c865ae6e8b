"""The client over TLS: answers larger than a TLS record, certificates on both sides, and one nobody vouches for."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest

from jetcluster.spark.connection import Connection
from jetcluster.spark.credentials import Credentials
from jetcluster.spark.reply import ConnectionLostError, ServerError
from testkit.certificates import Authority
from tests.unit.spark.fake_server import Peer, hmsg, msg

LARGE = b"x" * 3_000_000


def answer(subject: bytes, reply: bytes, _: bytes, payload: bytes) -> bytes:
    if subject == b"many":
        one = hmsg(reply, b"NATS/1.0\r\nNats-Sequence: 1\r\n\r\n", LARGE[:9000])
        return one * 500 + hmsg(reply, b"NATS/1.0 204 EOB\r\n\r\n")
    return msg(reply, LARGE if subject == b"large" else payload)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def server_side(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_both_sides_show_certificates_and_large_answers_come_whole(authority: Authority) -> None:
    certificate, key = authority.issue("job")
    who = Credentials(tls_ca=str(authority.file), tls_cert=str(certificate), tls_key=str(key))
    with Peer(answer, {"tls_required": True}, tls=server_side(authority)) as peer:
        with Connection([peer.url], credentials=who) as connection:
            assert connection.request("large").data == LARGE
            gather = connection.gather("many")
            assert gather.wait().status == 204
            assert gather.payloads == [LARGE[:9000]] * 500
        assert peer.connects[0]["tls_required"] is True


def test_a_certificate_that_is_not_to_be_trusted_is_told_at_once(authority: Authority) -> None:
    """Unlike a server that is down, waiting does not mend it."""
    with Peer(answer, {"tls_required": True}, tls=server_side(authority)) as peer:
        begun = time.monotonic()
        with pytest.raises(ServerError, match="certificate verify failed"):
            Connection([peer.url, peer.url])
        assert time.monotonic() - begun < 2
        with pytest.raises(ConnectionLostError, match="certificate verify failed"):
            Connection([peer.url, "nats://127.0.0.1:1"])  # another server may be as it should
        with pytest.raises(ServerError, match="IP address mismatch"):
            context = server_side(authority)
            context.load_cert_chain(*authority.issue("elsewhere", ("elsewhere",)))
            with Peer(answer, {"tls_required": True}, tls=context) as other:
                Connection([other.url], credentials=Credentials(tls_ca=str(authority.file)))
