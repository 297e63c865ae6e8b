"""The checks of a stream's mirror and sources against the account's other streams: cycles, sizes, mirror_direct.

Streams are wire-form configurations by name. An upstream need not exist, and external links are not followed. Codes and
texts were compared with nats-server 2.15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jetcluster.errors import by_code, invalid_config
from jetcluster.model.subjects import Patterns

Config = Mapping[str, Any]
Find = Callable[[str], Config | None]
"""Returns the configuration of a stream of the account, or None."""

_PEDANTIC_CODE = 10157


def check_upstreams(config: Config, find: Find) -> None:
    """Checks a mirror or sources. Raises ApiError 10030, 10046 or 10052."""
    for link in _links(config):
        upstream = find(link["name"])
        if upstream is not None and _narrower(config, upstream):
            raise by_code(10030 if "mirror" in config else 10046)
    _check_cycle(config, find)
    _check_repeated(config, find)


def inherited(config: Config, find: Find, *, given: bool | None = None) -> dict[str, Any]:
    """Returns the configuration with mirror_direct equal to its upstream's allow_direct, if the upstream exists here.
    `given`: the value in a pedantic request. Raises ApiError 10157."""
    mirror = config.get("mirror")
    upstream = find(mirror.get("name", "")) if mirror is not None and not mirror.get("external") else None
    if upstream is None:
        return dict(config)
    wanted = bool(upstream.get("allow_direct"))
    if given is not None and given != wanted:
        raise by_code(_PEDANTIC_CODE, err="origin stream has direct get set, mirror has it disabled")
    return {**config, "mirror_direct": wanted}


def _narrower(config: Config, upstream: Config) -> bool:
    own, other = config["max_msg_size"], upstream["max_msg_size"]
    return bool(own > 0 and other > 0 and own < other)


def _check_cycle(config: Config, find: Find) -> None:
    """Refuses a cycle by which a message on the stream's own subjects could come back into it."""
    name = config["name"]
    own: Patterns | None = None
    seen: set[str] = set()
    open_ = list(_links(config))
    while open_:
        link = open_.pop()
        upstream = link["name"]
        if upstream == name:
            own = own or Patterns(config.get("subjects") or [">"])
            if any(own.overlap(wanted) for wanted in _filters(link)):
                raise invalid_config("detected cycle")
        elif upstream not in seen:
            seen.add(upstream)
            found = find(upstream)
            open_ += _links(found) if found is not None else ()


def _check_repeated(config: Config, find: Find) -> None:
    """Refuses sources of which a later one gets messages, by any path, from an earlier one.

    A stream and then its mirror as sources are no cycle, but nats-server 2.15.2 refuses them as one, with any filters,
    and accepts the opposite order. nats.go's tests require that. Each stream downstream is visited twice at most,
    however many paths lead there.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for place, link in enumerate(_links(config)):
        first.setdefault(link["name"], place)
        last[link["name"]] = place
    if len(first) < 2:
        return
    downstream = _downstream(first, find)
    led: dict[str, set[str]] = {}
    """Stream -> the first two sources that lead to it; two, since one of them may be the stream itself."""
    for name, place in first.items():
        open_ = [name]
        while open_:
            for other in downstream.get(open_.pop(), ()):
                leading = led.setdefault(other, set())
                if len(leading) < 2 and name not in leading:
                    leading.add(name)
                    open_.append(other)
                    if other != name and last.get(other, -1) > place:
                        raise invalid_config("detected cycle")


def _downstream(names: Iterable[str], find: Find) -> dict[str, set[str]]:
    """Returns stream -> the streams that read directly from it, for all streams upstream of the named ones."""
    takers: dict[str, set[str]] = {}
    seen = set(names)
    open_ = list(seen)
    while open_:
        name = open_.pop()
        found = find(name)
        for upstream in {link["name"] for link in _links(found)} if found is not None else ():
            takers.setdefault(upstream, set()).add(name)
            if upstream not in seen:
                seen.add(upstream)
                open_.append(upstream)
    return takers


def _links(config: Config) -> Iterator[Config]:
    for link in [config["mirror"]] if config.get("mirror") else config.get("sources") or ():
        if not link.get("external"):
            yield link


def _filters(link: Config) -> list[str]:
    transforms = link.get("subject_transforms") or ()
    return [t.get("src") or ">" for t in transforms] or [link.get("filter_subject") or ">"]
