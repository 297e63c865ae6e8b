"""jetcluster: a clustered, replicated JetStream server that stock NATS clients use unchanged."""

__version__ = "0.1.0"

REPORTED_VERSION = "2.12.15"
"""The nats-server version told to clients in INFO; they gate features by it (shared/reference/drop-in.md section 4)."""

API_LEVEL = 3
"""JetStream API level (ADR-44) that belongs to the reported version: INFO and `$JS.API.INFO` show it, and
`Nats-Required-Api-Level` is compared with it."""
