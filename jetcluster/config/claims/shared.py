"""Exports, imports and subject mappings of an account's JWT."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from jetcluster.config.account_options import (
    CHUNKED,
    SERVICE,
    SINGLETON,
    STREAM,
    STREAMED,
    ExportOptions,
    ImportOptions,
    LatencyOptions,
    MappingDestination,
    MappingOptions,
)
from jetcluster.config.claims.rights import subject_problems
from jetcluster.config.claims.token import ClaimsError, Fields, Token, decode
from jetcluster.config.nkeys import is_key

EVERYBODY = "*"
"""All accounts or users, in a list of revocations."""
_RESPONSES = {"": SINGLETON, "Singleton": SINGLETON, "Stream": STREAMED, "Chunked": CHUNKED}
_KINDS = (STREAM, SERVICE)


@dataclass(slots=True)
class ExportClaim:
    """One export of an account's JWT."""

    options: ExportOptions
    revocations: dict[str, int] = field(default_factory=dict)
    """Account -> epoch second; an activation token issued up to then is revoked."""
    response_type: str = ""
    """As in the JWT."""

    def problems(self) -> Iterator[str]:
        export = self.options
        if export.kind not in _KINDS:
            yield f'invalid export type: "{export.kind}"'
        if export.kind == SERVICE and self.response_type not in _RESPONSES:
            yield f'invalid response type for service: "{self.response_type}"'
        if export.kind == STREAM:
            if self.response_type:
                yield f'invalid response type for stream: "{self.response_type}"'
            if export.allow_trace:
                yield "AllowTrace only valid for service export"
            if export.latency is not None:
                yield "latency tracking only permitted for services"
            if export.response_threshold > 0:
                yield "response threshold only valid for services"
        if export.latency is not None:
            yield from _latency_problems(export.latency)
        if export.response_threshold < 0:
            yield "negative response threshold is invalid"
        yield from subject_problems(export.subject)
        yield from _position_problems(export)


@dataclass(slots=True)
class Activation:
    """A signed permission of an exporting account for one import."""

    token: Token
    subject: str
    kind: str
    issuer_account: str

    @property
    def exporter(self) -> str:
        return self.issuer_account or self.token.issuer


@dataclass(slots=True)
class ImportClaim:
    """One import of an account's JWT."""

    options: ImportOptions
    token: str = ""
    """The activation token."""
    to: str = ""
    """The deprecated way to rename; `local_subject` replaces it."""
    local_subject: str = ""

    def problems(self, account: str) -> Iterator[str]:
        """Yields the errors of the import in the importing `account`."""
        found = self.options
        if found.kind not in _KINDS:
            yield f'invalid import type: "{found.kind}"'
        if found.kind == SERVICE and found.allow_trace:
            yield "AllowTrace only valid for stream import"
        if not found.account:
            yield "account to import from is not specified"
        yield from subject_problems(self._subject)
        if self.local_subject:
            yield from _renaming_problems(self.local_subject, found.subject)
            if self.to:
                yield "Local Subject replaces To"
        if found.share and found.kind != SERVICE:
            yield f'sharing information (for latency tracking) is only valid for services: "{self._subject}"'
        if self.token:
            yield from self._token_problems(account)

    @property
    def expires(self) -> int:
        """The epoch second at which the activation token expires; 0: never, or there is no token."""
        try:
            return decode_activation(self.token).token.expires if self.token else 0
        except ClaimsError:
            return 0

    def is_of(self, exported: str) -> bool:
        """Returns True when it imports from the export of this subject."""
        return is_contained(self.options.subject, exported)

    @property
    def _subject(self) -> str:
        """The subject as in the JWT."""
        return self.options.local if self.options.kind == SERVICE and self.to else self.options.subject

    def _token_problems(self, account: str) -> Iterator[str]:
        try:
            activation = decode_activation(self.token)
        except ClaimsError:
            yield f'import "{self._subject}" contains an invalid activation token'
            return
        found = self.options
        if found.account not in (activation.token.issuer, activation.issuer_account):
            yield f'activation token doesn\'t match account for import "{self._subject}"'
        if activation.token.subject != account:
            yield f'activation token doesn\'t match account it is being included in, "{self._subject}"'
        if activation.kind != found.kind:
            yield f"mismatch between token import type {activation.kind} and type of import {found.kind}"
        yield from subject_problems(activation.subject)
        if activation.issuer_account and not is_key("A", activation.issuer_account):
            yield "account_id is not an account public key"
        if not is_contained(found.subject, activation.subject):
            yield f'activation token import subject "{activation.subject}" doesn\'t match import "{self._subject}"'


def decode_activation(text: str) -> Activation:
    """Returns the claims of an activation token. Raises ClaimsError."""
    token = decode(text, "activation")
    fields = token.body
    # Version 1 has the import's kind in `type`, which is the claim's own type in version 2.
    kind = fields.text("kind") if token.version > 1 else fields.text("type")
    top = token.top.text("issuer_account") if token.version == 1 else ""
    return Activation(token, fields.text("subject"), kind, top or fields.text("issuer_account"))


def read_exports(fields: Fields) -> list[ExportClaim]:
    """Returns the exports of an account's claims. Raises ClaimsError."""
    return [_read_export(item) for item in fields.objects("exports")]


def read_imports(fields: Fields) -> list[ImportClaim]:
    """Returns the imports of an account's claims. Raises ClaimsError."""
    return [_read_import(item) for item in fields.objects("imports")]


def read_mappings(fields: Fields) -> list[MappingOptions]:
    """Returns the mappings of an account's claims. Raises ClaimsError."""
    mappings = fields.object("mappings")
    return [
        MappingOptions(
            source,
            [
                MappingDestination(item.text("subject"), item.number("weight") or 100, item.text("cluster"))
                for item in mappings.objects(source)
            ],
        )
        for source in mappings.names()
    ]


def exports_problems(exports: list[ExportClaim]) -> Iterator[str]:
    for export in exports:
        yield from export.problems()
        kind, inner = export.options.kind, export.options.subject
        for other in exports:
            outer = other.options.subject
            if other is not export and other.options.kind == kind and is_contained(inner, outer):
                yield f'{kind} export subject "{outer}" already exports "{inner}"'


def imports_problems(imports: list[ImportClaim], account: str) -> Iterator[str]:
    seen: dict[str, list[str]] = {}
    for found in imports:
        options = found.options
        if options.kind == SERVICE:
            subject = found.to or _wildcards(found.local_subject) or options.subject
            for other in seen.setdefault(options.account, []):
                if is_contained(subject, other) or is_contained(other, subject):
                    names = f'"{subject}" and "{other}" in same account "{options.account}"'
                    yield f"overlapping subject namespace for {names}"
            seen[options.account].append(subject)
        yield from found.problems(account)


def mappings_problems(mappings: list[MappingOptions]) -> Iterator[str]:
    for mapping in mappings:
        yield from subject_problems(mapping.source)
        total: Counter[str] = Counter()
        for destination in mapping.destinations:
            yield from subject_problems(destination.subject)
            total[destination.cluster] += destination.weight
            if destination.weight > 100:
                yield f'Mapping "{mapping.source}" has a weight {destination.weight} that exceeds 100'
        for cluster, weight in total.items():
            where = f' in cluster "{cluster}"' if cluster else ""
            if weight > 100:
                yield f'Mapping "{mapping.source}"{where} exceeds 100% among all of it\'s weighted to mappings'


def has_wildcards(subject: str) -> bool:
    tokens = subject.split(".")
    return "*" in tokens or tokens[-1] == ">"


def is_contained(subject: str, other: str) -> bool:
    """Returns True when `other` matches every subject that `subject` matches."""
    inner, outer = subject.split("."), other.split(".")
    if len(inner) > len(outer) and outer[-1] != ">":
        return False
    if len(inner) < len(outer):
        return False
    for index, part in enumerate(outer):
        if part == ">" and index == len(outer) - 1:
            return True
        if part not in ("*", inner[index]):
            return False
    return True


def _read_export(fields: Fields) -> ExportClaim:
    response = fields.text("response_type")
    options = ExportOptions(
        kind=fields.text("type"),
        subject=fields.text("subject"),
        token_required=fields.flag("token_req"),
        account_token_position=fields.number("account_token_position"),
        response_type=_RESPONSES.get(response, SINGLETON),
        response_threshold=fields.number("response_threshold") / 1e9,
        allow_trace=fields.flag("allow_trace"),
        name=fields.text("name"),
    )
    if "service_latency" in fields:
        latency = fields.object("service_latency")
        by_headers = str(latency.raw().get("sampling")).lower() == "headers"
        options.latency = LatencyOptions(latency.text("results"), 0 if by_headers else latency.number("sampling"))
    return ExportClaim(options, fields.numbers_by_name("revocations"), response)


def _read_import(fields: Fields) -> ImportClaim:
    kind, subject, to = fields.text("type"), fields.text("subject"), fields.text("to")
    local = fields.text("local_subject")
    options = ImportOptions(
        kind=kind,
        account=fields.text("account"),
        subject=subject,
        local=local,
        share=fields.flag("share"),
        allow_trace=fields.flag("allow_trace"),
        name=fields.text("name"),
    )
    if to and not local:
        if kind == SERVICE:  # `subject` is then the local name
            options.subject, options.local = to, subject
        else:
            options.prefix, options.local = to, f"{to.removesuffix('.')}.{subject}"
    return ImportClaim(options, fields.text("token"), to, local)


def _latency_problems(latency: LatencyOptions) -> Iterator[str]:
    if not 0 <= latency.sampling <= 100:
        yield "sampling percentage needs to be between 1-100"
    yield from subject_problems(latency.subject)
    if has_wildcards(latency.subject):
        yield "results subject can not contain wildcards"


def _position_problems(export: ExportOptions) -> Iterator[str]:
    position, tokens = export.account_token_position, export.subject.split(".")
    if position == 0:
        return
    if not has_wildcards(export.subject):
        yield f"Account Token Position can only be used with wildcard subjects: {export.subject}"
    elif not 0 < position <= len(tokens):
        yield f"Account Token Position {position} exceeds length of subject '{export.subject}'"
    elif tokens[position - 1] != "*":
        token = tokens[position - 1]
        yield f"Account Token Position {position} matches '{token}' but must match a * in: {export.subject}"


def _wildcards(subject: str) -> str:
    """Returns a renaming subject with `*` for its references (`$1`)."""
    return ".".join("*" if _reference(token) else token for token in subject.split(".")) if subject else ""


def _reference(token: str) -> int:
    """Returns the number after `$`; 0 for any other token."""
    number = token[1:6]  # a subject has fewer tokens than 5 digits can count
    return int(number) if token[:1] == "$" and token[1:] == number and number.isdecimal() else 0


def _renaming_problems(local: str, subject: str) -> Iterator[str]:
    yield from subject_problems(local)
    if (local.split(".")[-1] == ">") != (subject.split(".")[-1] == ">"):
        yield "both, renaming subject and subject, need to end or not end in >"
    stars, used = subject.split(".").count("*"), 0
    for part in local.split("."):
        number = _reference(part)
        if number > stars:
            yield f'Reference ${number} in "{local}" reference * in "{subject}" that do not exist'
        elif part == "*" or number:
            used += 1
    if used != stars:
        yield "subject does not contain enough * or reference wildcards $[0-9]"
