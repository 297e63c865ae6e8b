"""The arguments of `read_stream` and `read_bucket` as `SourceOptions`. Wrong ones are an `OptionError`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from jetcluster.arrow.options import (
    EARLIEST,
    LATEST,
    OptionError,
    SourceOptions,
    check_servers,
    checked_streams,
    checked_subjects,
    named_place,
    preference_of,
)
from jetcluster.arrow.schema import check_columns, default_columns
from jetcluster.client.servers import ServerOptions
from jetcluster.model.times import SECOND

Moment = int | str | datetime
"""A sequence, a word (`earliest`, `latest`, `latest-100`) or a time with its zone."""
Place = Moment | Mapping[str, Moment] | None
"""The same for all streams, or one by stream."""

NAME: Final = "jetcluster-arrow"
"""The name of the connections, as servers list them."""
TUNABLE: Final = frozenset(
    ("replica_wait", "request_timeout", "retry_timeout", "fetch_batch", "fetch_bytes", "cut_timeout", "prefetch")
)
"""Fields of `SourceOptions` that are arguments by the same name."""


def server_options(servers: str | Sequence[str] | ServerOptions, given: Mapping[str, Any]) -> ServerOptions:
    """`given`: fields of ServerOptions beside the servers. Raises OptionError."""
    if isinstance(servers, ServerOptions):
        return replace(servers, **given)
    words = servers.split(",") if isinstance(servers, str) else list(servers)
    urls = tuple(word.strip() for word in words if word.strip())
    if not urls:
        raise OptionError("servers is missing: nats://host:4222, more of them by commas or as a list")
    check_servers(urls)
    return ServerOptions(urls, **{"name": NAME, **given})


def source_options(
    servers: str | Sequence[str] | ServerOptions,
    streams: Sequence[str],
    start: Place,
    end: Place,
    filters: str | Sequence[str],
    given: Mapping[str, Any],
) -> SourceOptions:
    """`given`: the other arguments by name, those for the servers included. Raises OptionError, SchemaError."""
    names = checked_streams(streams)
    if not names or not all(names):
        raise OptionError("stream is the name of a stream, or a list of names")
    words = [filters] if isinstance(filters, str) else list(filters)
    own = dict(given)
    known = {field.name for field in fields(ServerOptions)} - {"servers"}
    server = server_options(servers, {name: own.pop(name) for name in known & own.keys()})
    columns = own.pop("columns", None)
    options = SourceOptions(
        server=server,
        streams=names,
        subjects=checked_subjects(words or [">"]),
        columns=tuple(check_columns([columns] if isinstance(columns, str) else columns) if columns is not None else
                      _default_columns(len(names))),
        fail_on_data_loss=bool(own.pop("fail_on_data_loss", True)),
        preference=preference_of(own.pop("prefer", "any")),
        consistent=bool(own.pop("consistent", False)),
        min_last=_min_last(own.pop("min_last", 0), names),
        max_staleness=_nanoseconds(own.pop("max_staleness", None)),
        time_unit="ns",
        min_partitions=1,
        **{name: own.pop(name) for name in TUNABLE & own.keys()},
        **_places(start, end, names),
    )  # fmt: skip
    if own:
        raise OptionError(f"there is no argument {min(own)!r}")
    if options.consistent and end is not None:
        raise OptionError("consistent=True finds the end of the streams: end goes without it")
    if options.preference.kind == "mirror" and len(names) > 1:
        raise OptionError("prefer='mirror:...' is of one stream")
    return options


def _default_columns(streams: int) -> list[str]:
    without = {"time_ns"} if streams > 1 else {"time_ns", "stream"}
    return [name for name in default_columns() if name not in without]


def _places(start: Place, end: Place, streams: Sequence[str]) -> dict[str, Any]:
    """Returns the fields `starting`, `starting_times`, `ending` and `ending_times`."""
    found: dict[str, Any] = {}
    for name, place, default in (("starting", start, EARLIEST), ("ending", end, LATEST)):
        by_stream = dict(place) if isinstance(place, Mapping) else dict.fromkeys(streams, place)
        if unknown := by_stream.keys() - set(streams):
            raise OptionError(f"{name.removesuffix('ing')} names {', '.join(sorted(unknown))}, which is not read")
        if len(streams) > 1 and type(place) is int:
            raise OptionError(f"a sequence is of one stream: write {{{streams[0]!r}: {place}}}")
        moments = {stream: moment for stream, moment in by_stream.items() if moment is not None}
        times = {stream: unix_nanoseconds(moment) for stream, moment in moments.items() if isinstance(moment, datetime)}
        found[f"{name}_times"] = times
        found[name] = {
            stream: _sequence(moment) for stream, moment in moments.items() if not isinstance(moment, datetime)
        } or default
    return found


def _sequence(moment: int | str) -> int:
    if isinstance(moment, str):
        place = named_place(moment)
        if place is None:
            raise OptionError(f"a place is earliest, latest, latest-100, a sequence or a time, not {moment!r}")
        return place
    if type(moment) is not int or moment < 0:
        raise OptionError(f"a place is earliest, latest, latest-100, a sequence or a time, not {moment!r}")
    return moment


def unix_nanoseconds(moment: datetime) -> int:
    """Raises OptionError for a time without a zone."""
    if moment.tzinfo is None:
        raise OptionError(f"{moment} has no zone: datetime(..., tzinfo=timezone.utc)")
    return _of(moment - datetime(1970, 1, 1, tzinfo=UTC))


def _min_last(given: int | Mapping[str, int], streams: Sequence[str]) -> dict[str, int]:
    if isinstance(given, Mapping):
        found = dict(given)
    elif given and len(streams) > 1:
        raise OptionError(f"min_last as a number is of one stream: write {{{streams[0]!r}: {given}}}")
    else:
        found = {streams[0]: given} if given else {}
    if unknown := found.keys() - set(streams):
        raise OptionError(f"min_last names {', '.join(sorted(unknown))}, which is not read")
    return found


def _nanoseconds(given: float | timedelta | None) -> int | None:
    """Seconds as a number are as `max_staleness` of Spark's source."""
    if given is None:
        return None
    found = _of(given) if isinstance(given, timedelta) else int(given * SECOND)
    if found < 0:
        raise OptionError(f"max_staleness is not negative: {given}")
    return found


def _of(span: timedelta) -> int:
    return span // timedelta(microseconds=1) * 1000
