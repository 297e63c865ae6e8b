"""`Leaving`: servers that are being removed, on which nothing is placed any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jetcluster import errors
from jetcluster.errors import by_code


class Leaving:
    """The meta leader's own knowledge, from the request to its end. Whoever removes a server looks at what it has, and
    a place that is given away after that look would be one on a server that is no member."""

    def __init__(self) -> None:
        self._peers: Counter[str] = Counter()

    def __contains__(self, peer: object) -> bool:
        return peer in self._peers

    @contextmanager
    def leaves(self, peer: str) -> Iterator[None]:
        self._peers[peer] += 1
        try:
            yield
        finally:
            self._peers -= Counter((peer,))  # those at zero go

    def check(self, command: Mapping[str, Any]) -> None:
        """`command`: of the meta log. Raises ApiError when it moves a stream onto one of these servers: it was chosen
        before its removal began."""
        if not self._peers or "from" not in command:
            return
        if any(peer in self._peers for peer in set(command["peers"]).difference(command["from"])):
            raise by_code(errors.RECONFIGURATION_IN_PROGRESS)
