"""The package as one file that spark-submit takes to workers where jetcluster is not installed.

It is all Python, so it runs wherever the workers' Python is of the driver's minor version; the compiled loops are left
out.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

import jetcluster

SHIM: Final = "pyspark_jetstream.py"
"""The module by which Spark finds the source; it stands beside the package."""
_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""Of every file in it, so that the same sources make the same bytes."""


def file_name() -> str:
    return f"jetcluster-{jetcluster.__version__}.zip"


def write(target: Path) -> None:
    """Writes the package to a zip file. Raises OSError."""
    root = Path(jetcluster.__file__).parent
    files = {f"jetcluster/{path.relative_to(root).as_posix()}": path for path in root.rglob("*.py")}
    files[SHIM] = _shim(root)
    unfinished = target.with_name(f"{target.name}.tmp")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, path in sorted(files.items()):
            zipped.writestr(zipfile.ZipInfo(name, _TIME), path.read_bytes(), zipfile.ZIP_DEFLATED)
    unfinished.replace(target)


def _shim(root: Path) -> Path:
    """Finds it in a tree of sources, or where an installation has put it."""
    found = root / "spark" / "shim" / SHIM
    return found if found.exists() else root.parent / SHIM
