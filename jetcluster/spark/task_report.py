"""The report of a task of the source to its query's listener (spark/listener.py): rows, answers by server, retries.

Python sources have no metrics in Spark, and accumulators need the driver's context, which a source does not have. So a
task with the option `metricsUrl` sends one small report when it has read its range. The reader of a streaming query
asks for what its tasks have sent, and shows it in the query's progress.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final

TIMEOUT_SECONDS: Final = 1.0
MAX_REPORT_BYTES: Final = 64 * 1024
MAX_COUNTS_BYTES: Final = 1 << 20


def send(url: str, stream: str, rows: int, answers: Mapping[str, int], retries: int, reader: str = "") -> None:
    """Posts a report; `reader`: the run of a streaming query. A listener that cannot be reached is passed over: a task
    does not fail for its metrics."""
    found = {"stream": stream, "rows": rows, "answers": answers, "retries": retries, "reader": reader}
    body = json.dumps(found).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - checked option
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()  # noqa: S310
    except (OSError, HTTPException):
        return


def counts(url: str, reader: str) -> dict[str, Any]:
    """Returns, by stream, the answers by server and the retries that tasks of a reader have reported; {} when nobody
    says."""
    try:
        with urllib.request.urlopen(f"{url}?reader={reader}", timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
            found = json.loads(answer.read(MAX_COUNTS_BYTES))
        return {name: {"answers": one["answers"], "retries": one["retries"]} for name, one in found.items()}
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return {}  # nobody is there, or somebody else
