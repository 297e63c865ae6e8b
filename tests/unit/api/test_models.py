"""Models of requests come when they are needed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jetcluster.api import models
from jetcluster.model.base import WireModel

SOURCES = [path.read_text() for path in Path(models.__file__).parent.glob("*.py")]


def test_every_name_that_handlers_use_is_there() -> None:
    used = {name for source in SOURCES for name in re.findall(r"\bmodels\.([A-Za-z]\w+)", source)} - {
        "load",
        "__file__",
    }
    declared = set(re.findall(r"import \w+ as (\w+)", Path(models.__file__).read_text()))
    assert used == declared
    found = [getattr(models, name) for name in sorted(used)]
    assert all(isinstance(one, type) and issubclass(one, WireModel) for one in found if isinstance(one, type))
    with pytest.raises(AttributeError):
        models.Unknown  # noqa: B018


async def test_they_are_loaded_once() -> None:
    await models.load()
    before = models.PageRequest
    await models.load()
    assert models.PageRequest is before


def test_handlers_are_there_without_pydantic() -> None:
    code = (
        "import sys, jetcluster.api.endpoints\n"
        "assert 'pydantic' not in sys.modules and 'jetcluster.model.base' not in sys.modules\n"
        "from jetcluster.api import models\n"
        "assert models.PageRequest.from_fields({'offset': 3}).offset == 3 and 'pydantic' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
