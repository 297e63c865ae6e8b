"""The checks of exports against imports (permission, and no cycles), and subject mappings ready for use.

`settle` serves the configuration file, where any problem refuses the file, and account JWTs, where an import with a
problem is left out. Error texts are nats-server's. Precedents there: AddWeightedMappings in accounts.go for mappings;
NewSubjectTransformStrict and reverse in subject_transform.go for transforms.

An import's transform maps subjects into the exporting account and back, with wildcards by number (`to: "local.$2.$1"`).
Because it must work both ways it is strict: `{{wildcard(n)}}` (or `$n`) is the only function, and every `*` of the
source is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from operator import itemgetter

from jetcluster.config.account_options import (
    SERVICE,
    SINGLETON,
    STREAM,
    STREAMED,
    AccountOptions,
    ExportOptions,
    ImportOptions,
    MappingDestination,
    MappingOptions,
)
from jetcluster.errors import OperatorError
from jetcluster.model import subjects
from jetcluster.model.account_hash import AccountNames
from jetcluster.model.transforms import SubjectTransform, TransformError, bounded, check_length, check_mapping
from jetcluster.records import dataclass

_NUMBERED = re.compile(rb"\$[1-9].*")
_WILDCARD = re.compile(rb"\{\{\s*wildcard\s*\([^,]+\)\s*\}\}", re.IGNORECASE)
_BAD_TRANSFORM = "invalid mapping destination"


def is_wild(subject: bytes) -> bool:
    """Returns True when a token is `*` or `>`."""
    return any(token in (b"*", b">") for token in subject.split(b"."))


def numbered(subject: bytes) -> bytes:
    """Numbers the stars: `a.*.*` -> `a.$1.$2`."""
    count = 0
    tokens = []
    for token in subject.split(b"."):
        if token == b"*":
            count += 1
            token = b"$%d" % count
        tokens.append(token)
    return b".".join(tokens)


def starred(subject: bytes) -> tuple[bytes, list[bytes]]:
    """Returns the subject with stars for its placeholders (`a.$2.{{wildcard(1)}}` -> `a.*.*`), and the placeholders."""
    tokens, holders = [], []
    for token in subject.split(b"."):
        if _is_holder(token):
            holders.append(token)
            tokens.append(b"*")
        else:
            tokens.append(token)
    return b".".join(tokens), holders


def strict_transform(source: bytes, destination: bytes) -> SubjectTransform:
    """Returns the strict transform of a source with wildcards. Raises TransformError."""
    check_length(destination)
    tokens = destination.split(b".")
    for token in tokens:
        if len(token) > 4 and token.startswith(b"{{") and token.endswith(b"}}") and not _is_holder(token):
            SubjectTransform(source, destination)  # raises the errors of any transform first
            raise TransformError(
                f"{_BAD_TRANSFORM}: the only mapping function allowed for import transforms is {{{{Wildcard()}}}} "
                f"in {token.decode(errors='replace')}"
            )
    transform = bounded(SubjectTransform(source, destination))
    if sum(map(_is_holder, tokens)) < source.split(b".").count(b"*"):
        text = destination.decode(errors="replace")
        raise TransformError(f"{_BAD_TRANSFORM}: not using all of the token wildcard(s) in {text}")
    return transform


def reverse(transform: SubjectTransform) -> SubjectTransform:
    """Returns the inverse of a strict transform. As in nats-server, the stars of its source get the placeholders in the
    order of its destination, which inverts a swap of two but not a rotation of three."""
    source, holders = starred(transform.destination)
    left = iter(holders)
    tokens = [next(left, token) if token == b"*" else token for token in transform.source.split(b".")]
    return SubjectTransform(source, b".".join(tokens))


def _is_holder(token: bytes) -> bool:
    return _NUMBERED.fullmatch(token) is not None or _WILDCARD.fullmatch(token) is not None


_Add = Callable[[str, ImportOptions], None]

MAX_SEARCHED_ACCOUNTS = 512
"""Accounts that the search for a cycle visits. nats-server visits 1024; here each is a nested call, and Python limits
the depth of calls."""


class RefusedImportError(OperatorError):
    """An import that is not valid, with the reason."""


@dataclass(slots=True, eq=False)
class StreamImport:
    """A stream import: a message published to `remote` in `account` appears as `local`; both may have wildcards."""

    account: str
    remote: bytes
    local: bytes
    transform: SubjectTransform | None
    """From a remote subject to the local one; None: `local` itself, or the same subject if `same`."""
    same: bool
    options: ImportOptions

    def back(self) -> SubjectTransform | None:
        """Returns the transform from a local subject or filter to the remote one."""
        return None if self.transform is None else reverse(self.transform)


@dataclass(slots=True, eq=False)
class ServiceImport:
    """A service import: a message to `local` is a request to `remote` in `account`."""

    account: str
    remote: bytes
    local: bytes
    transform: SubjectTransform | None
    """From a local subject to the remote one; None: `remote` itself, or the same subject if `same`."""
    same: bool
    export: ExportOptions | None
    options: ImportOptions


@dataclass(slots=True)
class Imports:
    """The imports of one account."""

    streams: list[StreamImport] = field(default_factory=list)
    services: list[ServiceImport] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.streams or self.services)


@dataclass(slots=True)
class Settled:
    """The valid imports, and the problems of the others."""

    imports: dict[str, Imports] = field(default_factory=dict)
    """By account; accounts without imports are not in it."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    """(account, error text of one of its exports or imports)."""


def system_exports() -> list[ExportOptions]:
    """Returns the exports that the system account has in operator mode without a claim: monitoring of the importing
    account, and the number of a subject's subscribers. A configuration file must name them itself."""
    views = [
        ExportOptions(SERVICE, f"$SYS.REQ.ACCOUNT.*.{view}", account_token_position=4, response_type=STREAMED)
        for view in ("CONNZ", "STATZ")
    ]
    return [*views, ExportOptions(SERVICE, "$SYS.DEBUG.SUBSCRIBERS")]


def settle(accounts: Mapping[str, AccountOptions], system_account: str = "") -> Settled:
    """Checks the exports, then the imports, streams first; an export with a problem is ignored by later checks.
    `system_account`: the account to which `system_exports` are added; "" for none."""
    return _Settling(accounts, system_account).settled


class _Settling:
    def __init__(self, accounts: Mapping[str, AccountOptions], system_account: str) -> None:
        self.settled = Settled()
        self._accounts = accounts
        self._exports: dict[tuple[str, str], dict[str, ExportOptions]] = {}
        for kind in (STREAM, SERVICE):
            for account in accounts.values():
                self._add_exports(account, kind)
        own = self._exports.setdefault((system_account, SERVICE), {})
        for export in system_exports() if system_account else ():
            if not any(subjects.is_subset(export.subject, known) for known in own):
                own[export.subject] = export
        for kind, add in ((STREAM, self._add_stream), (SERVICE, self._add_service)):
            for account in accounts.values():
                for wanted in account.imports:
                    if wanted.kind == kind:
                        self._try(account.name, wanted, add)

    def _problem(self, account: str, text: str) -> None:
        self.settled.problems.append((account, text))

    # ---- exports

    def _add_exports(self, account: AccountOptions, kind: str) -> None:
        exports = self._exports.setdefault((account.name, kind), {})
        for export in account.exports:
            if export.kind != kind:
                continue
            for name in export.accounts or ():
                if name not in self._accounts:
                    self._problem(account.name, f'"{name}" account not defined for {kind} export')
            try:
                subject = AccountNames(account.name).expand(export.subject)
            except TransformError as error:
                self._problem(account.name, f'Error adding {kind} export "{export.subject}": {error}')
                continue
            meant = replace(export, subject=subject)
            if why := _bad_export(export) or _bad_export(meant):
                self._problem(account.name, f"Error adding {why}")
            else:
                exports[subject] = meant

    def _export_of(self, account: str, kind: str, subject: str) -> tuple[ExportOptions, bool] | None:
        """Returns the export that covers a subject, and True when the subjects are equal."""
        exports = self._exports.get((account, kind), {})
        if subject in exports:
            return exports[subject], True
        for known, export in exports.items():
            if subjects.is_subset(subject, known):
                return export, False
        return None

    def _authorized(self, importer: str, wanted: ImportOptions) -> bool:
        if not subjects.is_valid(wanted.subject):
            return False
        found = self._export_of(wanted.account, wanted.kind, wanted.subject)
        if found is None:
            return False
        export, exact = found
        position = export.account_token_position
        if position:
            tokens = wanted.subject.split(".")
            return not exact and position <= len(tokens) and tokens[position - 1] == importer
        if export.token_required:
            return wanted.activated
        return not export.accounts or importer in export.accounts

    # ---- imports

    def _try(self, importer: str, wanted: ImportOptions, add: _Add) -> None:
        if wanted.account not in self._accounts:
            self._problem(importer, f'"{wanted.account}" account not defined for {wanted.kind} import')
            return
        try:
            add(importer, _meant(wanted, AccountNames(importer, wanted.account)))
        except (RefusedImportError, TransformError) as error:
            self._problem(importer, f'Error adding {wanted.kind} import "{wanted.subject}": {error}')

    def _imports(self, account: str) -> Imports:
        return self.settled.imports.get(account) or Imports()

    def _add_stream(self, importer: str, wanted: ImportOptions) -> None:
        if not self._authorized(importer, wanted):
            raise RefusedImportError("stream import not authorized")
        if wanted.prefix and is_wild(wanted.prefix.encode()):
            raise RefusedImportError("stream import prefix can not contain wildcard tokens")
        for subject in (wanted.here, wanted.subject):
            self._check_stream_circle(wanted.account, subject, {importer})
        remote, local = wanted.subject.encode(), wanted.here.encode()
        transform, same = None, False
        if is_wild(remote):
            same = remote == local
            if not same:
                try:
                    transform = strict_transform(remote, numbered(local))
                except TransformError as error:
                    raise _no_transform("stream", wanted.subject, wanted.here, error) from error
                local = starred(local)[0]
        imports = self._imports(importer)
        if any(known.account == wanted.account and known.remote == remote for known in imports.streams):
            raise RefusedImportError("stream import already exists")
        imports.streams.append(StreamImport(wanted.account, remote, local, transform, same, wanted))
        self.settled.imports[importer] = imports

    def _add_service(self, importer: str, wanted: ImportOptions) -> None:
        if not (subjects.is_valid(wanted.here) and subjects.is_valid(wanted.subject)):
            raise RefusedImportError("sublist: invalid subject")
        if not self._authorized(importer, wanted):
            raise RefusedImportError("service import not authorized")
        remote, local = wanted.subject.encode(), wanted.here.encode()
        met = starred(local)[0] if is_wild(remote) else local
        self._check_service_circle(wanted.account, met.decode(), {importer})
        found = self._export_of(wanted.account, SERVICE, wanted.subject)
        transform, same = None, False
        if is_wild(remote):
            same = remote == local
            if not same:
                try:
                    transform = reverse(strict_transform(starred(remote)[0], numbered(local)))
                except TransformError as error:
                    raise _no_transform("service", wanted.here, wanted.subject, error) from error
                remote, local = starred(remote)[0], starred(local)[0]
        imports = self._imports(importer)
        for known in imports.services:
            if known.account == wanted.account and known.local == local:
                raise RefusedImportError(
                    f'duplicate service import subject "{local.decode()}", previously used in import for account '
                    f'"{known.account}", subject "{known.remote.decode()}"'
                )
        made = ServiceImport(wanted.account, remote, local, transform, same, found[0] if found else None, wanted)
        imports.services.append(made)
        self.settled.imports[importer] = imports

    # ---- cycles

    def _check_service_circle(self, account: str, subject: str, seen: set[str]) -> None:
        self._limit(seen)
        for known in self._imports(account).services:
            remote, local = known.remote.decode(), known.local.decode()
            if subjects.overlap(subject, remote):
                if known.account in seen:
                    raise RefusedImportError("import forms a cycle")
                seen.add(account)
                onward = local if subjects.is_subset(local, subject) else subject
                self._check_service_circle(known.account, onward, seen)

    def _check_stream_circle(self, account: str, subject: str, seen: set[str]) -> None:
        self._limit(seen)
        if not any(subjects.is_subset(subject, known) for known in self._exports.get((account, STREAM), {})):
            return
        for known in self._imports(account).streams:
            local = known.local.decode()
            if subjects.overlap(subject, local):
                if known.account in seen:
                    raise RefusedImportError("import forms a cycle")
                seen.add(account)
                onward = local if subjects.is_subset(local, subject) else subject
                self._check_stream_circle(known.account, onward, seen)

    def _limit(self, seen: set[str]) -> None:
        if len(seen) >= MAX_SEARCHED_ACCOUNTS:
            raise RefusedImportError("search cycle depth exhausted")


def _meant(wanted: ImportOptions, names: AccountNames) -> ImportOptions:
    """Returns the import with the functions of its subjects replaced. Raises TransformError."""
    return replace(
        wanted,
        subject=names.expand(wanted.subject),
        local=names.expand(wanted.local),
        prefix=names.expand(wanted.prefix),
    )


def _bad_export(export: ExportOptions) -> str:
    """Returns the reason why the export cannot be added; "" when it can."""
    position = export.account_token_position
    if position:
        tokens = export.subject.split(".")
        if not 0 < position <= len(tokens) or tokens[position - 1] != "*":
            return f'{export.kind} export "{export.subject}": sublist: invalid subject'
    latency = export.latency
    if latency is None:
        return ""
    what = f'service latency sampling for "{export.subject}" on subject "{latency.subject}"'
    if not (subjects.is_valid(latency.subject) and subjects.is_literal(latency.subject)):
        return f"{what}: invalid publish subject"
    if subjects.is_subset(latency.subject, export.subject):
        return f"{what}: invalid publish subject"  # a measurement would be a request itself
    return "" if export.response_type == SINGLETON else f"{what}: bad service response type"


def _no_transform(kind: str, source: str, destination: str, error: TransformError) -> RefusedImportError:
    return RefusedImportError(
        f'failed to create mapping transform for {kind} import subject from "{source}" to "{destination}": {error}'
    )


ALL_PERCENT = 100


class SubjectMapping:
    """One source and its destinations. Weights are cumulative: a message goes to the first destination whose weight is
    above a random number from 0 to 99; if there is none, the message is lost."""

    __slots__ = ("destinations", "in_clusters", "source", "wild")

    def __init__(self, options: MappingOptions, account: str) -> None:
        """Raises TransformError."""
        options = _meant_mapping(options, AccountNames(account))
        self.source = options.source.encode()
        self.wild = is_wild(self.source)
        _check(options)
        listed = {destination.subject for destination in options.destinations}
        grouped: dict[str, list[MappingDestination]] = {"": []}
        for destination in options.destinations:
            grouped.setdefault(destination.cluster, []).append(destination)
        made = {cluster: self._made(some, options.source in listed) for cluster, some in grouped.items()}
        self.destinations = made.pop("")
        self.in_clusters = made

    def of(self, cluster: str) -> list[tuple[SubjectTransform, int]]:
        """Returns (transform, cumulative weight) of each destination for a server in that cluster."""
        return self.in_clusters.get(cluster) or self.destinations

    def _made(self, destinations: list[MappingDestination], lossy: bool) -> list[tuple[SubjectTransform, int]]:
        """Returns the destinations with cumulative weights. `lossy`: the source is a destination itself, so messages of
        the remaining weight are lost on purpose; otherwise they keep their subject."""
        source = self.source
        weighed = [(SubjectTransform(source, d.subject.encode()), d.weight) for d in destinations]
        total = sum(weight for _, weight in weighed)
        if total != ALL_PERCENT and not lossy:
            weighed.append((SubjectTransform(source, numbered(source)), ALL_PERCENT - total))
        weighed.sort(key=itemgetter(1))
        reached = 0
        found = []
        for transform, weight in weighed:
            reached += weight
            found.append((transform, reached))
        return found


def _meant_mapping(options: MappingOptions, names: AccountNames) -> MappingOptions:
    """Returns the mapping with the functions of its subjects replaced. Raises TransformError."""
    destinations = [replace(one, subject=names.expand(one.subject)) for one in options.destinations]
    return replace(options, source=names.expand(options.source), destinations=destinations)


def _check(options: MappingOptions) -> None:
    if not subjects.is_valid(options.source):
        raise TransformError("invalid subject")
    seen: set[str] = set()
    totals: dict[str, int] = {}
    for destination in options.destinations:
        if destination.subject in seen:
            raise TransformError(f'duplicate entry for "{destination.subject}"')
        seen.add(destination.subject)
        if destination.weight > ALL_PERCENT:
            raise TransformError("individual weights need to be <= 100")
        total = totals[destination.cluster] = totals.get(destination.cluster, 0) + destination.weight
        if total > ALL_PERCENT:
            raise TransformError("total weight needs to be <= 100")
        check_mapping(options.source.encode(), destination.subject.encode())
