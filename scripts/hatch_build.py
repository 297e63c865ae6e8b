"""The build hook of `pip install` and `pip wheel`: compiles `jetcluster/native` where there is a C compiler, and says
so where there is none. A package without compiled code is all Python, and does the same."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuildHook(BuildHookInterface):  # type: ignore[misc,type-arg]
    """Puts the compiled modules into a wheel; an editable install finds them in its source tree."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        folder = Path(self.root) / "jetcluster" / "native"
        why = _script(Path(self.root) / "scripts" / "native.py").compile_all(folder)
        if why:
            self.app.display_warning(f"jetcluster is built without compiled loops: {why}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        ending = sysconfig.get_config_var("EXT_SUFFIX")  # the tree may hold modules of another Python, or of no source
        build_data["artifacts"] += [f"jetcluster/native/{one.stem}{ending}" for one in sorted(folder.glob("*.pyx"))]


def _script(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("native_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
