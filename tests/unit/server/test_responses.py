"""Responses that requesters of another account wait for."""

from __future__ import annotations

from jetcluster.config.account_options import ExportOptions, ImportOptions

from .sharing import Nodes, account, reply_of


def nodes() -> Nodes:
    return Nodes(1, account("A", ExportOptions("service", "req")), account("B", ImportOptions("service", "A", "req")))


def test_a_response_is_known_by_the_subject_that_was_made_for_it() -> None:
    cluster = nodes()
    service, requester = cluster.client("A", b"SUB req 1"), cluster.client("B", b"SUB in 1")
    requester.send(b"PUB req in 1", b"x")
    made = reply_of(service.read())
    sharing = cluster.benches[0].server.sharing
    assert sharing is not None and not sharing.responses.awaited_in("B") and not sharing.responses.awaited_in("none")
    (response,) = sharing.responses.awaited_in("A").values()
    assert (response.subject, response.reply, response.importer.account) == (made, b"in", "B")
    service.send(b"PUB %b 3" % made, b"yes")
    assert requester.read() == b"MSG in 1 3\r\nyes\r\n"
    assert not sharing.responses.awaited_in("A"), "one response was awaited"


def test_the_exporting_account_asks_about_the_requester_in_its_own_account() -> None:
    cluster = nodes()
    exporter = cluster.benches[0].server.account("A")
    service, requester = cluster.client("A", b"SUB req 1"), cluster.client("B", b"SUB in 1")
    assert exporter.requesters is None, "nobody has asked yet"
    requester.send(b"PUB req in 1", b"x")
    made = reply_of(service.read())
    assert exporter.has_interest(made) and exporter.backlog(made) == 0 == exporter.backlog_here(made)
    assert not exporter.has_interest(made + b"x") and exporter.backlog(made + b"x") == -1
    requester.send(b"UNSUB 1")
    assert not exporter.has_interest(made), "who has asked does not listen any more"
