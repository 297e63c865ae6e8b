"""What a stream's mirror and sources have to do with the account's other streams: cycles, sizes, mirror_direct.

Streams are wire-form configurations by name. An upstream need not exist, and what lies behind an external link is not
looked at. Codes and texts: shared/reference/streams.md 1.13, 5.5, 7.6, checked against nats-server 2.15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jetcluster.errors import by_code, invalid_config
from jetcluster.model import subjects

Config = Mapping[str, Any]
Find = Callable[[str], Config | None]
"""The configuration of a stream of the account; None when there is none."""

_PEDANTIC = 10157


def check_upstreams(config: Config, find: Find) -> None:
    """Raises ApiError 10030, 10046 or 10052."""
    for link in _links(config):
        upstream = find(link["name"])
        if upstream is not None and _narrower(config, upstream):
            raise by_code(10030 if "mirror" in config else 10046)
    _check_cycle(config, find)
    _check_repeated(config, find)


def inherited(config: Config, find: Find, *, given: bool | None = None) -> dict[str, Any]:
    """The configuration with mirror_direct as its upstream's allow_direct has it, where that can be seen. `given`: what
    a pedantic request says itself. Raises ApiError 10157."""
    mirror = config.get("mirror")
    upstream = find(mirror.get("name", "")) if mirror is not None and not mirror.get("external") else None
    if upstream is None:
        return dict(config)
    wanted = bool(upstream.get("allow_direct"))
    if given is not None and given != wanted:
        raise by_code(_PEDANTIC, err="origin stream has direct get set, mirror has it disabled")
    return {**config, "mirror_direct": wanted}


def _narrower(config: Config, upstream: Config) -> bool:
    own, other = config["max_msg_size"], upstream["max_msg_size"]
    return bool(own > 0 and other > 0 and own < other)


def _check_cycle(config: Config, find: Find) -> None:
    """No message that the stream takes in by its own subjects may find its way back into it."""
    name, own = config["name"], config.get("subjects") or [">"]
    seen: set[str] = set()
    open_ = list(_links(config))
    while open_:
        link = open_.pop()
        upstream = link["name"]
        if upstream == name:
            if any(subjects.overlap(wanted, subject) for wanted in _filters(link) for subject in own):
                raise invalid_config("detected cycle")
        elif upstream not in seen:
            seen.add(upstream)
            found = find(upstream)
            open_ += _links(found) if found is not None else ()


def _check_repeated(config: Config, find: Find) -> None:
    """A stream, then its mirror as sources: no cycle, but nats-server 2.15.2 calls it one, whatever the filters are,
    and takes the same two the other way round. nats.go's tests ask for that."""
    listed: set[str] = set()
    for link in _links(config):
        seen = {link["name"]}
        open_ = [link["name"]]
        while open_:
            found = find(open_.pop())
            for upstream in {other["name"] for other in _links(found or {})} - seen:
                if upstream in listed:
                    raise invalid_config("detected cycle")
                seen.add(upstream)
                open_.append(upstream)
        listed.add(link["name"])


def _links(config: Config) -> Iterator[Config]:
    for link in [config["mirror"]] if config.get("mirror") else config.get("sources") or ():
        if not link.get("external"):
            yield link


def _filters(link: Config) -> list[str]:
    transforms = link.get("subject_transforms") or ()
    return [t.get("src") or ">" for t in transforms] or [link.get("filter_subject") or ">"]
