"""The state of a stream, as its leader reports it."""

from __future__ import annotations

import json

import pytest

from jetcluster.client.servers import ServerOptions, ask
from jetcluster.client.stream_state import StreamError, stream_state
from jetcluster.errors import ApiError
from tests.unit.client.fake_server import Peer, msg


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
