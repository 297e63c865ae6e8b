"""Isolation of accounts with an import between them: nothing that the import does not name crosses, for every API
subject and kind of traffic.

The general table of attempts across accounts is elsewhere; here one account has a foot in the other's door.
"""

from __future__ import annotations

import pytest

from jetcluster.api import endpoints
from jetcluster.config.account_options import ExportOptions, ImportOptions
from tests.unit.server.sharing import Nodes, account

API = [f"{endpoint.name}{'.ORDERS' * endpoint.args[0]}" for endpoint in endpoints.ALL]
OTHERS = [
    "CONSUMER.MSG.NEXT.ORDERS.C",
    "DIRECT.GET.ORDERS",
    "DIRECT.GET.ORDERS.orders.1",
    "STREAM.INFO.OTHER",
    "STREAM.INFO.ORDERS.x",
]
TRAFFIC = [
    "$JS.ACK.ORDERS.C.1.1.1.1.0",
    "$JS.FC.ORDERS.C.x",
    "$KV.b.k",
    "$OBJ.b",
    "$O.b.M.x",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.ACCOUNT.A.CONNZ",
    "$SYS.REQ.USER.INFO",
    "$JS.hub.API.INFO",
    "orders.1",
    "_INBOX.a.b",
    "_R_.a.b",
]
ALLOWED = "STREAM.INFO.ORDERS"
A = account(
    "A",
    ExportOptions("service", f"$JS.API.{ALLOWED}"),
    ExportOptions("service", "req.*", ["B"]),
    ExportOptions("stream", "pub.>", ["B"]),
)
B = account(
    "B",
    ImportOptions("service", "A", f"$JS.API.{ALLOWED}", f"JS.A.API.{ALLOWED}"),
    ImportOptions("service", "A", "req.x"),
    ImportOptions("stream", "A", "pub.open.>"),
    pub="pub.open.mapped",
)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes(2, A, B)


@pytest.mark.parametrize("at", [0, 1], ids=["same node", "other node"])
def test_only_what_is_imported_reaches_the_exporter(nodes: Nodes, at: int) -> None:
    ear, asker = nodes.client("A", b"SUB > 1", at=at), nodes.client("B", b"SUB in.* 9")
    subjects = [prefix + name for prefix in ("$JS.API.", "JS.A.API.") for name in [*API, *OTHERS]] + TRAFFIC
    subjects += ["req.y", "req.x.y", "pub.open.a", "pub", "JS.A.API.>", "JS.A.API.*.INFO.ORDERS"]
    for subject in subjects:
        if subject != f"JS.A.API.{ALLOWED}":
            asker.send(f"PUB {subject} in.1 0".encode(), b"")
    assert ear.read() == b""
    asker.send(f"PUB JS.A.API.{ALLOWED} in.1 0".encode(), b"", b"PUB req.x in.2 0", b"")
    heard = ear.read()
    assert heard.count(b"HMSG") == 2
    assert f"HMSG $JS.API.{ALLOWED} 1 _R_.".encode() in heard and b"HMSG req.x 1 _R_." in heard


@pytest.mark.parametrize("at", [0, 1], ids=["same node", "other node"])
def test_only_what_is_imported_reaches_the_importer(nodes: Nodes, at: int) -> None:
    ear, speaker = nodes.client("B", b"SUB > 1", b"SUB pub.> 2", b"SUB $JS.> 3", at=at), nodes.client("A")
    for subject in [*(f"$JS.API.{name}" for name in API), *TRAFFIC, "pub.closed", "pub.open", "req.x", "JS.A.API.INFO"]:
        speaker.send(f"PUB {subject} 0".encode(), b"")
    assert ear.read() == b""
    speaker.send(b"PUB pub.open.a 0", b"")
    assert ear.read().count(b"MSG pub.open.a") == 2


def test_a_third_account_gets_nothing_of_either(nodes: Nodes) -> None:
    ear = nodes.client("C", b"SUB > 1", b"SUB _R_.> 2")
    server, asker, teller = nodes.client("A", b"SUB req.* 1"), nodes.client("B", b"SUB in 9"), nodes.client("A")
    asker.send(b"PUB req.x in 0", b"")
    server.send(b"PUB %b 0" % server.read().split()[3], b"")
    teller.send(b"PUB pub.open.a 0", b"")
    assert b"MSG in 9 0" in asker.read()
    assert ear.read() == b""


def test_an_import_that_is_private_to_others_does_nothing() -> None:
    """Accounts of JWTs are not refused as a whole: the import is left out."""
    thief = account("T", ImportOptions("service", "A", "req.x"), ImportOptions("stream", "A", "pub.open.>"))
    nodes = Nodes(1, A, B, thief)
    server, asker = nodes.client("A", b"SUB > 1"), nodes.client("T", b"SUB > 9")
    asker.send(b"PUB req.x in 0", b"")
    assert server.read() == b""
    asker.read()
    server.send(b"PUB pub.open.a 0", b"")
    assert asker.read() == b""


def test_the_account_s_token_is_not_another_s() -> None:
    owner = account("A", ExportOptions("service", "of.*.data", account_token_position=2))
    honest = account("B", ImportOptions("service", "A", "of.B.data", "mine"))
    thief = account(
        "T",
        ImportOptions("service", "A", "of.B.data", "mine"),
        ImportOptions("service", "A", "of.*.data", "all.*"),
        ImportOptions("service", "A", "of.>", "more.>"),
    )
    nodes = Nodes(1, owner, honest, thief)
    server, good, bad = nodes.client("A", b"SUB > 1"), nodes.client("B"), nodes.client("T")
    for subject in (b"mine", b"all.B", b"more.B.data"):
        bad.send(b"PUB %b 0" % subject, b"")
    assert server.read() == b""
    good.send(b"PUB mine 0", b"")
    assert server.read().startswith(b"HMSG of.B.data 1 ")
