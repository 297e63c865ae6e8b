"""Accounts that offer and import services."""

from __future__ import annotations

from jetcluster.config.account_options import ExportOptions, ImportOptions
from tests.unit.server.sharing import account

A = account("A", ExportOptions("service", "req.>"), ExportOptions("service", "many", response_type="stream"))


B = account(
    "B",
    ImportOptions("service", "A", "req.x", "ask"),
    ImportOptions("service", "A", "many"),
    ExportOptions("service", "ask"),
)


C = account("C", ImportOptions("service", "B", "ask", "far"))
