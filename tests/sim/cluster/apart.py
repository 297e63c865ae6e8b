"""A seed in a process of its own, which ends as it is: to clear up after a run takes a tenth as long as the run.

The process is a fork of this one, so it has all that was imported and built here, by a rehearsal: else each would
import cryptography and compile methods of records, for a tenth of its time. What a seed imports besides is imported
here too, for those that come after it.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import pickle
import sys
import traceback
from dataclasses import replace
from typing import NoReturn

from tests.sim.cluster.batch import Outcome, run_one
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import run_seed
from tests.sim.cluster.scenario import Scenario

OURS = ("jetcluster.", "testkit.", "tests.")
REHEARSED = Scenario(
    seed=0,
    layout="three",
    skew=0.0,
    workloads=("mirrors", "publish", "pulls"),
    rage=Rage(faults=(), hands=0, seconds=0.0, rest=0.0),
    disk=128 << 20,
    processor=1.0,
    again=False,
)


@functools.cache
def rehearse() -> None:
    """Runs a seed without faults, so that nothing is left to do that the first run of a process does for all others.
    Whether it passes is for the seeds to say: that of a mutant may not."""
    run_seed(REHEARSED.seed, scenario=REHEARSED)
    gc.freeze()


def run(scenario: Scenario) -> Outcome:
    """`cpu` of the outcome is all that the process has used. Raises ChildProcessError where it ends without an outcome;
    a signal that ends it ends this process as well."""
    rehearse()
    source, target = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        _tell(scenario, target)
    os.close(target)
    with os.fdopen(source, "rb") as answer:
        data = answer.read()
    _, status, used = os.wait4(child, 0)
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    if status != 0 or not data:
        raise ChildProcessError(f"the process of seed {scenario.seed} ended with {os.waitstatus_to_exitcode(status)}")
    outcome, imported = pickle.loads(data)
    for name in imported:
        importlib.import_module(name)
    assert isinstance(outcome, Outcome)
    return replace(outcome, cpu=used.ru_utime + used.ru_stime)


def _tell(scenario: Scenario, target: int) -> NoReturn:
    """Runs the seed, in the process of its own."""
    code = 1
    try:
        known = set(sys.modules)
        outcome = run_one(scenario, collect=False)
        imported = [name for name in sys.modules if name not in known and name.startswith(OURS)]
        with os.fdopen(target, "wb") as answer:
            answer.write(pickle.dumps((outcome, imported)))
        code = 0
    except BaseException:  # nothing of the process that was forked may go on here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
