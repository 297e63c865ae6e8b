"""`Content`: the chunks of one object as they were when it was asked for, taken as fast as the reader takes them."""

from __future__ import annotations

from typing import Final

from jetcluster.objects.catalog import Download
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.direct_get import Frame

FRAME: Final = 64
"""Bytes that a message costs besides its payload."""


class Content:
    """`take`, then `hold` before others run; `close` at the end. An object that is replaced or deleted meanwhile is
    still sent whole."""

    def __init__(self, store: BlockStore, download: Download) -> None:
        self._view = store.view(download.subject, 0)
        self._left = download.info.chunks
        self.done = not self._left

    @property
    def frozen(self) -> bool:
        return self._view.frozen

    def take(self, size: int) -> list[Frame]:
        """The next chunks, about `size` bytes. Raises DamagedError, KvError, LostViewError."""
        frames: list[Frame] = []
        while size > 0 and self._left:
            payloads = self._view.take(self._left, size).payloads
            if not payloads:
                break
            frames += [(b"", payload) for payload in payloads]
            size -= sum(map(len, payloads)) + FRAME * len(payloads)
            self._left -= len(payloads)
        self.done = not self._left or self._view.ended
        return frames

    def hold(self) -> None:
        self._view.hold()

    def close(self) -> None:
        self._view.close()
