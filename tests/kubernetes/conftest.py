"""Fixtures of the tests on a control plane: where it is, releases in namespaces of their own, the table of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kubernetes.kube import plane_folder
from tests.kubernetes.plane.folders import FIGURES
from tests.kubernetes.release import Release
from tests.kubernetes.volumes import make_class

HERE = Path(__file__).parent
Say = Callable[[str], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kubernetes)
            item.add_marker(pytest.mark.timeout(1800))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if HERE in item.path.parents and item.get_closest_marker("kubernetes") and plane_folder() is None:
        pytest.skip("needs a control plane: `make kubernetes` brings one up")


@pytest.fixture(scope="session")
def volumes() -> Path:
    """The folder of the nodes' volumes, which have a class by now."""
    folder = plane_folder()
    assert folder is not None
    make_class()
    return folder / "volumes"


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Say:
    """Writes a row of the table that docs/deploy/kubernetes-tests.md shows, and prints it."""

    def write(text: str) -> None:
        row = f"| `{request.node.path.name}::{request.node.name}` | {text} |\n"
        with FIGURES.open("a") as page:
            page.write(row)
        print(row, end="")

    return write


@pytest.fixture(scope="module")
def release(volumes: Path, request: pytest.FixtureRequest) -> Iterator[Release]:
    """A release named after the module, whose tests install it, and which goes at its end."""
    made = Release(volumes, request.module.__name__.rpartition("test_")[2].replace("_", "-"))
    made.make_namespace()
    yield made
    made.remove()
