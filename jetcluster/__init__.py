"""jetcluster: a clustered, replicated JetStream server that stock NATS clients use unchanged."""

__version__ = "0.2.0"

REPORTED_VERSION = "2.15.3"
"""The nats-server version in INFO, by which clients gate features."""

API_LEVEL = 5
"""JetStream API level (ADR-44): INFO, `$JS.API.INFO` and /jsz show it, and the `Nats-Required-Api-Level` of API
requests, direct gets and batches is compared with it. Level 4 (nats-server 2.14) adds fast-ingest batches, ack policy
`flow_control`, durable consumers of mirrors and sources, consumer resets, and the promotion of mirrors to streams; no
stream or consumer needs level 5 (2.15). The `eob` commit needs level 3 by the specification and 4 by the final ADR, and
clients send either."""
