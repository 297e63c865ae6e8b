"""jetcluster: a clustered, replicated JetStream server that stock NATS clients use unchanged."""

__version__ = "0.1.0"

REPORTED_VERSION = "2.12.15"
"""The nats-server version told to clients in INFO; they gate features by it (shared/reference/drop-in.md section 4)."""

API_LEVEL = 4
"""JetStream API level (ADR-44): INFO, `$JS.API.INFO` and /jsz show it, and every `Nats-Required-Api-Level` is compared
with it, on API requests, direct gets and batches alike. 4 although the reported version's is 3: the `eob` commit needs
3 by the specification and 4 by the final ADR, and clients send either (streams.md R14)."""
