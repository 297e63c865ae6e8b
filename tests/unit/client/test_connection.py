"""The blocking client against a scripted peer."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

import pytest

from jetcluster.client.connection import Connection
from jetcluster.client.credentials import Credentials
from jetcluster.client.reply import ConnectionLostError, NoRespondersError, RequestTimeoutError, ServerError
from jetcluster.errors import ApiError
from testkit.certificates import Authority
from tests.unit.client.fake_server import Peer, hmsg, msg

EOB = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n"


def test_a_request_gets_its_answer_with_headers_and_status():
    with Peer(lambda _s, r, _h, p: hmsg(r, b"NATS/1.0 404 Message Not Found\r\nA: b\r\n\r\n", p)) as peer:
        with Connection([peer.url]) as connection:
            reply = connection.request("x", b"body", {"K": "v"})
            assert (reply.status, reply.description, reply.get("A"), reply.data) == (
                404,
                "Message Not Found",
                "b",
                b"body",
            )
        assert peer.published[0][2] == b"NATS/1.0\r\nK: v\r\n\r\n"
        assert peer.connects[0]["headers"] and peer.connects[0]["no_responders"]


def test_no_responders_and_api_errors_are_exceptions():
    def answer(subject: bytes, reply: bytes, _headers: bytes, _payload: bytes) -> bytes:
        if subject == b"$JS.API.STREAM.INFO.S":
            return msg(reply, b'{"error":{"code":404,"err_code":10059,"description":"stream not found"}}')
        if subject == b"$JS.hub.API.INFO":
            return msg(reply, b'{"streams":1}')
        return hmsg(reply, b"NATS/1.0 503\r\n\r\n")

    with Peer(answer) as peer, Connection([peer.url]) as connection:
        with pytest.raises(NoRespondersError):
            connection.request("nobody")
        with pytest.raises(ApiError) as caught:
            connection.api("STREAM.INFO.S")
        assert (caught.value.code, caught.value.err_code) == (404, 10059)
        connection.api_prefix = "$JS.hub.API."
        assert connection.api("INFO") == {"streams": 1}


def test_silence_is_a_timeout_and_the_connection_goes_on():
    with (
        Peer(lambda s, r, _h, _p: b"" if s == b"silent" else msg(r, b"yes")) as peer,
        Connection([peer.url]) as connection,
    ):
        with pytest.raises(RequestTimeoutError):
            connection.request("silent", timeout=0.05)
        assert connection.request("loud").data == b"yes"


def test_a_server_that_does_not_say_what_it_is_is_named_by_its_address():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionLostError, match=f"{url}: nothing came in time from the server"):
            Connection([url], timeout=0.1)


def test_the_first_server_that_answers_is_taken():
    with Peer(info={"server_name": "second"}) as peer, Connection(["127.0.0.1:1", peer.url]) as connection:
        assert (connection.server_name, connection.url) == ("second", peer.url)
    with pytest.raises(ConnectionLostError, match=r"//127\.0\.0\.1:1"):
        Connection(["nats://u:secret@127.0.0.1:1"])


def test_a_peer_that_is_no_nats_server_or_refuses():
    with Peer(greeting=b"SSH-2.0-x\r\n") as peer, pytest.raises(ConnectionLostError, match="not a NATS server"):
        Connection([peer.url])
    greeting = b"INFO {}\r\n-ERR 'Authorization Violation'\r\n"
    with Peer(greeting=greeting) as peer, pytest.raises(ServerError, match="Authorization Violation"):
        Connection([peer.url])


def test_many_frames_come_in_order_whatever_the_pieces():
    heads = [b"NATS/1.0\r\nNats-Sequence: %d\r\n\r\n" % n for n in range(200)]
    whole: list[bytes] = []

    def answer(_s: bytes, reply: bytes, _h: bytes, _p: bytes) -> bytes:
        whole.append(b"".join(hmsg(reply, head, b"p" * n) for n, head in enumerate(heads)) + hmsg(reply, EOB))
        return b""

    with Peer(answer) as peer, Connection([peer.url]) as connection:
        gather = connection.gather("x")
        connection.flush()
        for at in range(0, len(whole[0]), 97):
            peer.send(whole[0][at : at + 97])
        found = [frame for frames in gather for frame in frames]
        assert found == [(head, b"p" * n) for n, head in enumerate(heads)]
        assert gather.end is not None and gather.end.status == 204


def test_a_message_larger_than_a_read_and_a_payload_without_headers():
    with (
        Peer(lambda _s, r, _h, _p: msg(r, b"z" * 700_000) + hmsg(r, EOB)) as peer,
        Connection([peer.url]) as connection,
    ):
        gather = connection.gather("x")
        assert gather.wait().status == 204
        assert gather.frames() == [(b"", b"z" * 700_000)]


def test_two_gathers_under_way_do_not_mix_and_a_forgotten_one_is_dropped():
    def answer(subject: bytes, reply: bytes, _h: bytes, _p: bytes) -> bytes:
        return b"".join(msg(reply, subject + b"%d" % n) for n in range(3)) + hmsg(reply, EOB)

    with Peer(answer) as peer, Connection([peer.url]) as connection:
        one, two, three = (connection.gather(name) for name in ("a", "b", "c"))
        two.forget()
        three.wait()
        assert three.payloads == [b"c0", b"c1", b"c2"]
        assert [p for frames in one for _, p in frames] == [b"a0", b"a1", b"a2"]
        assert not two.heads


def test_a_gather_that_stalls_times_out():
    with Peer(lambda _s, r, _h, _p: msg(r, b"one")) as peer, Connection([peer.url]) as connection:
        gather = connection.gather("x", timeout=0.1)
        frames = iter(gather)
        assert next(frames) == [(b"", b"one")]
        with pytest.raises(RequestTimeoutError):
            next(frames)


def test_publishes_are_acknowledged_by_number_within_a_window():
    with Peer(lambda _s, r, _h, p: msg(r, b"ack " + p) if r else b"") as peer, Connection([peer.url]) as connection:
        connection.publish("noreply", b"x")
        numbers = {connection.publish_acked("s", b"%d" % n): n for n in range(10)}
        assert connection.outstanding == 10
        first = connection.acks(down_to=6)
        assert len(first) >= 4
        rest = connection.acks()
        assert {number: reply.data for number, reply in first + rest} == {
            number: b"ack %d" % n for number, n in numbers.items()
        }
        assert connection.outstanding == 0 and peer.published[0][1] == b""


def test_a_publish_that_cannot_be_written_is_not_waited_for():
    with Peer(lambda _s, r, _h, p: msg(r, p)) as peer, Connection([peer.url]) as connection:
        with pytest.raises(ValueError, match="not a header"):
            connection.publish_acked("s", b"x", {"a\r\nb": "c"})
        connection.publish_acked("s", b"y")
        assert [reply.data for _, reply in connection.acks(timeout=5)] == [b"y"]


def test_missing_acks_time_out():
    with Peer() as peer, Connection([peer.url]) as connection:
        connection.publish_acked("s")
        with pytest.raises(RequestTimeoutError):
            connection.acks(timeout=0.05)


def test_a_broken_connection_and_an_error_line_are_raised():
    refusal = b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n"
    with (
        Peer(lambda *_: refusal) as peer,
        Connection([peer.url]) as connection,
        pytest.raises(ServerError, match="Permissions Violation"),
    ):
        connection.request("x")
    with Peer() as peer, Connection([peer.url]) as connection:
        connection.publish_acked("s")
        connection.flush()
        peer.drop()
        with pytest.raises(ConnectionLostError):
            connection.acks()
        with pytest.raises(ConnectionLostError):
            connection.request("x")


def test_a_ping_is_answered_while_waiting():
    with Peer(lambda _s, r, _h, _p: b"PING\r\n" + msg(r, b"after")) as peer, Connection([peer.url]) as connection:
        assert connection.request("x").data == b"after"
        connection.flush()
        assert peer.pongs == 1


# The client over TLS: answers larger than a TLS record, certificates on both sides, and one nobody vouches for.


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


def test_a_certificate_that_is_not_to_be_trusted_is_an_error_at_once(authority: Authority) -> None:
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


def test_the_handshake_may_come_before_the_first_line(authority: Authority) -> None:
    certificate, key = authority.issue("job")
    who = Credentials(tls_ca=str(authority.file), tls_cert=str(certificate), tls_key=str(key), tls_first=True)
    with Peer(answer, tls=server_side(authority), tls_first=True) as peer:
        with Connection([peer.url], credentials=who) as connection:
            assert connection.request("large").data == LARGE
        with pytest.raises(ConnectionLostError):
            Connection([peer.url], credentials=Credentials(tls_ca=str(authority.file)), timeout=0.2)
