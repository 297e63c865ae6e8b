"""The result of a job: one JSON object on stdout, an exit code, and one line for an error."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from jetcluster.errors import JetclusterError, PeerError

OK: Final = 0
CHECK_FAILED: Final = 1
"""The job succeeded and found faults (audit, verify)."""
USAGE: Final = 2
"""Invalid arguments, a missing stream or server, a folder that is not an archive."""
ENVIRONMENT: Final = 3
"""No Java, no pyspark, no worker Python."""
DATA_LOSS: Final = 4
"""Messages are gone, or another writer published to a fenced stream."""

_CODES: Final = {
    **dict.fromkeys(("DataLoss", "DataLossError", "FenceError", "ArchiveDamagedError", "ArchiveLossError"), DATA_LOSS),
    "ConflictError": DATA_LOSS,
    **dict.fromkeys(("UsageError", "OptionError", "SchemaError", "SinkError", "RowError", "StreamError"), USAGE),
    **dict.fromkeys(("CredentialsError", "ServerError", "ConnectionLostError"), USAGE),
}
"""Exit codes by the name of the class, as an exception of a worker arrives as text."""
_MAX_LINE_CHARACTERS: Final = 400
_PYTHON_ERROR: Final = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Loss|Tripped)): (.*)$", re.MULTILINE)
_DECORATION: Final = re.compile(r"\x1b\[[0-9;]*m|\N{DOWNWARDS ARROW WITH TIP RIGHTWARDS}")
"""Colours and arrows of deltalake's errors."""
_JAVA_ERROR: Final = re.compile(r"^(?:Caused by: )?(?:[a-z][\w$]*\.)+[A-Z][\w$]*(?:Error|Exception): ", re.MULTILINE)


class JobError(JetclusterError):
    """Ends a job with one line on stderr and the exit code `code`."""

    code = USAGE


class UsageError(JobError):
    """The arguments do not fit the command, the stream or the folder."""

    code = USAGE


class EnvironmentProblem(JobError):
    """A prerequisite is missing on this machine; the text names what to install."""

    code = ENVIRONMENT


class DataLoss(JobError):
    """Messages or files are missing or damaged."""

    code = DATA_LOSS


@dataclass(slots=True)
class Result:
    """The result of a job. `fields` follow `job` and `ok` in the JSON object."""

    job: str
    fields: dict[str, Any] = field(default_factory=dict)
    code: int = OK

    def render(self, *, one_line: bool) -> str:
        found = {"job": self.job, "ok": self.code == OK, **self.fields}
        return json.dumps(found, indent=None if one_line else 2, ensure_ascii=False)


def explain(error: BaseException) -> tuple[str, int]:
    """Returns (one line, exit code) for an exception that left a job; Spark's are unwrapped to their cause. A Python
    worker's exception arrives as text only: the name of its class determines the code."""
    if isinstance(error, JobError):
        return _one_line(str(error)), error.code
    own = _own_code(type(error).__name__)
    if own or (isinstance(error, JetclusterError) and not isinstance(error, PeerError)):
        return _one_line(str(error)), own or USAGE
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    name, text = _cause(str(error))
    if name:
        return _one_line(text), _own_code(name) or CHECK_FAILED
    return _one_line(f"{type(error).__name__}: {text}"), CHECK_FAILED


def _own_code(name: str) -> int:
    """Returns the exit code for exceptions of this class, 0 for an unknown class."""
    return _CODES.get(name.rsplit(".", 1)[-1], 0)


def _cause(text: str) -> tuple[str, str]:
    """Returns (class, message) of the last Python exception in a Spark exception's text; class "" if there is none."""
    found = [match for match in _PYTHON_ERROR.finditer(text) if not match[1].startswith(("org.", "java.", "pyspark."))]
    if found:
        match = found[-1]
        return match[1], match[2]
    return "", _JAVA_ERROR.sub("", text, count=1)


def _one_line(text: str) -> str:
    line = " ".join(_DECORATION.sub("", text).split("\n\nJVM stacktrace:", 1)[0].split("\n\tat ", 1)[0].split())
    return line if len(line) <= _MAX_LINE_CHARACTERS else line[: _MAX_LINE_CHARACTERS - 1] + "…"
