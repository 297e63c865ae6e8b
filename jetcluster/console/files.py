"""`WebFiles`: the console's files, read once from the package."""

from __future__ import annotations

import gzip
import hashlib
from importlib import resources
from importlib.resources.abc import Traversable

from jetcluster.records import NamedTuple

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
INDEX = "index.html"
MIN_PACKED_BYTES = 1024
"""Smaller files are sent as they are."""


class WebFile(NamedTuple):
    """One file: its bytes, the same packed by gzip (b"": not worth it), its media type and its entity tag."""

    body: bytes
    packed: bytes
    type: str
    tag: str


class WebFiles:
    """All files by their path below `/ui/`; 0.4 MB, so they are kept once somebody has asked."""

    def __init__(self) -> None:
        self._files: dict[str, WebFile] = {}
        self._read(resources.files("jetcluster.console") / "web", "")

    def get(self, path: str) -> WebFile | None:
        """Returns the file of a path; the index for ""."""
        return self._files.get(path or INDEX)

    def _read(self, folder: Traversable, prefix: str) -> None:
        for one in folder.iterdir():
            if one.is_dir():
                self._read(one, f"{prefix}{one.name}/")
            elif (kind := TYPES.get(one.name.rpartition(".")[2])) is not None:
                body = one.read_bytes()
                packed = gzip.compress(body, 6, mtime=0) if len(body) >= MIN_PACKED_BYTES else b""
                tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
                self._files[prefix + one.name] = WebFile(body, packed, kind, tag)
