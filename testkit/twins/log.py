"""`ListLog`: a logger of tests."""

from __future__ import annotations

from typing import Any


class ListLog:
    """A log that keeps its lines, as (level, event, values)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def _add(self, level: str, event: str, values: dict[str, Any]) -> None:
        self.lines.append((level, event, values))

    def debug(self, event: str, **values: Any) -> None:
        self._add("debug", event, values)

    def info(self, event: str, **values: Any) -> None:
        self._add("info", event, values)

    def warning(self, event: str, **values: Any) -> None:
        self._add("warning", event, values)

    def error(self, event: str, **values: Any) -> None:
        self._add("error", event, values)

    def fatal(self, event: str, **values: Any) -> None:
        self._add("fatal", event, values)

    def events(self, *levels: str) -> list[str]:
        return [event for level, event, _ in self.lines if level in levels]
