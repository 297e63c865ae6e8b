"""What waits for a connection that takes no more goes as soon as it does. Otherwise it goes with whatever is sent next,
which servers do all the time, so that only somebody who measures would see how late it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter

from jetcluster.mesh.link import TcpLink
from testkit.sim.deployment import Deployment


class Lanes:
    """It tells `deployment.failed` of what is left waiting."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        self._deployment = deployment

    def resumed(self, link: TcpLink) -> None:
        """The connection takes more now."""
        self.looked += 1
        left, scheduled = attrgetter("_ordered", "_scheduled")(link)
        if left and not scheduled and not link.congested:
            now, own = self._deployment.scheduler.now, getattr(link, "peer_id", "")
            self._deployment.failed(f"at {now:.3f}: {len(left)} frames for {own} wait, whose connection takes more")


@contextmanager
def watched(deployment: Deployment) -> Iterator[Lanes]:
    """All connections between servers are looked at meanwhile."""
    lanes = Lanes(deployment)
    usual: Callable[[TcpLink], None] = TcpLink.resume_writing

    def resume_writing(self: TcpLink) -> None:
        usual(self)
        lanes.resumed(self)

    setattr(TcpLink, "resume_writing", resume_writing)  # noqa: B010 - as the watches of `proofs.py`
    try:
        yield lanes
    finally:
        setattr(TcpLink, "resume_writing", usual)  # noqa: B010
