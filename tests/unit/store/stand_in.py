"""rocksdict with something in the place of some functions of a database."""

from __future__ import annotations

from typing import Any

import rocksdict


class Rocks:
    """The module `rocksdict`, whose database asks `instead` first. `real` is the database itself."""

    def __init__(self) -> None:
        self.instead: object = None
        self.real: Any = None

    def Rdict(self, *args: Any) -> Any:
        self.real = rocksdict.Rdict(*args)
        return _Database(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(rocksdict, name)


class _Database:
    def __init__(self, rocks: Rocks) -> None:
        self._rocks = rocks

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._rocks.instead, name, None)
        return getattr(self._rocks.real, name) if found is None else found
