"""Messages beside batches are sent until they are acknowledged, and may be there twice once their ids are forgotten."""

from __future__ import annotations

from random import Random

import pytest

from jetcluster.model.times import rfc3339
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.machine import EPOCH_NS
from testkit.sim.session import Msg
from tests.sim.cluster.workloads.batches import AtomicBatches
from tests.sim.cluster.workloads.fast_batches import FastIngest

pytestmark = pytest.mark.sim


@pytest.mark.parametrize(("kind", "subject"), [(AtomicBatches, "batch.alone"), (FastIngest, "fast.alone")])
def test_a_message_beside_batches_is_stored_twice(
    deployment: Deployment, kind: type[AtomicBatches | FastIngest], subject: str
) -> None:
    work = kind(deployment, Random(1))
    deployment.run_until_done(deployment.spawn(work.loop, work.prepare()), 30.0)
    work.log.send("alone-1", again=True)

    def look(apart: int) -> None:
        times = [rfc3339(EPOCH_NS + seconds * 1_000_000_000) for seconds in (0, apart)]
        headers = [{"Nats-Subject": subject, "Nats-Time-Stamp": at} for at in times]
        copies = [Msg(subject, "", one, "", b"alone-1") for one in headers]
        work.look("n1", dict(enumerate(copies, 1)))

    look(120)
    with pytest.raises(Violation, match="stored twice"):
        look(119)
