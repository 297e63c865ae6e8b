"""Options of the source: names, defaults, checks. docs/spark-source.md explains each.

An unknown option is an error that names the nearest known one: Spark passes on any name, so a misspelt
`failOnDataLoss` would otherwise be noticed only when the data is gone.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from jetcluster.archive.storage import is_local
from jetcluster.arrow.options import (
    EARLIEST,
    LATEST,
    Place,
    SourceOptions,
    check_servers,
    checked_streams,
    checked_subjects,
    named_place,
    preference_of,
)
from jetcluster.arrow.options import OptionError as OptionError
from jetcluster.arrow.schema import check_columns, known_columns
from jetcluster.client.credentials import Credentials
from jetcluster.client.servers import ServerOptions
from jetcluster.model.times import MILLISECOND, SECOND, parse_rfc3339

T = TypeVar("T")
D = TypeVar("D")


SERVER_OPTIONS: Final = {
    name.lower(): name
    for name in (
        "servers", "user", "passwordEnv", "passwordFile", "tokenEnv", "tokenFile", "nkeyFile", "credsFile", "tls",
        "tlsFirst", "tlsCa", "tlsCert", "tlsKey", "domain", "inboxPrefix", "connectTimeout",
        "reachTimeout",
    )
}  # fmt: skip
"""Lower case -> as written, for the options that sink and source share."""

SOURCE_OPTIONS: Final = SERVER_OPTIONS | {
    name.lower(): name
    for name in (
        "stream", "subscribe", "subjects", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
        "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss",
        "columns", "kafkaColumns", "includeHeaders", "readPreference", "replicaWait", "requestTimeout", "retryTimeout",
        "fetchBatch", "fetchMaxBytes", "prefetch", "arrowBatchRows", "mode", "asOfSeq", "asOfTime", "pushdown",
        "subscribePattern", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "minOffsetsPerTrigger",
        "maxTriggerDelay", "minLastSeq", "maxStaleness", "consistent", "cutTimeout", "archive", "preferArchive",
        "metricsUrl", "bucket", "keys",
    )
}  # fmt: skip

_SECRETS: Final = {
    "password": "passwordEnv or passwordFile",
    "pass": "passwordEnv or passwordFile",
    "token": "tokenEnv or tokenFile",
    "nkey": "nkeyFile",
    "seed": "nkeyFile",
    "creds": "credsFile",
    "jwt": "credsFile",
}


_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")

_OF_CATALOG: Final = ("provider", "owner", "location", "comment", "external", "is_managed_location")
"""Properties of a table that Spark's catalog adds to the options of CREATE TABLE, beside `option.NAME` for each."""

BUCKET_STREAM: Final = "KV_"
"""The beginning of the name of a bucket's stream."""
_OF_STREAMS: Final = (
    "stream", "subscribe", "subscribePattern", "subject", "subjects", "kafkaColumns", "includeHeaders"
)  # fmt: skip

NO_OPTIONS: Final = (
    "there are no options: Spark's catalog keeps those of CREATE TABLE to itself. Name them in each statement, as in "
    "SELECT * FROM t WITH (servers='nats://host:4222', stream='ORDERS'), or use CREATE TEMPORARY VIEW t (columns) "
    "USING jetstream OPTIONS (...)"
)


class OptionReader:
    """Typed access to Spark's options, which are strings under names of any case."""

    def __init__(self, given: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Raises OptionError for a name that is not in `known` (lower case -> as written)."""
        self._given = {name.lower(): value for name, value in _own(given)}
        self._known = known
        for name in self._given:
            if name not in known:
                raise OptionError(_unknown(name, known))

    @property
    def given(self) -> bool:
        """False when there are no options at all."""
        return bool(self._given)

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), default).strip()

    def has(self, name: str) -> bool:
        return bool(self.text(name))

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in self.text(name).split(",") if word.strip())

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name).lower()
        if value in ("true", "false", ""):
            return value == "true" if value else default
        raise OptionError(f"{name} is true or false, not {value!r}")

    def number(self, name: str, default: int, least: int = 1) -> int:
        return self._parsed(name, default, lambda text: _at_least(int(text), least), f"a whole number from {least}")

    def size(self, name: str, default: int) -> int:
        return self._parsed(name, default, lambda text: _at_least(_size(text), 1), "bytes, like 65536 or 4m")

    def seconds(self, name: str, default: float) -> float:
        return self._parsed(name, default, _seconds, "a duration, like 5s or 500ms")

    def nanoseconds(self, name: str) -> int | None:
        seconds = self.seconds(name, -1.0)
        return None if seconds < 0 else int(seconds * SECOND)

    def time(self, name: str) -> int | None:
        """Unix nanoseconds."""
        return self._parsed(name, None, _time, "a time like 2026-11-22T10:00:00Z, or milliseconds since 1970")

    def times(self, name: str) -> dict[str, int]:
        """Unix nanoseconds per stream; {} when none are given."""
        return self._parsed(name, {}, _times, 'JSON with milliseconds since 1970, like {"ORDERS": 1795305600000}')

    def place(self, name: str, default: Place) -> Place:
        return self._parsed(
            name, default, _place, 'earliest, latest, latest-100, a sequence, or JSON like {"ORDERS": 30001}'
        )

    def sequences(self, name: str) -> int | dict[str, int]:
        """One sequence for all streams (0: none is given), or one per stream."""
        return self._parsed(name, 0, _sequences, 'a sequence, or JSON like {"ORDERS": 30001}')

    def one_of(self, name: str, first: str, *others: str) -> str:
        value = self.text(name, first).lower()
        if value not in (first, *others):
            raise OptionError(f"{name} is one of {', '.join((first, *others))}, not {value!r}")
        return value

    def _parsed(self, name: str, default: D, parse: Callable[[str], T], what: str) -> T | D:
        text = self.text(name)
        if not text:
            return default
        try:
            return parse(text)
        except (ValueError, KeyError) as error:
            raise OptionError(f"{name} is {what}, not {text!r}") from error


def server_options(reader: OptionReader) -> ServerOptions:
    """Raises OptionError."""
    servers = reader.words("servers")
    if not servers:
        raise OptionError("servers is missing: nats://host:4222, more of them by commas")
    check_servers(servers)
    files = {f.name: reader.text(re.sub("_(.)", lambda m: m[1].upper(), f.name)) for f in fields(Credentials)}
    del files["tls"], files["tls_first"]
    credentials = Credentials(**files, tls=reader.flag("tls", False), tls_first=reader.flag("tlsFirst", False))
    if credentials.user and not (credentials.password_env or credentials.password_file):
        raise OptionError("user needs passwordEnv or passwordFile")
    return ServerOptions(
        servers, credentials, reader.text("domain"), reader.text("inboxPrefix", "_INBOX"),
        reader.seconds("connectTimeout", 3.0), reader.seconds("reachTimeout", ServerOptions.reach_timeout),
    )  # fmt: skip


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """Raises OptionError, SchemaError."""
    reader = OptionReader(given, SOURCE_OPTIONS)
    bucket = bucket_of(reader)
    streams = (f"{BUCKET_STREAM}{bucket}",) if bucket else _streams(reader)
    kafka = reader.flag("kafkaColumns", False)
    columns = reader.words("columns")
    known = known_columns(kafka, bucket=bool(bucket))
    options = SourceOptions(
        server=server_options(reader),
        streams=streams,
        subjects=_key_filters(reader) if bucket else checked_subjects(reader.words("subjects") or (">",)),
        starting=reader.place("startingOffsets", EARLIEST),
        ending=reader.place("endingOffsets", LATEST),
        starting_time=reader.time("startingTimestamp"),
        ending_time=reader.time("endingTimestamp"),
        pattern=_pattern(reader),
        starting_times=reader.times("startingOffsetsByTimestamp"),
        ending_times=reader.times("endingOffsetsByTimestamp"),
        max_rows=reader.number("maxOffsetsPerTrigger", 0),
        min_rows=reader.number("minOffsetsPerTrigger", 0),
        max_delay=reader.seconds("maxTriggerDelay", SourceOptions.max_delay),
        max_bytes=reader.size("maxBytesPerTrigger", 0),
        min_partitions=reader.number("minPartitions", 0),
        max_records=reader.number("maxRecordsPerPartition", 100_000),
        fail_on_data_loss=reader.flag("failOnDataLoss", not bucket),
        columns=tuple(check_columns(columns, known)) if columns else (),
        kafka=kafka,
        bucket=bucket,
        headers=reader.flag("includeHeaders", True),
        preference=preference_of(reader.text("readPreference", "any")),
        replica_wait=reader.seconds("replicaWait", 5.0),
        request_timeout=reader.seconds("requestTimeout", 5.0),
        retry_timeout=reader.seconds("retryTimeout", SourceOptions.retry_timeout),
        fetch_batch=reader.number("fetchBatch", SourceOptions.fetch_batch),
        fetch_bytes=reader.size("fetchMaxBytes", SourceOptions.fetch_bytes),
        prefetch=reader.flag("prefetch", True),
        arrow_rows=reader.number("arrowBatchRows", SourceOptions.arrow_rows),
        mode=reader.one_of("mode", "scan", "last"),
        as_of_seq=reader.number("asOfSeq", 0),
        as_of_time=reader.time("asOfTime"),
        min_last=_min_last(reader, streams),
        max_staleness=reader.nanoseconds("maxStaleness"),
        consistent=reader.flag("consistent", False),
        cut_timeout=reader.seconds("cutTimeout", SourceOptions.cut_timeout),
        pushdown=_pushdown(reader),
        archives=_archives(reader, streams),
        prefer_archive=reader.flag("preferArchive", False),
        metrics_url=_metrics_url(reader),
    )
    _check_together(options, reader)
    return options


def bucket_of(reader: OptionReader) -> str:
    """Returns the key-value bucket that the options name, "" for none. Raises OptionError."""
    bucket = reader.text("bucket")
    if bucket and re.fullmatch(r"[A-Za-z0-9_-]+", bucket) is None:
        raise OptionError(f"{bucket!r} is no bucket's name")
    for name in _OF_STREAMS if bucket else ("keys",):
        if reader.has(name):
            raise OptionError(f"{name} is about a {'stream' if bucket else 'bucket'}: bucket={bucket or 'NAME'} "
                              f"goes {'without' if bucket else 'with'} it")  # fmt: skip
    return bucket


def _key_filters(reader: OptionReader) -> tuple[str, ...]:
    """Returns filters for the keys. A bucket that mirrors another one has the subjects of that one."""
    keys = reader.words("keys") or (">",)
    return (">",) if ">" in keys else checked_subjects([f"$KV.*.{key}" for key in keys])


def _check_together(options: SourceOptions, reader: OptionReader) -> None:
    if options.max_rows and options.max_bytes:
        raise OptionError("maxOffsetsPerTrigger and maxBytesPerTrigger: give one of them")
    if options.max_rows and options.min_rows > options.max_rows:
        raise OptionError("minOffsetsPerTrigger is more than maxOffsetsPerTrigger")
    if options.as_of_seq and options.as_of_time is not None:
        raise OptionError("asOfSeq and asOfTime: give one of them")
    as_of = options.as_of_seq or options.as_of_time is not None
    for name in filter(reader.has, _ENDS):
        if as_of:
            raise OptionError(f"asOfSeq and asOfTime are an end already: {name} goes without them")
    if options.consistent:
        for name in (*_ENDS, "asOfSeq", "asOfTime"):
            if reader.has(name):
                raise OptionError(f"consistent=true finds the end of the streams: {name} goes without it")
    if options.mode == "last":
        for name in (*_STARTS, *_ENDS):
            if reader.has(name):
                raise OptionError(f"mode=last reads the last message of each subject: {name} means nothing there")
        if options.archives:
            raise OptionError("mode=last reads what the stream has: archive goes without it")
    if options.prefer_archive and not options.archives:
        raise OptionError("preferArchive is about an archive, and archive names none")
    if options.columns and not options.headers and "headers" in options.columns:
        raise OptionError("columns names headers, and includeHeaders=false")
    several = len(options.streams) != 1
    if options.preference.kind == "mirror" and several:
        raise OptionError("readPreference=mirror:... is of one stream")
    if options.as_of_seq and several:
        raise OptionError("asOfSeq is of one stream; use asOfTime for several")
    for name, place in (
        ("startingOffsets", options.starting), ("endingOffsets", options.ending), ("minLastSeq", options.min_last),
        ("startingOffsetsByTimestamp", options.starting_times), ("endingOffsetsByTimestamp", options.ending_times),
    ):  # fmt: skip
        if isinstance(place, int):
            if several and place >= 0:
                raise OptionError(f'{name} as a number is of one stream; write JSON like {{"ORDERS": {place}}}')
        elif (unknown := place.keys() - set(options.streams)) and not options.pattern:
            raise OptionError(f"{name} names {', '.join(sorted(unknown))}, which is not read")


def check_streaming(options: SourceOptions) -> None:
    """Raises OptionError for options of batch queries, as a streaming query has no end."""
    if options.ending != LATEST or options.ending_time is not None or options.ending_times:
        raise OptionError("endingOffsets and endingTimestamp are for batch queries")
    if options.mode == "last" or options.as_of_seq or options.as_of_time is not None:
        raise OptionError("mode=last, asOfSeq and asOfTime are for batch queries")
    if options.consistent and (options.max_rows or options.max_bytes):
        raise OptionError(
            "consistent=true ends each micro-batch where all streams stood together: maxOffsetsPerTrigger and "
            "maxBytesPerTrigger, which end it anywhere, go without it"
        )


def _streams(reader: OptionReader) -> tuple[str, ...]:
    if not reader.given:
        raise OptionError(NO_OPTIONS)
    names = reader.words("stream") + reader.words("subscribe")
    ways = sum(map(reader.has, ("stream", "subscribe", "subscribePattern")))
    if ways != 1 or (reader.has("stream") and len(names) != 1):
        raise OptionError("give stream=NAME, subscribe=NAME,NAME for several, or subscribePattern=REGEX")
    return checked_streams(names)


def _pattern(reader: OptionReader) -> str:
    text = reader.text("subscribePattern")
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"subscribePattern: {text!r} is no regular expression: {error}") from error
    return text


def _min_last(reader: OptionReader, streams: tuple[str, ...]) -> dict[str, int]:
    found = reader.sequences("minLastSeq")
    if not isinstance(found, int):
        return found
    if found and len(streams) != 1:
        raise OptionError(f'minLastSeq as a number is of one stream; write JSON like {{"ORDERS": {found}}}')
    return {streams[0]: found} if found else {}


def _archives(reader: OptionReader, streams: tuple[str, ...]) -> dict[str, str]:
    text = reader.text("archive")
    if not text:
        return {}
    if not text.startswith("{"):
        if len(streams) != 1:
            raise OptionError(f'archive as a URL is of one stream; write JSON like {{"ORDERS": "{text}"}}')
        found = {streams[0]: text}
    else:
        try:
            found = {str(stream): str(url) for stream, url in json.loads(text).items()}
        except ValueError as error:
            raise OptionError(f'archive is a URL or JSON like {{"ORDERS": "s3://bucket/x"}}, not {text!r}') from error
    if unknown := found.keys() - set(streams) if streams else ():
        raise OptionError(f"archive names {', '.join(sorted(unknown))}, which is not read")
    for url in found.values():
        if urlsplit(url).query:
            raise OptionError(f"archive: options end up in plans and logs, so no secret is one: {url.split('?')[0]}")
        if is_local(url) and not urlsplit(url).path.startswith("/"):
            raise OptionError(f"archive: {url!r} is no absolute path, and tasks run in folders of their own")
    return found


def _pushdown(reader: OptionReader) -> bool:
    """Raises OptionError for `true`: Spark 4.3 keeps one plan for all places of a DataFrame, made for the filters that
    came last, and a query without a filter reads no more than that."""
    if reader.text("pushdown").lower() == "true":
        raise OptionError(
            "pushdown=true is not to be had: every query of a DataFrame, and every place of it in a query, would read "
            "what the last filters have left. pushdown=once says that this one is used in one place of one query. "
            "subjects, startingOffsets, startingTimestamp and the like narrow any number of queries"
        )
    return reader.one_of("pushdown", "false", "once") == "once"


def _metrics_url(reader: OptionReader) -> str:
    url = reader.text("metricsUrl")
    parts = urlsplit(url)
    if url and (parts.scheme != "http" or not parts.hostname or "@" in url or parts.query):
        raise OptionError("metricsUrl is the url of a MetricsListener with a port, like http://driver:9464/tasks")
    return url


def _own(given: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the options without what Spark's catalog adds."""
    if "provider" not in given:
        return list(given.items())
    return [(name, value) for name, value in given.items()
            if name not in _OF_CATALOG and not name.startswith("option.")]  # fmt: skip


def _unknown(name: str, known: Mapping[str, str]) -> str:
    if name in _SECRETS:
        return f"{name}: options end up in plans and logs, so no secret is one. Use {_SECRETS[name]}"
    near = difflib.get_close_matches(name, known, 1, 0.6)
    hint = f"did you mean {known[near[0]]}?" if near else f"there are: {', '.join(known.values())}"
    return f"unknown option {name!r}: {hint}"


def _at_least(value: int, least: int) -> int:
    if value < least:
        raise ValueError(value)
    return value


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", text.lower())
    if match is None:
        raise ValueError(text)
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def _seconds(text: str) -> float:
    """Reads 5s, 500ms, 1h, and what Spark's own options take, such as `30 seconds`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|seconds?|minutes?|hours?)?", text.lower())
    if match is None:
        raise ValueError(text)
    unit = match[2] or "s"
    return float(match[1]) * (0.001 if unit == "ms" else {"s": 1.0, "m": 60.0, "h": 3600.0}[unit[0]])


def _time(text: str) -> int:
    return int(text) * MILLISECOND if text.isdigit() else parse_rfc3339(text)


def _sequences(text: str) -> int | dict[str, int]:
    found = json.loads(text)
    for value in found.values() if isinstance(found, dict) else (found,):
        if type(value) is not int:
            raise ValueError(text)
        _at_least(value, 1)
    sequences: int | dict[str, int] = found
    return sequences


def _times(text: str) -> dict[str, int]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(text)
    return {stream: _of_partition(value, 0) * MILLISECOND for stream, value in found.items()}


def _of_partition(value: Any, least: int) -> int:
    """Returns a number, also one that is written as for Kafka, where a topic has partitions: {"0": number}."""
    if isinstance(value, dict) and value.keys() == {"0"}:
        value = value["0"]
    if type(value) is not int:
        raise ValueError(value)
    return _at_least(value, least)


def _place(text: str) -> Place:
    named = named_place(text)
    if named is not None:
        return named
    found = json.loads(text)
    if type(found) is int:
        return _at_least(found, 0)
    if not isinstance(found, dict):
        raise ValueError(text)
    for stream, value in found.items():
        named = named_place(value) if isinstance(value, str) else None
        if named is not None:
            found[stream] = named
        elif isinstance(value, dict) and "0" not in value:
            _at_least(value["seq"], 0)
        else:
            found[stream] = _of_partition(value, EARLIEST)
    return found
