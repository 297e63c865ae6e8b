"""The state of a stream, as its leader reports it."""

from __future__ import annotations

import json

import pytest

from jetcluster.client.servers import ServerOptions, ask
from jetcluster.client.stream_state import StreamError, stream_state
from jetcluster.errors import ApiError
from tests.unit.client.fake_server import Peer, msg

INFO = {"config": {"name": "S"}, "created": "2026-11-22T00:00:00Z",
        "state": {"messages": 2, "bytes": 20, "first_seq": 4, "last_seq": 5}}  # fmt: skip


@pytest.mark.parametrize("number", [10059, 10039])
def test_a_stream_that_is_not_there_by_either_number(number: int) -> None:
    answer = {"code": 404, "err_code": number, "description": "stream not found"}
    with Peer(lambda _s, r, _h, _p: msg(r, json.dumps({"error": answer}).encode())) as peer:
        server = ServerOptions((peer.url,))
        with pytest.raises(StreamError, match="there is no stream S"):
            ask(server, lambda link: stream_state(link, "S"))
        answer["code"] = 503 if number == 10039 else 400  # not enabled for the account; the subject of another stream
        with pytest.raises(ApiError, match="not found"):
            ask(server, lambda link: stream_state(link, "S"), patience=0.1)


def test_a_proof_that_the_leader_leads_is_asked_for_by_a_header() -> None:
    asked = []

    def answer(_subject: bytes, reply: bytes, headers: bytes, _payload: bytes) -> bytes:
        asked.append(headers)
        return msg(reply, json.dumps(INFO).encode())

    with Peer(answer) as peer:
        server = ServerOptions((peer.url,))
        assert ask(server, lambda link: stream_state(link, "S")).first == 4
        assert ask(server, lambda link: stream_state(link, "S", linearizable=True)).first == 4
    assert asked == [b"", b"NATS/1.0\r\nNats-Read-Consistency: linearizable\r\n\r\n"]
