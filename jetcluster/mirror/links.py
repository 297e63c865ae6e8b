"""`Links`: all links of one stream, on its leader."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from jetcluster.mirror.link import SILENCE_SECONDS, UpstreamLink
from jetcluster.mirror.ports import LinkDependencies, LinkLog, Told
from jetcluster.mirror.upstream import Upstream

LINKS_AT_ONCE: Final = 16
APART_SECONDS: Final = 0.04
"""Links of a stream that begin or end together, and the delay before more: thousands at once block the loop."""


class Links:
    """The links of one stream. Idle until `begin`."""

    def __init__(self, around: LinkDependencies, stream: str) -> None:
        self._around = around
        self._stream = stream
        self._leading = False
        self._log = LinkLog(around.log, around.timers, stream)
        self.by_key: dict[bytes, UpstreamLink] = {}
        self._silent_since: float | None = None
        """Time (monotonic) since which an upstream is silent, as the log says; None while all are heard."""

    def begin(self) -> None:
        """Begins leading."""
        self._leading = True
        self.configure()

    def end(self, *, deleted: bool = False) -> None:
        """Ends all links. `deleted`: the stream is deleted."""
        self._leading = False
        self._around.paces.retries.forget(self._around.target)
        self._around.paces.returns.forget(self._around.target)
        self._end(list(self.by_key.values()), forever=deleted)
        self.by_key.clear()

    def configure(self) -> None:
        """Follows the configuration: ends the links that it has no more, and begins new ones."""
        if not self._leading:
            return
        wanted = {upstream.key: upstream for upstream in self._upstreams()}
        self._end([self.by_key.pop(key) for key in list(self.by_key) if key not in wanted], forever=True)
        known = self.by_key
        self.by_key = {
            key: known.get(key) or UpstreamLink(self._around, upstream, self._log) for key, upstream in wanted.items()
        }
        for number, key in enumerate([key for key in wanted if key not in known]):
            self.by_key[key].begin(number // LINKS_AT_ONCE * APART_SECONDS)

    def _end(self, links: list[UpstreamLink], *, forever: bool) -> None:
        """Stops all `links` now, and unsubscribes in steps."""
        for link in links:
            link.stop(forever=forever)
        self._end_some(deque(links))

    def _end_some(self, links: deque[UpstreamLink]) -> None:
        for _ in range(min(LINKS_AT_ONCE, len(links))):
            links.popleft().end()
        if links:
            self._around.timers.call_later(APART_SECONDS, self._end_some, links)

    def _upstreams(self) -> list[Upstream]:
        rules = self._around.target.rules
        if rules.restoring:
            return []
        if rules.mirror is not None:
            return [Upstream(rules.mirror, self._stream, mirror=True)]
        return [Upstream(source, self._stream, mirror=False) for source in rules.config.get("sources") or ()]

    def tick(self) -> None:
        links = list(self.by_key.values())
        for link in links:
            link.tick()
        self._report_silence(links)

    def _report_silence(self, links: list[UpstreamLink]) -> None:
        """Logs once that upstreams became silent, and once that all are heard again, for all links of the stream."""
        silent = [link for link in links if link.silent_seconds > SILENCE_SECONDS]
        now = self._around.clock.monotonic()
        if silent and self._silent_since is None:
            first = max(silent, key=lambda link: link.silent_seconds)
            self._silent_since = now - first.silent_seconds
            text = "nothing is heard of the upstream: what is read here gets older"
            self._around.log.warning(text, stream=self._stream, upstream=first.upstream.name, upstreams=len(silent))
        elif not silent and self._silent_since is not None:
            seconds, self._silent_since = round(now - self._silent_since, 1), None
            if links:
                self._around.log.info("the upstream is heard again", stream=self._stream, seconds=seconds)

    def applied(self, index: int, result: object) -> None:
        for link in list(self.by_key.values()):
            link.applied(index, result)

    def newest(self) -> int:
        """Log index from which on all received messages are stored; 0: they are now."""
        return max((link.newest() for link in self.by_key.values()), default=0)

    def behind(self, stored: Callable[[str], int]) -> bool:
        """True when a mirror's upstream here has messages that come soon. `stored`: last sequence of a stream here."""
        link = self.by_key.get(b"")
        return link is not None and link.behind(stored)

    def ask_origin(self, told: Told) -> None:
        """Asks a mirror's origin for its last sequence; without a link, `told` gets None at once."""
        link = self.by_key.get(b"")
        if link is None:
            told(None)
        else:
            link.origin.ask(told)

    def info(self, *, seconds: bool = False) -> dict[str, Any]:
        """`mirror` or `sources` of STREAM.INFO, in the order of the configuration; {} without links, or when this
        replica does not lead. `seconds` adds `lag_seconds` and `silent_seconds` to each."""
        found = [link.info() for link in self.by_key.values()]
        if seconds:
            for shown, link in zip(found, self.by_key.values(), strict=True):
                shown["lag_seconds"] = round(link.lag_seconds, 3)
                shown["silent_seconds"] = round(link.silent_seconds, 3)
        if not found:
            return {}
        return {"mirror": found[0]} if b"" in self.by_key else {"sources": found}
