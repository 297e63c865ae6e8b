"""`exports`, `imports` and `mappings` of an account.

Texts are nats-server's. nats-server reads a block's keys in random order and may stop at the first error; here the
order is the file's, so the same error of several is reported each time.
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
from jetcluster.config.reader import (
    FieldError,
    Reader,
    Seconds,
    as_list,
    as_map,
    as_string,
    parse_duration,
    wrong_type,
)
from jetcluster.model import subjects

_RESPONSES = {
    **dict.fromkeys(("single", "singleton"), SINGLETON),
    "stream": STREAMED,
    **dict.fromkeys(("chunk", "chunked"), CHUNKED),
}


def _pairs(name: str, node: ConfigNode) -> tuple[dict[str, ConfigNode], list[str]]:
    """Returns the pairs of an entry of `name` by lower-case keys, and the keys among `stream` and `service`."""
    if not isinstance(node.value, dict):
        raise wrong_type(name, node, "a map", element=True, at=node)
    pairs = {key.lower(): item for key, item in node.value.items()}
    return pairs, [key for key in pairs if key in (STREAM, SERVICE)]


def read_exports(reader: Reader, node: ConfigNode, account: AccountOptions) -> None:
    for item in as_list(node, "exports"):
        known = len(reader.errors)
        try:
            export = _export(reader, item)
        except FieldError as error:
            reader.error(error.node or item, str(error))
            continue
        if export is not None and len(reader.errors) == known:
            account.exports.append(export)


def _export(reader: Reader, node: ConfigNode) -> ExportOptions | None:
    """Returns None for an entry that is neither a stream nor a service, which is no error in nats-server."""
    pairs, kinds = _pairs("exports", node)
    if len(kinds) > 1:
        second = pairs[kinds[1]]
        raise FieldError(f'Detected {kinds[1]} "{_shown(second)}" but already saw a {kinds[0]}', second)
    export = ExportOptions(kinds[0] if kinds else "", "")
    name = "accounts.exports of streams" if export.kind == STREAM else "accounts.exports"
    reader.block(pairs, export, name, path="accounts.exports")
    return export if kinds else None


def as_importers(reader: Reader, name: str, node: ConfigNode) -> list[str] | None:
    """Returns the accounts that may import; None: all."""
    return [as_string(reader, name, item) for item in as_list(node, name)] or None


def as_response_type(reader: Reader, name: str, node: ConfigNode) -> str:
    text = as_string(reader, name, node)
    found = _RESPONSES.get(text.lower())
    if found is None:
        raise FieldError(f'Unknown response type: "{text}"')
    return found


def as_response_threshold(reader: Reader, name: str, node: ConfigNode) -> Seconds:
    text = as_string(reader, name, node)
    try:
        return parse_duration(text)
    except ValueError as error:
        wanted = "Expected response threshold to be a parseable time duration"
        raise FieldError(f'{wanted}, got "{text}"') from error


def as_latency(reader: Reader, name: str, node: ConfigNode) -> LatencyOptions:
    if isinstance(node.value, str):
        return LatencyOptions(node.value)
    if not isinstance(node.value, dict):
        raise wrong_type(name, node, "a string or a map")
    found = LatencyOptions("")
    if "sampling" in node.value:
        found.sampling = _sampling(node.value["sampling"])
    if "subject" not in node.value:
        raise FieldError("Latency subject required, but missing")
    subject = node.value["subject"]
    if not isinstance(subject.value, str):
        raise wrong_type("subject", subject, "a string", at=subject)
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
        raise wrong_type("sampling", node, "a percentage", at=node)
    if not 1 <= value <= 100:
        raise FieldError("bad sampling percentage, should be 1-100", node)
    return value


def read_imports(reader: Reader, node: ConfigNode, account: AccountOptions) -> None:
    services: list[ImportOptions] = []
    for item in as_list(node, "imports"):
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
    pairs, kinds = _pairs("imports", node)
    if len(kinds) > 1:
        raise FieldError(f"Detected {kinds[1]} but already saw a {kinds[0]}", pairs[kinds[1]])
    wanted = ImportOptions(kinds[0] if kinds else "", "", "")
    name = "accounts.imports of services" if wanted.kind == SERVICE else "accounts.imports"
    reader.block(pairs, wanted, name, path="accounts.imports")
    if wanted.kind == STREAM and wanted.prefix:
        if "to" in pairs:
            raise FieldError("Stream import can not have a 'prefix' and a 'to' property", pairs["to"])
        wanted.local = wanted.prefix.removesuffix(".") + "." + wanted.subject
    return wanted if kinds else None


def read_import_source(reader: Reader, node: ConfigNode, wanted: ImportOptions) -> None:
    """Reads the account and the subject of an import."""
    reader.block(as_map(node, wanted.kind), wanted, "accounts.imports.source")
    if not (wanted.account and wanted.subject):
        raise FieldError("Expect an account name and a subject")


def check_imports(reader: Reader, pairs: dict[str, ConfigNode], options: Options) -> None:
    """Checks exports and imports across accounts, after the whole file is read and only if it has no other errors."""
    node = next((item for key, item in pairs.items() if key.lower() == "accounts"), None)
    shared = any(account.imports or account.exports for account in (options.accounts or {}).values())
    if node is not None and shared and not reader.errors:
        from jetcluster.config.import_rules import settle  # lazy, as below: a start without them takes 5 ms less

        for _, problem in settle(options.accounts or {}).problems:
            reader.error(node, problem)


def read_mappings(reader: Reader, node: ConfigNode, target: Any) -> None:
    """Reads into the `mappings` of an `AccountOptions`, or of `Options` for `$G`."""
    pairs = as_map(node, "mappings")
    from jetcluster.config.import_rules import SubjectMapping
    from jetcluster.model.transforms import TransformError

    found: list[MappingOptions] = []
    for source, item in pairs.items():
        if not subjects.is_valid(source):
            reader.error(node, f'Subject "{source}" is not a valid subject')
            continue
        known = len(reader.errors)
        mapping = MappingOptions(source, _destinations(reader, item))
        shown = f' to "{item.value}"' if isinstance(item.value, str) else ""
        if len(reader.errors) > known:
            continue
        try:
            SubjectMapping(mapping, getattr(target, "name", "$G"))
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
        raise wrong_type("mappings", node, "a string, a map or a list of maps", element=True)
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
        raise wrong_type("weight", node, "a percentage", at=node)
    if not 0 <= value <= 100:
        raise FieldError(f"Invalid weight {value} for mapping destination", node)
    return value


def _shown(node: ConfigNode) -> str:
    if isinstance(node.value, bool):
        return str(node.value).lower()
    return str(node.plain())
