"""Bytes that no server says end a link, or is answered with an error, and a server that takes it is noticed."""

from __future__ import annotations

import pytest

from jetcluster.mesh.frames import Kind, encode_call, encode_notice, frame
from jetcluster.raft import codec
from jetcluster.raft.api import META_GROUP
from testkit.sim.deployment import Deployment, Violation
from tests.sim.cluster import confused
from tests.sim.cluster.liveness import settle

pytestmark = pytest.mark.sim

GROUP = confused.GROUP.pack(META_GROUP)
WRONG = [
    *(frame(kind, body) for kind, bodies in confused.BODIES.items() for body in bodies),
    *(encode_notice(name.encode(), body) for name, bodies in confused.NOTICES.items() for body in bodies),
    *(frame(Kind.RAFT, confused.GROUP.pack(confused.CONTROL) + one) for one in confused.control_frames()),
    *(frame(Kind.RAFT, GROUP + one) for one in confused.group_frames()),
]
USELESS = [
    *(encode_call(0xFFFF_FFFF, name.encode(), body) for name, bodies in confused.CALLS.items() for body in bodies),
    *(encode_notice(name.encode(), body) for name, bodies in confused.QUIET.items() for body in bodies),
]


def _say(deployment: Deployment, said: bytes, *, closes: bool) -> bool:
    """True when the link is gone then."""
    one, other = deployment.machines["n1"], deployment.machines["n2"]
    control = deployment.client(f"confused-{len(deployment.clients)}")
    link = confused.link_of(one, other)
    if link is None:
        deployment.run_until_done(deployment.spawn(control, settle(deployment)), 60.0)
        link = confused.link_of(one, other)
    work = confused.say(deployment, one, other, said, closes=closes)
    deployment.run_until_done(deployment.spawn(control, work), 2 * confused.PATIENCE)
    deployment.run(0.5)
    return bool(link.closed)


def test_a_link_ends_with_what_no_server_says(deployment: Deployment) -> None:
    for said in WRONG:
        assert _say(deployment, said, closes=True), said
    assert deployment.failures == []


def test_a_link_stays_when_there_is_no_answer(deployment: Deployment) -> None:
    for said in USELESS:
        assert not _say(deployment, said, closes=False), said
    assert deployment.failures == []


def test_a_server_that_takes_anything_is_noticed(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_NUMBER", 1 << 64)
    monkeypatch.setattr(codec, "_flag", bool)
    with pytest.raises(Violation, match="goes on behind what no server says"):
        _say(
            deployment, frame(Kind.RAFT, GROUP + codec.encode(codec.PreVoteReply(0, 0, True))[:-1] + b"\7"), closes=True
        )
