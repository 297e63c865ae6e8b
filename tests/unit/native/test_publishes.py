"""Compiled publishes do what Python does: two servers get the same random input, cut at the same places.

`NATIVE_INPUTS` says how many random inputs are compared (default: 1500), each of up to 60 commands, many of them
repeated; `NATIVE_FIRST` is the first seed. `make fuzz` compares more of them.
"""

from __future__ import annotations

import itertools
import os

import pytest

from jetcluster import native
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.server.client import commands
from testkit.native import python_alone
from testkit.server_rig import FakePeer, ServerRig
from tests.unit.native.inputs import Inputs, every_cut, portions_of, publishes_differ

INPUTS = int(os.environ.get("NATIVE_INPUTS", "1500"))
FIRST = int(os.environ.get("NATIVE_FIRST", "1"))
PARTS = 4

pytestmark = [
    pytest.mark.skipif(native.publish_lines is None, reason=f"no compiled loops: {native.why_pure}"),
    pytest.mark.thorough,
]


@pytest.mark.parametrize("part", range(PARTS))
def test_compiled_and_python_agree_on_random_input(part: int, caplog: pytest.LogCaptureFixture) -> None:
    for seed in range(FIRST + part, FIRST + INPUTS, PARTS):
        assert not publishes_differ(seed, list(Inputs(seed).pieces())), f"seed {seed}"
        caplog.clear()


def test_compiled_and_python_agree_wherever_two_reads_meet() -> None:
    for seed in range(8):
        for pieces in every_cut(seed):
            assert not publishes_differ(seed, pieces), f"seed {seed}, {pieces}"


@pytest.mark.parametrize("compiled", [True, False])
def test_what_a_callback_changes_for_the_client_counts_from_the_next_message_on(compiled: bool) -> None:
    rig = ServerRig()
    client = rig.client()
    session = client.connection.session

    def change(*_: object) -> None:
        session.verbose = True
        session.set_permissions(None)

    rig.router.subscribe(b"go", change)
    with portions_of(1, compiled=compiled):
        assert client.ask(b"PUB a 0", b"", b"PUB go 0", b"", b"PUB a 0", b"", b"PUB a 0", b"") == b"+OK\r\n+OK\r\n"


def taken_at_once(size: int, *, compiled: bool) -> int:
    """The publishes of one read that run before the client's next turn, where all of them come back to it."""
    client = ServerRig().client(b"SUB a 1")
    with python_alone(pure=not compiled):
        client.connection.data_received(b"PUB a %d\r\n%b\r\n" % (size, bytes(size)) * 200)
        return client.connection.in_msgs


@pytest.mark.parametrize("size", [0, 16, 100, 900])
def test_output_to_the_client_itself_ends_a_portion_at_the_same_message(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "PORTION_OUTPUT_BYTES", 2000)
    assert taken_at_once(size, compiled=True) == taken_at_once(size, compiled=False) < 200


@pytest.mark.parametrize(
    ("end", "subject"), [(b"*", b"0.1.2.3.4.%d"), (b"never", b"0.1.2.%d.4.x")], ids=["many takers", "one taker"]
)
def test_looking_up_new_subjects_ends_a_portion_at_the_same_message(end: bytes, subject: bytes) -> None:
    filters = [b".".join(parts) for parts in itertools.product(*[(b"*", b"%d" % token) for token in range(5)], [end])]
    counts = []
    for compiled in (True, False):
        rig = ServerRig()
        rig.client(*[b"SUB %b %d" % (filter, sid) for sid, filter in enumerate([*filters, b"0.>"], 1)])
        client = rig.client()
        with python_alone(pure=not compiled):
            client.connection.data_received(b"".join(b"PUB %b 0\r\n\r\n" % (subject % one) for one in range(400)))
        counts.append(client.connection.in_msgs)
    assert counts[0] == counts[1] < 400


def test_a_taker_that_takes_nothing_is_not_asked_for_ever() -> None:
    rig, offered = ServerRig(), []

    def none(messages: list[Outgoing], origin: Origin) -> int:
        offered.append(len(messages))
        return 0

    rig.router.subscribe(b"a", lambda *message: offered.append(1), bulk=none)
    client = rig.client()
    client.send(*[b"PUB a 0", b""] * 5)
    assert offered == [5, 1, 1, 1, 1] and client.connection.in_msgs == 5


@pytest.mark.parametrize("lines", [(b"PUB a 0", b""), (b"PUB a  0", b"")])
def test_lines_of_clients_that_leave_an_empty_reply_subject_are_taken_together(lines: tuple[bytes, bytes]) -> None:
    """nats-py writes them so."""
    rig, offered = ServerRig(), []

    def take(messages: list[Outgoing], origin: Origin) -> int:
        offered.append(len(messages))
        return len(messages)

    rig.router.subscribe(b"a", lambda *message: offered.append(1), bulk=take)
    client = rig.client()
    client.send(*lines * 9)
    assert sum(offered) == 9 and max(offered) > 1


def test_a_taker_elsewhere_that_was_full_once_gets_runs_again() -> None:
    rig, node = ServerRig(), FakePeer("node")
    runs: list[int] = []
    node.send_run = lambda account, messages, size: runs.append(len(messages))  # type: ignore[method-assign]
    rig.router.peers.set_interest(node, b"a", None, 1)
    client = rig.client()
    rig.router.peers.valve_told(node, b"a", closed=True)
    client.ask(*[b"PUB a 0", b""] * 5)
    rig.router.peers.valve_told(node, b"a", closed=False)
    while client.connection.in_msgs < 5:
        client.read()
    node.sent.clear()
    runs.clear()
    client.ask(*[b"PUB a 0", b""] * 5)
    assert runs == [5] and not node.sent


def test_another_node_gets_different_subjects_and_headers_together() -> None:
    rig, node = ServerRig(), FakePeer("node")
    runs: list[list[bytes]] = []
    node.send_run = lambda account, messages, size: runs.append([m[0] for m in messages])  # type: ignore[method-assign]
    for subject in (b"a.*", b"b.*"):
        rig.router.peers.set_interest(node, subject, None, 1)
    client = rig.client()
    client.ask(b"PUB a.0 0", b"", b"PUB b.0 0", b"")  # their routes are at hand from now on
    runs.clear()
    headed = b"HPUB a.2 12 13", b"NATS/1.0\r\n\r\nx"
    client.ask(b"PUB a.1 0", b"", *headed, b"PUB a.3 0", b"", b"PUB b.1 0", b"", b"PUB b.2 0", b"")
    assert runs == [[b"a.1", b"a.2", b"a.3"], [b"b.1", b"b.2"]] and not node.sent
