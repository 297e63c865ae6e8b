"""jetcluster: a clustered, replicated JetStream server that stock NATS clients use unchanged."""

__version__ = "0.2.0"

REPORTED_VERSION = "2.14.5"
"""The nats-server version told to clients in INFO; they gate features by it."""

API_LEVEL = 4
"""JetStream API level (ADR-44): INFO, `$JS.API.INFO` and /jsz show it, and every `Nats-Required-Api-Level` is compared
with it, on API requests, direct gets and batches alike. Level 4 (nats-server 2.14) is fast-ingest batches, ack policy
`flow_control`, durable consumers of mirrors and sources, resetting consumers, and mirrors that become streams of their
own. The `eob` commit needs 3 by the specification and 4 by the final ADR, and clients send either."""
