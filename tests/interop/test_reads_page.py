"""docs/reads.md: its programs run as they stand there, with stock clients and three nodes, and show what it says."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import shlex
from pathlib import Path
from typing import Any

import nats
import pytest

from scripts.run_guide import blocks_of
from testkit.harness import ProcessCluster, find_nats_cli
from tests.runbook_page import matches, steps

pytestmark = [pytest.mark.cluster, pytest.mark.interop, pytest.mark.usefixtures("tidy")]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reads.md"


async def printed(code: str, line: int, namespace: dict[str, Any]) -> str:
    """Runs a block, which may await, in the namespace of the others."""
    text = io.StringIO()
    compiled = compile("\n" * (line - 1) + code, str(PAGE), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.redirect_stdout(text):
        found = eval(compiled, namespace)
        if inspect.isawaitable(found):
            await found
    return text.getvalue()


async def test_the_program_with_nats_py(tidy: ProcessCluster) -> None:
    page = PAGE.read_text()
    namespace: dict[str, Any] = {"__name__": "__page__", "servers": tidy.urls}
    blocks = blocks_of(page)
    try:
        for block in blocks:
            found = await printed(block.code, block.line, namespace)
            assert found == ("" if block.shown is None else page[slice(*block.shown)]), f"line {block.line}"
    finally:
        for name in ("writer", "reader"):
            if name in namespace:
                await namespace[name].close()
    assert sum(block.shown is not None for block in blocks) >= 7, "each strength shows something"


async def test_the_commands(tidy: ProcessCluster) -> None:
    tool = find_nats_cli()
    if tool is None:
        pytest.skip("the nats CLI is not on this machine: run `make tools` (needs Go and its module proxy)")
    connection = await nats.connect(tidy.urls[0])
    js = connection.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.*"], num_replicas=3, allow_direct=True)
    assert (await js.publish("orders.7", b"paid")).seq == 1
    await connection.close()
    commands = steps(PAGE.read_text())
    assert len(commands) == 6
    for at, step in enumerate(commands):
        words = [tool, "-s", tidy.urls[at % 3], *shlex.split(step.command)[1:]]
        process = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, stdin=asyncio.subprocess.DEVNULL,
            env=os.environ | {"HOME": "/nonexistent", "NO_COLOR": "1"},
        )  # fmt: skip
        said = (await asyncio.wait_for(process.communicate(), 30))[0].decode()
        for line in step.shows:
            assert matches(line, said), f"{step.command}\n{said}\nis not shown: {line}"
