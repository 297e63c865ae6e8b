"""Counts the loads of one tree, in a process that valgrind's callgrind runs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from bench.counts.loads import CHUNK, ROWS

SOURCE = Path(__file__).with_name("requests.c")
HEADER = Path("/usr/include/valgrind/callgrind.h")
SECONDS = 900
"""The longest that a count may take: 20 usually, and it may run beside others with the lowest priority."""
_DUMP = re.compile(r"^desc: Trigger: Client Request: (\w+)$.*^totals: (\d+)$", re.MULTILINE | re.DOTALL)


def why_not() -> str:
    """Why nothing can be counted on this machine; "" when it can."""
    missing = [name for name in ("valgrind", "cc") if shutil.which(name) is None]
    missing += [] if HEADER.exists() or missing else [str(HEADER)]
    return f"no {' and no '.join(missing)} (Debian: apt-get install valgrind gcc)" if missing else ""


def environment() -> dict[str, str]:
    """All that decides how many instructions the same source takes."""
    flags = next((line for line in _lines("/proc/cpuinfo") if line.startswith("flags")), "").split()
    return {
        "python": sys.version.replace("\n", ""),
        "compiler": _first_line("cc", "--version"),
        "cython": version("cython"),
        "libc": " ".join(platform.libc_ver()),
        "valgrind": _first_line("valgrind", "--version"),
        "machine": " ".join([platform.machine(), *sorted({"avx2", "erms", "bmi2"}.intersection(flags))]),
    }


def clean(tree: Path) -> dict[str, str]:
    """The environment of processes that run the sources of this folder, and of no other."""
    return {"PATH": os.environ["PATH"], "HOME": str(tree), "PYTHONHASHSEED": "0", "PYTHONPATH": str(tree)}


def measure(tree: Path) -> dict[str, float]:
    """Instructions per message of each row, for the sources in this folder, whose loops are compiled. Raises
    CalledProcessError, TimeoutExpired and ValueError (a row is missing)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = folder / "requests.so"
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
        subprocess.run(command, check=True)  # noqa: S603
        # Modules that Python compiles itself lie elsewhere in memory than those it reads.
        folders = [name for name in ("jetcluster", "testkit", "bench") if (tree / name).is_dir()]
        command = [sys.executable, "-m", "compileall", "-q", *folders]
        subprocess.run(command, cwd=tree, env=clean(tree), check=True)  # noqa: S603
        command = ["valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no"]
        command += [f"--callgrind-out-file={folder / 'out'}", sys.executable, "-m", "bench.counts", str(library)]
        subprocess.run(command, cwd=tree, env=clean(tree), check=True, timeout=SECONDS)  # noqa: S603
        dumps = [_DUMP.search(path.read_text()) for path in folder.glob("out.*")]
        totals = {dump[1]: int(dump[2]) for dump in dumps if dump is not None}
    missing = [row.name for row in ROWS if row.name not in totals]
    if missing:
        raise ValueError(f"not counted: {', '.join(missing)}")
    return {row.name: totals[row.name] / (row.chunks * CHUNK) for row in ROWS}


def _first_line(*command: str) -> str:
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    return said.partition("\n")[0].strip()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
