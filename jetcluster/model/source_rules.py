"""The checks of a stream's mirror, sources, transforms and republish, on the wire form.

The rules that depend on the account's other streams are in `link_rules`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from jetcluster.errors import by_code, invalid_config
from jetcluster.model import subjects
from jetcluster.model.subjects import MAX_SHAPES, Patterns, first_overlap, one_within_another, too_various
from jetcluster.model.transforms import SubjectTransform, TransformError, bounded, check_length, check_mapping

Config = Mapping[str, Any]

_MIRROR_EXCLUDES = (
    ("subjects", 10034),
    ("sources", 10031),
    ("first_seq", 10143),
    ("allow_msg_counter", 10173),
    ("allow_atomic", 10198),
    ("allow_batched", 10209),
    ("allow_msg_schedules", 10186),
)

_IDENTITY: Final = ("name", "external", "filter_subject", "subject_transforms")
"""Two sources with equal values of these are duplicates."""
MAX_TRANSFORM_BYTES: Final = 60_000
"""Bytes of a source's transforms: they are in its key, and in the header block of each of its messages."""


def check_links(config: Config) -> None:
    """Raises ApiError."""
    if "mirror" in config:
        _check_mirror(config, config["mirror"])
    _check_sources(config)
    transform = config.get("subject_transform")
    if transform is not None:
        _check_transform(transform, 10155, 10156)
    republish = config.get("republish")
    if republish is not None:
        _check_republish(config, republish)


def _check_mirror(config: Config, mirror: Config) -> None:
    for key, err_code in _MIRROR_EXCLUDES:
        if config.get(key):
            raise by_code(err_code)
    if config.get("subject_delete_marker_ttl"):
        raise invalid_config("subject delete markers forbidden on mirrors")
    if not _is_stream_name(mirror.get("name", "")):
        raise by_code(10142)
    _check_consumer(mirror, 10213)
    transforms = mirror.get("subject_transforms", [])
    if transforms and mirror.get("filter_subject"):
        raise by_code(10150)
    _check_filter(mirror, "mirror")
    if first_overlap(_check_transforms(mirror, 10151, 10154)) is not None:
        raise by_code(10152)
    _check_external(config, mirror, Patterns())  # a mirror has no subjects


def _check_sources(config: Config) -> None:
    seen: set[str] = set()
    sources = config.get("sources", [])
    own = Patterns(config.get("subjects", ()) if any(source.get("external") for source in sources) else ())
    consumers: set[tuple[str, ...]] = set()
    for source in sources:
        if config.get("allow_msg_schedules"):
            raise by_code(10187)
        if not _is_stream_name(source.get("name", "")):
            raise by_code(10141)
        identity = json.dumps([source.get(key) for key in _IDENTITY], sort_keys=True)
        if identity in seen:
            raise by_code(10140)
        seen.add(identity)
        if source.get("subject_transforms") and source.get("filter_subject"):
            raise by_code(10144)
        transforms = source.get("subject_transforms", ())
        if sum(len((one["src"] + one["dest"]).encode()) + 2 for one in transforms) > MAX_TRANSFORM_BYTES:
            raise invalid_config(
                f"transforms of a source are too long, maximum allowed are {MAX_TRANSFORM_BYTES} bytes"
            )
        _check_filter(source, "source:")
        # As in nats-server, transforms of a source may overlap partly, those of a mirror may not.
        if one_within_another(_check_transforms(source, 10145, 10146)):
            raise by_code(10147)
        _check_consumer(source, 10215)
        if "consumer" in source:
            prefix = source.get("external", {}).get("api", "")
            consumer = (source["name"], prefix, source["consumer"]["name"])
            if consumer in consumers:
                raise by_code(10216)
            consumers.add(consumer)
        _check_external(config, source, own)


def _check_consumer(link: Config, err_code: int) -> None:
    """Checks a user's own consumer (ADR-60), whose configuration has the start and the filters of the link."""
    consumer = link.get("consumer")
    if consumer is None:
        return
    subject = consumer.get("deliver_subject", "")
    literal = subjects.is_valid(subject) and not any(part in ("*", ">") for part in subject.split("."))
    own = any(link.get(key) for key in ("opt_start_seq", "opt_start_time", "filter_subject"))
    if own or not literal or not _is_stream_name(consumer.get("name", "")):
        raise by_code(err_code)


def _check_filter(link: Config, of: str) -> None:
    wanted = link.get("filter_subject")
    if wanted and not subjects.is_valid(wanted):
        raise by_code(10049, err=f"subject filter '{wanted}' for the {of} invalid subject")


def _check_transforms(link: Config, bad_source: int, bad_destination: int) -> list[str]:
    """Returns the sources of the transforms. Raises ApiError for an invalid transform."""
    transforms = link.get("subject_transforms", [])
    for transform in transforms:
        _check_transform(transform, bad_source, bad_destination)
    sources = [transform["src"] or ">" for transform in transforms]
    if too_various(sources):
        raise invalid_config(f"wildcards of transform sources at too many places, maximum allowed is {MAX_SHAPES}")
    return sources


def _check_transform(transform: Config, bad_source: int, bad_destination: int) -> None:
    if transform["src"] and not subjects.is_valid(transform["src"]):
        raise by_code(bad_source, err="invalid subject " + transform["src"])
    try:
        check_mapping(transform["src"].encode(), transform["dest"].encode())
    except TransformError as error:
        raise by_code(bad_destination, err=str(error)) from None


def _check_external(config: Config, link: Config, own: Patterns) -> None:
    """Checks the prefixes of an external link; `own` are the stream's subjects."""
    external = link.get("external")
    if not external:
        return
    prefix, deliver = external.get("api", ""), external.get("deliver", "")
    if not subjects.is_valid(prefix) or not subjects.is_literal(prefix):
        raise invalid_config(f"stream external api prefix {prefix} must be a valid subject without wildcards")
    if subjects.overlap(prefix + ".>", "$JS.API.>"):
        raise by_code(10021, prefix=prefix, subject="$JS.API.>")
    if deliver and not (subjects.is_valid(deliver) and subjects.is_literal(deliver)):
        raise by_code(10024, prefix=deliver)
    if deliver and own.overlap(deliver + ".>"):
        subject = next(s for s in config["subjects"] if subjects.overlap(deliver + ".>", s))
        raise by_code(10022, prefix=deliver, subject=subject)


def _check_republish(config: Config, republish: Config) -> None:
    source, destination = republish["src"], republish["dest"]
    if destination and any(subjects.overlap(_reach(destination), own) for own in config.get("subjects", [])):
        raise invalid_config("stream configuration for republish destination forms a cycle")
    try:
        check_length(destination.encode())
        bounded(SubjectTransform(source.encode(), destination.encode()))
    except TransformError:
        raise invalid_config(
            f"stream configuration for republish with transform from '{source}' to '{destination}' not valid"
        ) from None


def _reach(destination: str) -> str:
    """Returns a pattern that matches every subject of the destination: `$1` may be any token, a splitting function may
    make any number of them. (nats-server compares the text itself, and so allows `$1.a` to loop.)"""
    tokens: list[str] = []
    for token in destination.split("."):
        if token.startswith("{{") and ("split" in token.lower() or "slice" in token.lower()):
            return ".".join([*tokens, ">"])
        tokens.append("*" if token.startswith("{{") or (token[:1] == "$" and token[1:].isdigit()) else token)
    return ".".join(tokens)


def _is_stream_name(name: str) -> bool:
    return bool(name) and not any(c in name for c in " \t\r\n\f.*>/\\")
