"""The report of a task of the source to its query's listener (spark/listener.py): rows, answers by server, retries.

Python sources have no metrics in Spark, and accumulators need the driver's context, which a source does not have. So a
task with the option `metricsUrl` sends one small report when it has read its range.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Final

TIMEOUT_SECONDS: Final = 1.0
MAX_REPORT_BYTES: Final = 64 * 1024


def send(url: str, stream: str, rows: int, answers: Mapping[str, int], retries: int) -> None:
    """Posts a report. A listener that cannot be reached is passed over: a task does not fail for its metrics."""
    body = json.dumps({"stream": stream, "rows": rows, "answers": answers, "retries": retries}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - checked option
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()  # noqa: S310
    except (OSError, urllib.error.URLError):
        return
