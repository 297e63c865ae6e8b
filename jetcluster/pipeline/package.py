"""The package as files that spark-submit takes to workers where jetcluster is not installed.

It is all Python, so it runs wherever the workers' Python is of the driver's minor version; the compiled loops are left
out. The zip goes twice: in `--py-files` for the driver, whose Python has it in its path from the start; and in
`--archives`, unpacked as a folder `jetcluster`, for the workers. Spark gives the functions of a Python data source only
the folder of its files, not the zips in it, and that folder then has the package.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

import jetcluster

SHIM: Final = "pyspark_jetstream.py"
"""The module by which Spark finds the source. It needs a place of its own beside the package."""
FOLDER: Final = '''"""The package, when this archive is unpacked under its name."""

import os

__path__ = [os.path.join(os.path.dirname(__file__), "jetcluster")]
__file__ = os.path.join(__path__[0], "__init__.py")
with open(__file__) as _file:
    exec(compile(_file.read(), __file__, "exec"))
'''
_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every file in it, so that the same sources make the same bytes."""


def file_name() -> str:
    return f"jetcluster-{jetcluster.__version__}.zip"


def options() -> list[str]:
    """Returns what spark-submit needs to know of the files that `write` writes to the folder where it is started."""
    return ["--py-files", f"{file_name()},{SHIM}", "--archives", f"{file_name()}#jetcluster"]


def write(folder: Path) -> None:
    """Writes the zip and the shim. Raises OSError."""
    root = Path(jetcluster.__file__).parent
    contents = {f"jetcluster/{path.relative_to(root).as_posix()}": path.read_bytes() for path in root.rglob("*.py")}
    contents["__init__.py"] = FOLDER.encode()
    unfinished = folder / f"{file_name()}.tmp"
    with zipfile.ZipFile(unfinished, "w") as zipped:
        for name, text in sorted(contents.items()):
            zipped.writestr(zipfile.ZipInfo(name, _TIME), text, zipfile.ZIP_DEFLATED)
    unfinished.replace(folder / file_name())
    (folder / SHIM).write_bytes(_shim(root).read_bytes())


def _shim(root: Path) -> Path:
    """Finds it in a tree of sources, or where an installation has put it."""
    found = root / "spark" / "shim" / SHIM
    return found if found.exists() else root.parent / SHIM
