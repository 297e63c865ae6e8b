"""`exports`, `imports` and `mappings` of an account.

Texts are nats-server's. That reads a block's keys in random order and may stop at the first mistake that it meets; here
the order is the file's, so of several mistakes the same one is reported each time.
"""

from __future__ import annotations

from typing import Any

from jetcluster.config.account_options import (
    CHUNKED,
    SERVICE,
    SINGLETON,
    STREAM,
    STREAMED,
    AccountOptions,
    ExportOptions,
    ImportOptions,
    LatencyOptions,
    MappingDestination,
    MappingOptions,
)
from jetcluster.config.options import Options
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import FieldError, Reader, as_bool, as_int, as_string, go_type, parse_duration
from jetcluster.model import subjects

_RESPONSES = {
    **dict.fromkeys(("single", "singleton"), SINGLETON),
    "stream": STREAMED,
    **dict.fromkeys(("chunk", "chunked"), CHUNKED),
}
_THRESHOLDS = frozenset({"threshold", "response_threshold", "response_max_time", "response_time"})
_OF_SERVICES = {
    **dict.fromkeys(("response", "response_type", *_THRESHOLDS), "response"),
    "latency": "latency",
    "allow_trace": "allow_trace",
}
"""Keys that a stream export must not have -> what the error calls them."""


def _items(node: ConfigNode, label: str) -> list[ConfigNode]:
    if not isinstance(node.value, list):
        raise FieldError(f"{label} should be an array, got {go_type(node)}")
    return node.value


def _pairs(node: ConfigNode, label: str) -> dict[str, ConfigNode]:
    """Keys in lower case."""
    if not isinstance(node.value, dict):
        raise FieldError(f"{label} Items should be a map with type entry, got {go_type(node)}", node)
    return {key.lower(): item for key, item in node.value.items()}


def _subject(node: ConfigNode, kind: str) -> str:
    if not isinstance(node.value, str):
        raise FieldError(f"Expected {kind} name to be string, got {go_type(node)}", node)
    return node.value


# --- exports ----------------------------------------------------------------------------------------------------------


def read_exports(reader: Reader, node: ConfigNode, account: AccountOptions) -> None:
    for item in _items(node, "Exports"):
        known = len(reader.errors)
        try:
            export = _export(reader, item)
        except FieldError as error:
            reader.error(error.node or item, str(error))
            continue
        if export is not None and len(reader.errors) == known:
            account.exports.append(export)


def _export(reader: Reader, node: ConfigNode) -> ExportOptions | None:
    """None for an entry that is neither a stream nor a service: it says nothing, and is no error upstream."""
    pairs = _pairs(node, "Export")
    kinds = [key for key in pairs if key in (STREAM, SERVICE)]
    if len(kinds) > 1:
        second = pairs[kinds[1]]
        raise FieldError(f'Detected {kinds[1]} "{_shown(second)}" but already saw a {kinds[0]}', second)
    kind = kinds[0] if kinds else ""
    export = ExportOptions(kind, "")
    seen: set[str] = set()
    for key, item in pairs.items():
        if kind == STREAM and key in _OF_SERVICES:
            reader.error(item, f"Detected {_OF_SERVICES[key]} directive on non-service")
            continue
        try:
            _export_key(reader, key, item, export, seen)
        except FieldError as error:
            reader.error(error.node or item, str(error))
    return export if kind else None


def _export_key(reader: Reader, key: str, item: ConfigNode, export: ExportOptions, seen: set[str]) -> None:
    if key in (STREAM, SERVICE):
        export.subject = _subject(item, key)
    elif key in ("response", "response_type"):
        if "response" in seen:
            raise FieldError("Duplicate response type definition")
        seen.add("response")
        export.response_type = _response_type(item)
    elif key in _THRESHOLDS:
        if "threshold" in seen:
            raise FieldError("Duplicate response threshold detected")
        seen.add("threshold")
        export.response_threshold = _threshold(item)
    elif key == "accounts":
        if not isinstance(item.value, list):
            raise FieldError(f"interface conversion: interface {{}} is {go_type(item)}, not []interface {{}}")
        export.accounts = [as_string(reader, key, name) for name in item.value] or None
    elif key == "latency":
        export.latency = _latency(item)
    elif key == "account_token_position":
        export.account_token_position = as_int(reader, key, item)
    elif key == "allow_trace":
        export.allow_trace = as_bool(reader, key, item)
        _no_traces(reader, export.allow_trace, "exports")
    elif not item.used_as_variable:
        raise FieldError(f'unknown field "{key}"')


def _no_traces(reader: Reader, wanted: bool, block: str) -> None:
    """A trace (`server.client.message_trace`) is not followed into another account, so there is nothing to allow."""
    name = f"accounts.{block}.allow_trace"
    if wanted and name not in reader.inert:
        reader.inert.append(name)


def _response_type(node: ConfigNode) -> str:
    if not isinstance(node.value, str):
        raise FieldError(f"Expected response type to be string, got {go_type(node)}")
    found = _RESPONSES.get(node.value.lower())
    if found is None:
        raise FieldError(f'Unknown response type: "{node.value}"')
    return found


def _threshold(node: ConfigNode) -> float:
    wanted = "Expected response threshold to be a parseable time duration"
    if not isinstance(node.value, str):
        raise FieldError(f"{wanted}, got {go_type(node)}")
    try:
        return parse_duration(node.value)
    except ValueError as error:
        raise FieldError(f'{wanted}, got "{node.value}"') from error


def _latency(node: ConfigNode) -> LatencyOptions:
    if isinstance(node.value, str):
        return LatencyOptions(node.value)
    if not isinstance(node.value, dict):
        raise FieldError(f"Expected latency entry to be a map/struct or string, got {go_type(node)}")
    found = LatencyOptions("")
    if "sampling" in node.value:
        found.sampling = _sampling(node.value["sampling"])
    if "subject" not in node.value:
        raise FieldError("Latency subject required, but missing")
    subject = node.value["subject"]
    if not isinstance(subject.value, str):
        raise FieldError("Expected latency subject to be a string, got string", subject)
    found.subject = subject.value
    return found


def _sampling(node: ConfigNode) -> int:
    value = node.value
    if isinstance(value, str):
        if value.strip().lower() == "headers":
            return 0
        text = value.removesuffix("%")
        try:
            value = int(text)
        except ValueError as error:
            why = f'strconv.Atoi: parsing "{text}": invalid syntax'
            raise FieldError(f"Failed to parse latency sample: {why}", node) from error
    elif isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(f"Expected latency sample to be a string or map/struct, got {go_type(node)}", node)
    if not 1 <= value <= 100:
        raise FieldError("bad sampling percentage, should be 1-100", node)
    return value


# --- imports ----------------------------------------------------------------------------------------------------------


def read_imports(reader: Reader, node: ConfigNode, account: AccountOptions) -> None:
    services: list[ImportOptions] = []
    for item in _items(node, "Imports"):
        known = len(reader.errors)
        try:
            wanted = _import(reader, item)
        except FieldError as error:
            reader.error(error.node or item, str(error))
            continue
        if wanted is None or len(reader.errors) > known:
            continue
        if wanted.kind == SERVICE:
            twin = next((s for s in services if s.here == wanted.here and s.account == wanted.account), None)
            if twin is not None:
                reader.error(
                    item,
                    f'Duplicate service import subject "{wanted.here}", previously used in import for account '
                    f'"{twin.account}", subject "{twin.subject}"',
                )
                continue
            services.append(wanted)
        account.imports.append(wanted)


def _import(reader: Reader, node: ConfigNode) -> ImportOptions | None:
    pairs = _pairs(node, "Import")
    kinds = [key for key in pairs if key in (STREAM, SERVICE)]
    if len(kinds) > 1:
        raise FieldError(f"Detected {kinds[1]} but already saw a {kinds[0]}", pairs[kinds[1]])
    kind = kinds[0] if kinds else ""
    wanted = ImportOptions(kind, "", "")
    for key, item in pairs.items():
        try:
            _import_key(reader, key, item, wanted)
        except FieldError as error:
            reader.error(error.node or item, str(error))
    if kind == STREAM and wanted.prefix:
        if "to" in pairs:
            raise FieldError("Stream import can not have a 'prefix' and a 'to' property", pairs["to"])
        wanted.local = wanted.prefix.removesuffix(".") + "." + wanted.subject
    return wanted if kind else None


def _import_key(reader: Reader, key: str, item: ConfigNode, wanted: ImportOptions) -> None:
    if key in (STREAM, SERVICE):
        wanted.account, wanted.subject = _of_account(reader, item, key)
    elif key == "prefix":
        wanted.prefix = as_string(reader, key, item)
    elif key == "to":
        wanted.local = as_string(reader, key, item)
    elif key == "share":
        wanted.share = as_bool(reader, key, item)
    elif key == "allow_trace":
        if wanted.kind == SERVICE:
            raise FieldError("Detected allow_trace directive on a non-stream")
        wanted.allow_trace = as_bool(reader, key, item)
        _no_traces(reader, wanted.allow_trace, "imports")
    elif not item.used_as_variable:
        raise FieldError(f'unknown field "{key}"')


def _of_account(reader: Reader, node: ConfigNode, kind: str) -> tuple[str, str]:
    if not isinstance(node.value, dict):
        raise FieldError(f"{kind.capitalize()} entry should be an account map, got {go_type(node)}")
    found = {"account": "", "subject": ""}
    for key, item in node.value.items():
        if key.lower() in found:
            try:
                found[key.lower()] = as_string(reader, key, item)
            except FieldError as error:
                reader.error(item, str(error))
        elif not item.used_as_variable:
            reader.error(item, f'unknown field "{key}"')
    if not (found["account"] and found["subject"]):
        raise FieldError("Expect an account name and a subject")
    return found["account"], found["subject"]


def check_imports(reader: Reader, pairs: dict[str, ConfigNode], options: Options) -> None:
    """Across accounts, once all of the file is read; with errors before, those are what the operator is told."""
    node = next((item for key, item in pairs.items() if key.lower() == "accounts"), None)
    shared = any(account.imports or account.exports for account in (options.accounts or {}).values())
    if node is not None and shared and not reader.errors:
        from jetcluster.config.import_rules import settle  # here and below: a start without them takes 5 ms less

        for _, problem in settle(options.accounts or {}).problems:
            reader.error(node, problem)


# --- mappings ---------------------------------------------------------------------------------------------------------


def read_mappings(reader: Reader, node: ConfigNode, target: Any) -> None:
    """Into `target.mappings`: an `AccountOptions`, or `Options` for `$G`."""
    if not isinstance(node.value, dict):
        raise FieldError(f"interface conversion: interface {{}} is {go_type(node)}, not map[string]interface {{}}")
    from jetcluster.config.import_rules import SubjectMapping
    from jetcluster.model.transforms import TransformError

    found: list[MappingOptions] = []
    for source, item in node.value.items():
        if not subjects.is_valid(source):
            reader.error(node, f'Subject "{source}" is not a valid subject')
            continue
        known = len(reader.errors)
        mapping = MappingOptions(source, _destinations(reader, item))
        shown = f' to "{item.value}"' if isinstance(item.value, str) else ""
        if len(reader.errors) > known:
            continue
        try:
            SubjectMapping(mapping)
        except TransformError as error:
            reader.error(item, f'Error adding mapping for "{source}"{shown} : {error}')
            continue
        found.append(mapping)
    target.mappings = found


def _destinations(reader: Reader, node: ConfigNode) -> list[MappingDestination]:
    if isinstance(node.value, str):
        return [MappingDestination(node.value)]
    found = []
    for item in node.value if isinstance(node.value, list) else [node]:
        try:
            found.append(_destination(reader, item))
        except FieldError as error:
            reader.error(error.node or item, str(error))
    return found


def _destination(reader: Reader, node: ConfigNode) -> MappingDestination:
    if not isinstance(node.value, dict):
        raise FieldError("Expected an entry for the mapping destination")
    found = MappingDestination("", -1)
    for key, item in node.value.items():
        name = key.lower()
        if name in ("dest", "destination"):
            found.subject = as_string(reader, name, item)
        elif name == "weight":
            found.weight = _mapping_weight(item)
        elif name == "cluster":
            found.cluster = as_string(reader, name, item)
        else:
            raise FieldError(f'Unknown field "{key}" for mapping destination', item)
    if found.weight < 0:
        raise FieldError(f'Missing weight for mapping destination "{found.subject}"')
    return found


def _mapping_weight(node: ConfigNode) -> int:
    value = node.value
    if isinstance(value, str):
        text = value.removesuffix("%")
        try:
            value = int(text)
        except ValueError as error:
            raise FieldError(f'Invalid weight "{text}" for mapping destination', node) from error
    elif isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(f"Unknown entry type for weight of {_shown(node)}\n", node)
    if not 0 <= value <= 100:
        raise FieldError(f"Invalid weight {value} for mapping destination", node)
    return value


def _shown(node: ConfigNode) -> str:
    if isinstance(node.value, bool):
        return str(node.value).lower()
    return str(node.plain())
