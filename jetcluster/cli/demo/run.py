"""The command itself: a folder and a cluster for the steps, their lines on the terminal, and the end of both."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.markup import escape

from jetcluster.cli.common import DONE, REFUSED
from jetcluster.cli.demo.steps import Demo
from jetcluster.cli.local_cluster import LocalCluster
from jetcluster.errors import JetclusterError

INTERRUPTED = 130


def run_demo(*, keep: bool) -> int:
    """Runs all steps and returns the exit code. Whatever happens, no server is left, and no file unless `keep`."""
    console = Console(highlight=False, soft_wrap=True)
    root = Path(tempfile.mkdtemp(prefix="jetcluster-demo-"))
    cluster = LocalCluster(3, root, name="demo")
    before = signal.signal(signal.SIGTERM, _interrupt)
    began = time.monotonic()
    try:
        code = show(Demo(cluster), console)
    except KeyboardInterrupt:
        console.print("stopped")
        code = INTERRUPTED
    finally:
        cluster.stop()
        signal.signal(signal.SIGTERM, before)
        if not keep:
            shutil.rmtree(root, ignore_errors=True)
    left = f"their stores and logs are in {root}" if keep else "their folder is removed"
    end = "[green]Everything above was checked.[/]" if code == DONE else "[red]Not everything was proved.[/]"
    console.print(f"\n{end} {time.monotonic() - began:.1f} s; the three servers are stopped, {left}.")
    return code


def show(demo: Demo, console: Console) -> int:
    """Runs the steps one by one, with the lines of each. Returns the exit code; after a failure no step follows."""
    try:
        for number, (title, step) in enumerate(demo.steps(), 1):
            console.print(f"[bold]{number}  {escape(title)}[/]")
            step(lambda line: console.print(f"   {escape(line)}"))
    except (JetclusterError, OSError) as error:
        print(f"jetcluster demo: {error or type(error).__name__}", file=sys.stderr)
        return REFUSED
    finally:
        demo.close()
    return DONE


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt
