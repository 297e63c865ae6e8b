"""Errors that a node catches, logs and goes on after fail the run, whoever catches them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jetcluster.replica.applying import Applying
from testkit.sim.deployment import Deployment
from testkit.sim.trace import REFUSED, SWALLOWED
from tests.sim.cluster.run import run_seed
from tests.sim.cluster.scenario import Scenario

pytestmark = pytest.mark.sim

ROOMS = ("api", "cluster", "consumer", "mesh", "meta", "mirror", "objects", "raft", "replica", "stream")
PRODUCT = Path(__file__).parents[3] / "jetcluster"


def test_a_command_that_is_refused_is_a_failure_unless_a_workload_makes_such_ones(deployment: Deployment) -> None:
    machine = deployment.machines["n1"]
    assert machine.loop is not None
    log = machine.loop.log
    for event in (REFUSED, "tick failed", "request failed"):
        log.error(event, error="KeyError('x')")
        assert deployment.failures.pop() == f"n1: {event}: KeyError('x') None"
    deployment.expected.add(REFUSED)
    log.error(REFUSED, error="KeyError('x')")
    log.warning("this node is not well", error="KeyError('x')")
    assert deployment.failures == []
    log.error("tick failed", error="KeyError('x')")
    assert len(deployment.failures) == 1


def test_a_mistake_that_a_node_swallows_fails_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Applying) -> None:
        raise KeyError("x")

    monkeypatch.setattr(Applying, "_tell_consumers", fail)
    result = run_seed(1, scenario=replace(Scenario.of(1, ("publish",), no_others=True), layout="three"))
    assert "what follows from a command failed: KeyError('x')" in result.failure


def _broad(tree: ast.AST) -> Iterator[ast.ExceptHandler]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Name) and node.type.id == "Exception":
            yield node


def test_each_log_message_of_an_error_that_anything_may_raise_is_known() -> None:
    """Handlers that catch all there is and log it as an error name the event here, or use `exception`."""
    unknown = []
    for path in (path for room in ROOMS for path in sorted((PRODUCT / room).rglob("*.py"))):
        for handler in _broad(ast.parse(path.read_text())):
            said = "\n".join(map(ast.unparse, handler.body))
            events = re.findall(r"(?:\.error|\.failed)\('([^']+)'|(?:\.error|\.failed)\(\"([^\"]+)\"", said)
            unknown += [(path.name, event) for pair in events for event in pair if event and event not in SWALLOWED]
    assert unknown == []
