"""`RocksReader`: a node's data store as it lies on the disk of a server that is stopped. Nothing there is changed.

What is written to it stays in memory, beside what is stored: so a state machine can be asked where it would stand after
more commands than it has applied.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from jetcluster.store.rocks_kv import RocksKv

_OWN_FILES: Final = ("LOCK", "LOG")
_CONFIG: Final = "rocksdict-config.json"


class RocksReader(RocksKv):
    """Opens directory `path`, as far as its files can be used. Raises KvError."""

    def __init__(self, path: Path) -> None:
        # rocksdict writes its configuration anew when it opens, so it is given a folder of links instead.
        self._links = tempfile.TemporaryDirectory(prefix="jetcluster-read-")
        try:
            self._link(path, Path(self._links.name))
            super().__init__(Path(self._links.name), salvage=True)
        except BaseException:
            self._links.cleanup()
            raise

    @staticmethod
    def _link(path: Path, links: Path) -> None:
        for file in path.iterdir():
            if file.name == _CONFIG:
                shutil.copyfile(file, links / file.name)
            elif file.is_file() and not file.name.startswith(_OWN_FILES):
                (links / file.name).symlink_to(file.resolve())

    def _connect(self, options: Any) -> Any:
        options.create_if_missing(False)
        return self._rocks.Rdict(str(self._path), options, access_type=self._rocks.AccessType.read_only())

    def commit(self) -> int:
        """Nothing is: what was written is there for this process alone."""
        return self.commits

    def close(self) -> None:
        super().close()
        self._links.cleanup()
