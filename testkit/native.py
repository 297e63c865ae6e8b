"""Python alone where the compiled loops are there too: for what is run with both, or must not depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Final

from jetcluster import native
from jetcluster.server import state
from jetcluster.stream.apply import scheduler

LOOPS: Final = tuple(name for name, kind in native.__annotations__.items() if "Callable" in str(kind))
"""All compiled functions, by their names in `jetcluster.native`."""


@contextmanager
def python_alone(*, pure: bool = True) -> Iterator[None]:
    """No compiled loop runs in this process meanwhile; `pure=False` changes nothing."""
    before = {name: getattr(native, name) for name in (*LOOPS, "row_loops")} if pure else {}
    for name in before:
        setattr(native, name, _no_rows if name == "row_loops" else None)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(native, name, function)


@contextmanager
def one_description() -> Iterator[None]:
    """Servers say meanwhile that compiled loops run, and one version of Python, whatever does; their own zone is UTC:
    what they log and answer is the same on every machine, and so is a digest of it."""
    said = (
        (vars(native), "described", native.COMPILED),
        (vars(state), "LANGUAGE", "python3.11"),
        (vars(scheduler), "LOCAL_FILE", str(resources.files("tzdata.zoneinfo.Etc").joinpath("UTC"))),
    )
    before = [names[name] for names, name, _ in said]
    try:
        for names, name, told in said:
            names[name] = told
        yield
    finally:
        for (names, name, _), told in zip(said, before, strict=True):
            names[name] = told


def _no_rows() -> None:
    """Stands for the function that loads the loops of rows."""
