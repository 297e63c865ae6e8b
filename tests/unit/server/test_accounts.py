"""What other nodes say of accounts: a peer can make up names without end."""

from __future__ import annotations

import pytest

from jetcluster.server import accounts, router
from jetcluster.server.accounts import Accounts
from tests.twins.time import SeededRng


class Peer:
    peer_id = "AAAAAAAA"


def test_names_that_a_peer_makes_up_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MAX_ACCOUNTS", 10)
    own, peer = Accounts(SeededRng(1)), Peer()
    genuine = own["$G"]
    for number in range(100):
        name = f"made-up-{number}"
        own.deliver_from_peer(peer, name, b"s", b"", [], b"", b"")  # type: ignore[arg-type]
        own.deliver_many_from_peer(peer, name, b"s", [], [])  # type: ignore[arg-type]
        own.valve_told(peer, name, b"s", True)  # type: ignore[arg-type]
        own.backlog_told(peer, name, b"s", 1, 1)  # type: ignore[arg-type]
        assert own.backlog_here(name, b"s") == 0
        own.set_remote_interest(peer, name, b"s", None, 0)  # type: ignore[arg-type]
    assert list(own) == [genuine], "only interest makes an account known"
    for number in range(100):
        own.set_remote_interest(peer, f"made-up-{number}", b"s", None, 1)  # type: ignore[arg-type]
    assert len(list(own)) == 10
    own.set_remote_interest(peer, "$G", b"s", None, 1)  # type: ignore[arg-type]
    assert len(genuine._remote[peer]) == 1, "what is known goes on"  # type: ignore[index]
    assert own["configured"] in list(own), "this node's own accounts have no bound"


def test_the_interest_of_one_peer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MAX_WANTED", 5)
    own, peer = Accounts(SeededRng(1)), Peer()
    for number in range(20):
        own.set_remote_interest(peer, "$G", b"s.%d" % number, None, 1)  # type: ignore[arg-type]
    wants = own["$G"]._remote[peer]  # type: ignore[index]
    assert len(wants) == 5
    own.set_remote_interest(peer, "$G", b"s.0", None, 0)  # type: ignore[arg-type]
    own.set_remote_interest(peer, "$G", b"s.30", None, 1)  # type: ignore[arg-type]
    assert (b"s.30", None) in wants
