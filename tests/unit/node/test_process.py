"""The garbage collector stops the loop, and for how long depends on how much it looks at.

A stop that hangs ends all the same.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time

import pytest

from jetcluster.node.process import GC_THRESHOLDS

MOST = 300_000
"""Objects that a collection of the second generation looks at: some 20 ms."""


def test_a_collection_of_the_second_generation_looks_at_few_objects() -> None:
    before, was_on = gc.get_threshold(), gc.isenabled()
    looked_at: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 1:
            looked_at.append(len(gc.get_objects(0)) + len(gc.get_objects(1)))

    gc.collect()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    gc.callbacks.append(note)
    try:
        kept: list[list[int]] = [[] for _ in range(2_000_000)]
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
        if not was_on:
            gc.disable()
    assert len(kept) == 2_000_000
    assert looked_at and max(looked_at) <= MOST


PROGRAM = """
import asyncio, logging, os, signal, sys, threading, time
from jetcluster import logs
from jetcluster.config.options import Options
from jetcluster.monitor.start import NodeMonitoring
from jetcluster.node import node, process
from jetcluster.server.server import Server

process.STOP_SECONDS = 1.0
stop = Server.stop

async def hangs(self):
    {hang}

Server.stop = hangs
options = Options(host="127.0.0.1", port=-1)
logs.configure(options)
start = node.Node.start

async def started(self):
    await start(self)
    os.kill(os.getpid(), signal.SIGTERM)

node.Node.start = started
sys.exit(process.run(options, logs.get_logger("server"), lambda: options, NodeMonitoring))
"""


@pytest.mark.parametrize(
    ("hang", "code", "seconds"),
    [
        ("time.sleep(60)", 1, 20),  # the loop itself, as it waits for the journal's thread
        ("await asyncio.Event().wait()", 1, 20),
        ("asyncio.get_running_loop().run_in_executor(None, time.sleep, 60); await stop(self)", 1, 20),
        ("await stop(self)", 0, 20),
    ],
)
def test_a_process_ends_however_its_stop_hangs(hang: str, code: int, seconds: float) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(hang=hang)], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == code, done.stderr
    assert time.monotonic() - began < seconds
    assert ("not done after 1 s" in done.stderr) is bool(code)
