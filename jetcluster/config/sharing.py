"""Exports, imports and subject mappings of an account, as a configuration file or an account's JWT gives them.

Who translates from another source (JWT claims) makes these objects and puts them into `AccountOptions.exports`,
`.imports` and `.mappings`; `import_rules.check` says which of them cannot stand. Subjects are as written, `$1` and
`{{wildcard(1)}}` included. Times are seconds.
"""

from __future__ import annotations

from dataclasses import field

from jetcluster.records import dataclass

STREAM = "stream"
SERVICE = "service"
SINGLETON = "singleton"
STREAMED = "stream"
CHUNKED = "chunked"
DEFAULT_THRESHOLD = 120.0
"""Seconds that a response has when an export does not say it."""


@dataclass(slots=True)
class LatencyOptions:
    """Where measurements of a service go: `subject` in the exporting account."""

    subject: str
    sampling: int = 100
    """Per cent of the requests, 1 to 100; 0: those whose tracing headers ask for it."""


@dataclass(slots=True)
class ExportOptions:
    """One export of an account. `kind` is STREAM or SERVICE."""

    kind: str
    subject: str
    accounts: list[str] | None = None
    """Names of the accounts that may import it; None or empty: all of them."""
    token_required: bool = False
    """An import needs an activation token (JWT): only imports that are `activated` stand."""
    account_token_position: int = 0
    """Which token of the subject, counted from 1, must be the importing account's name; 0: none."""
    response_type: str = SINGLETON
    """SINGLETON: one response; STREAMED and CHUNKED: until an empty one."""
    response_threshold: float = 0.0
    """Seconds after the request or the last response in which responses are let through; 0: DEFAULT_THRESHOLD."""
    latency: LatencyOptions | None = None
    allow_trace: bool = False
    name: str = ""
    """For people; JWTs have one."""

    @property
    def patience(self) -> float:
        return self.response_threshold or DEFAULT_THRESHOLD


@dataclass(slots=True)
class ImportOptions:
    """One import of an account: `subject` of `account`, known here as `local`."""

    kind: str
    account: str
    """The exporting account."""
    subject: str
    local: str = ""
    """`to` of the configuration, or its prefix with the subject; empty: the subject."""
    prefix: str = ""
    """The prefix of a stream import as written, which `local` is made with. For the texts of errors."""
    share: bool = False
    """The exporter of a service is told everything about the client that asks."""
    allow_trace: bool = False
    activated: bool = False
    """A valid activation token came with it (JWT); checked by the reader that made this object."""
    name: str = ""

    @property
    def here(self) -> str:
        return self.local or self.subject


@dataclass(slots=True)
class MappingDestination:
    subject: str
    weight: int = 100
    """Per cent of the messages, 0 to 100."""
    cluster: str = ""
    """Only in the cluster of this name; empty: everywhere else."""


@dataclass(slots=True)
class MappingOptions:
    """A mapping: what clients publish to `source` goes to one of `destinations`; what their weights leave open stays as
    it is."""

    source: str
    destinations: list[MappingDestination] = field(default_factory=list)
